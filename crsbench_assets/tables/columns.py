"""Columns that several tables share: one quantity, one name, one meaning.

What lives here: the shared columns. What stays out: columns of one table only, which stand in that table's module.
"""

from __future__ import annotations

from crsbench_assets.tables.schema import ColumnSpec

ENCODER_ID = ColumnSpec("encoder_id", "text", "Id of the encoder's card")
DATASET_ID = ColumnSpec("dataset_id", "text", "Id of the dataset's card")
PANEL_ID = ColumnSpec("panel_id", "text", "Reference panel; `provisional` before one was frozen")
PROTOCOL_ID = ColumnSpec("protocol_id", "text", "Protocol, as id and first 12 digits of its hash: `crs-1@...`")
LABEL_POLICY = ColumnSpec("label_policy", "text", "What an uncertain label became: `u_zeros`, `u_ignore` or `u_ones`")
RULES = (PROTOCOL_ID, LABEL_POLICY)
"""Under which rules a row was computed. Rows of two rules are never mixed, so every row that leaves a home says its."""
IMAGE_ID = ColumnSpec("image_id", "text", "Id of the image within its dataset")
SEED = ColumnSpec("seed", "integer", "Seed of the validation split, the label subset and the probe")
LABEL_FRACTION = ColumnSpec("label_fraction", "real", "Fraction of the training labels used", low=0, high=1)
CONDITION_ID = ColumnSpec("condition_id", "text", "`clean`, a corruption with its severity, or `shift_<id>`")
CLASS_NAME = ColumnSpec("class_name", "text", "Class or label, as the dataset's card names it")
REASON = ColumnSpec(
    "reason",
    "text",
    "Why a value is NULL that a row of this kind has; NULL where every such value is there",
    nullable=True,
)
STATUS = ColumnSpec("status", "text", "`ok`, or why there is no result")
INPUTS_HASH = ColumnSpec("inputs_hash", "text", "Hash of everything this row depends on")
N = ColumnSpec("n", "integer", "Number of test images", low=0)
AXIS = ColumnSpec("axis", "text", "One of the four axes")
SHIFT_ID = ColumnSpec("shift_id", "text", "Id of the shift target")
PERTURBATION_ID = ColumnSpec("perturbation_id", "text", "Id of the perturbation within its panel and kind")
LEVEL = ColumnSpec("level", "text", "What is a unit: `encoder` (mean over its datasets) or `cell`")
CENTRING = ColumnSpec("centring", "text", "`raw`, or `within_dataset`: less the mean of the dataset's cells")
IS_PRIMARY = ColumnSpec("is_primary", "boolean", "Whether the protocol declared this cell before any result")


def metric(name: str, description: str, low: float | None = None, high: float | None = None) -> ColumnSpec:
    """Return a nullable float64 column of a metric; NULL needs a reason."""
    return ColumnSpec(name, "real", description, nullable=True, low=low, high=high)


def count(name: str, description: str, *, nullable: bool = False) -> ColumnSpec:
    """Return an integer column that counts something."""
    return ColumnSpec(name, "integer", description, nullable=nullable, low=0)


CRS = metric("crs", "Clinical Reliability Score; higher is better", 0, 1)
TAU_B = metric("tau_b", "Kendall's tau-b of the two orders; 1 is the same order", -1, 1)
SPEARMAN = metric("spearman", "Spearman's rank correlation; 1 is the same order", -1, 1)
TOP_3_OVERLAP = metric("top_3_overlap", "Share of the one top 3 that stands in the other; 1 is the same three", 0, 1)
RANK_DISPLACEMENT = ColumnSpec(
    "rank_displacement", "integer", "Reference rank less the other; positive: the encoder rises", nullable=True
)
N_ENCODERS = count("n_encoders", "Encoders compared")
N_SEEDS = count("n_seeds", "Seeds with a value")
