"""Reference panels: the members against which every encoder is scored.

What lives here: the panel with its values and anchors, how it is formed from complete candidates, its file form, and
what differs between a panel and today's conditions or another panel. What stays out: the score of an encoder against
a panel (``scores.crs``), and where panel files lie (``storage``).
Source: protocol page, section 7. That members are anchors but controls never are, and that incomplete candidates are
left out by name instead of refusing the freeze, is ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import polars as pl
from pydantic import BaseModel, ConfigDict, FiniteFloat

from crsbench_assets.config.errors import ConfigError, reason_of
from crsbench_assets.config.hashes import content_hash
from crsbench_assets.config.ids import PROVISIONAL as PROVISIONAL
from crsbench_assets.config.ids import check_id
from crsbench_assets.config.protocol import AXES, ScoreRules
from crsbench_assets.config.settings import LabelPolicy
from crsbench_assets.scores.profile import CellValues, RobustnessVariant, values_by_cell
from crsbench_assets.tables.scores import SCORE_TABLES

_HASH_DIGITS = 12
_NAME_LENGTH = 48 - 1 - _HASH_DIGITS  # so that the panel id, with "-" and the digits, is a valid id itself
_PER_DATASET = ("caps", "test_set_hash", "feasible_fractions")


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PanelConditions(_Frozen):
    """Everything but the values that decides whether two scores may be compared."""

    protocol_id: str
    """As it stands in rows: id and first 12 digits of the hash."""
    protocol_hash: str
    arm: str
    label_policy: LabelPolicy
    robustness_variant: RobustnessVariant
    canonical_px: int
    """Shortest side of the canonical image, in pixels."""
    caps: dict[str, int]
    """Dataset id -> largest number of images used; absent where uncapped."""
    test_set_hash: dict[str, str]
    """Dataset id -> hash of its test images."""
    feasible_fractions: dict[str, tuple[float, ...]]
    """Dataset id -> label fractions that can be drawn."""
    code_versions: dict[str, int]
    """Table of metrics or axes -> version of the code that made it."""

    def of_datasets(self, datasets: Iterable[str]) -> PanelConditions:
        """Return the conditions without those of any other dataset: it may come and go."""
        kept = set(datasets)
        return self.model_copy(
            update={name: {k: v for k, v in getattr(self, name).items() if k in kept} for name in _PER_DATASET}
        )


class Anchor(_Frozen):
    """Range of the members on one axis of one dataset; of equal members, the first by id holds it."""

    low: FiniteFloat
    high: FiniteFloat
    low_encoder_id: str
    high_encoder_id: str


class Panel(_Frozen):
    """A reference panel; equal content gives an equal :attr:`panel_id`."""

    name: str
    conditions: PanelConditions
    members: tuple[str, ...]
    """Sorted ids."""
    values: dict[str, dict[str, dict[str, FiniteFloat]]]
    """Dataset id -> member that has the cell -> axis -> value."""
    anchors: dict[str, dict[str, Anchor]]
    """Dataset id -> axis -> anchor."""

    @property
    def datasets(self) -> tuple[str, ...]:
        """Sorted ids of the datasets that at least one member has a cell on."""
        return tuple(sorted(self.values))

    @cached_property
    def hash(self) -> str:
        """Hash of the whole content."""
        return content_hash(self.model_dump(mode="json"))

    @property
    def panel_id(self) -> str:
        """``provisional``, or the name and the first 12 digits of the hash."""
        return PROVISIONAL if self.name == PROVISIONAL else f"{self.name}-{self.hash[:_HASH_DIGITS]}"

    def to_json(self) -> str:
        """Return the text of the panel's file; every float comes back with the same bits."""
        return json.dumps({"panel_id": self.panel_id, **self.model_dump(mode="json")}, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Panel:
        """Return the panel of a file.

        Raises:
            ConfigError: the text is no panel, or its content does not hash to the id it carries.
        """
        try:
            content = json.loads(text)
            panel_id = content.pop("panel_id")
            panel = cls.model_validate(content)
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"The file is no reference panel ({reason_of(error)}). Expected what `crsbench panel freeze` wrote; "
                "restore it from a copy or freeze the panel again under another name."
            ) from error
        if panel.panel_id != panel_id:
            raise ConfigError(
                f"The panel {panel_id!r} was changed after it was frozen: its content has the id {panel.panel_id!r}. "
                "Restore the file from a copy; a changed panel is frozen under a new id."
            )
        return panel


def freeze(
    name: str, values: pl.DataFrame, encoders: pl.DataFrame, conditions: PanelConditions
) -> tuple[Panel, tuple[str, ...]]:
    """Return the panel of all complete candidates, and the candidates that were left out because incomplete.

    Complete: every dataset the candidate has a cell on, and at least one, has all four axes. Controls are never
    members and are not listed. Conditions of datasets without a member are left out of the panel.

    Args:
        name: an id of at most 35 characters, not ``provisional``.
        values: axis values of all cells, as ``scores.profile.axis_values`` selects them for the variant in
            ``conditions``.
        encoders: active encoders (encoder_id, role, dataset_ids).
        conditions: as they stand now.

    Raises:
        ConfigError: a bad name, no complete candidate, or a dataset without ``test_set_hash`` or fractions.
    """
    check_id(name, "panel")
    if name == PROVISIONAL or len(name) > _NAME_LENGTH:
        raise ConfigError(
            f"A panel cannot be named {name!r}: expected at most {_NAME_LENGTH} characters, and "
            f"{PROVISIONAL!r} is the cohort before a freeze. Choose another name."
        )
    panel, incomplete = _form(name, values, encoders, conditions)
    if panel is None:
        raise ConfigError(
            f"No candidate is complete, so panel {name!r} would have no member (incomplete: "
            f"{', '.join(incomplete) or 'none active'}). `crsbench status` shows what is missing; compute it first."
        )
    return panel, incomplete


def provisional_panel(
    values: pl.DataFrame, encoders: pl.DataFrame, conditions: PanelConditions
) -> tuple[Panel | None, tuple[str, ...]]:
    """Return the cohort used until a panel is frozen, and the incomplete candidates that are not in it.

    As :func:`freeze`, with the id ``provisional``; None where no candidate is complete (reason ``no_panel``).

    Raises:
        ConfigError: a dataset without ``test_set_hash`` or fractions.
    """
    return _form(PROVISIONAL, values, encoders, conditions)


def mismatches(panel: Panel, current: PanelConditions) -> list[str]:
    """Return the dotted names of the conditions that differ from the panel's, sorted; empty if it may be used.

    Datasets that the panel does not have are ignored: their cells have ``no_anchor``. A dataset of the panel that is
    gone differs.
    """
    frozen = _leaves(panel.conditions.model_dump(mode="json"))
    today = _leaves(current.of_datasets(panel.datasets).model_dump(mode="json"))
    return sorted(name for name in frozen.keys() | today.keys() if frozen.get(name) != today.get(name))


def diff(first: Panel, second: Panel) -> pl.DataFrame:
    """Return what differs between two panels.

    Returns:
        One row per dotted field that differs, sorted, with its JSON text in both panels (``first``, ``second``; NULL
        where a panel lacks it). Empty for equal panels.
    """
    left, right = (
        _leaves({**panel.model_dump(mode="json"), "members": dict.fromkeys(panel.members, True)})
        for panel in (first, second)
    )
    rows = [(name, left.get(name), right.get(name)) for name in sorted(left.keys() | right.keys())]
    schema = {"field": pl.String, "first": pl.String, "second": pl.String}
    return pl.DataFrame([row for row in rows if row[1] != row[2]], schema=schema, orient="row")


def reference_panels(panel: Panel, rules: ScoreRules) -> pl.DataFrame:
    """Return the rows of the table ``reference_panels``: one per dataset and axis, in this order."""
    (spec,) = (spec for spec in SCORE_TABLES if spec.name == "reference_panels")
    rows = []
    for dataset in panel.datasets:
        for axis in AXES:
            anchor = panel.anchors[dataset][axis]
            rows.append(
                {
                    "protocol_id": panel.conditions.protocol_id,
                    "label_policy": panel.conditions.label_policy,
                    "panel_id": panel.panel_id,
                    "panel_name": panel.name,
                    "dataset_id": dataset,
                    "axis": axis,
                    "anchor_low": anchor.low,
                    "anchor_high": anchor.high,
                    "low_encoder_id": anchor.low_encoder_id,
                    "high_encoder_id": anchor.high_encoder_id,
                    "n_members": len(panel.values[dataset]),
                    "is_degenerate": anchor.high - anchor.low <= rules.degenerate_range,
                    "robustness_variant": panel.conditions.robustness_variant,
                }
            )
    return pl.DataFrame(rows, schema=spec.polars_schema())


def _form(
    name: str, values: pl.DataFrame, encoders: pl.DataFrame, conditions: PanelConditions
) -> tuple[Panel | None, tuple[str, ...]]:
    cells = values_by_cell(values)
    candidates = {
        row["encoder_id"]: sorted(row["dataset_ids"])
        for row in encoders.sort("encoder_id").iter_rows(named=True)
        if row["role"] == "candidate"
    }
    members = {encoder: ids for encoder, ids in candidates.items() if _is_complete(cells, encoder, ids)}
    incomplete = tuple(encoder for encoder in candidates if encoder not in members)
    if not members:
        return None, incomplete
    of_members: dict[str, dict[str, dict[str, float]]] = {}
    for dataset in sorted({dataset for ids in members.values() for dataset in ids}):
        of_members[dataset] = {e: dict(cells[e, dataset]) for e, ids in members.items() if dataset in ids}
    for field in ("test_set_hash", "feasible_fractions"):
        lacking = sorted(of_members.keys() - getattr(conditions, field).keys())
        if lacking:
            raise ConfigError(
                f"The panel would have cells on {', '.join(lacking)}, but `{field}` of these datasets is unknown: "
                "expected one for every dataset with results. Compute the datasets' splits first."
            )
    panel = Panel(
        name=name,
        conditions=conditions.of_datasets(of_members),
        members=tuple(members),
        values=of_members,
        anchors={d: {axis: _anchor(of_dataset, axis) for axis in AXES} for d, of_dataset in of_members.items()},
    )
    return panel, incomplete


def _is_complete(cells: CellValues, encoder: str, datasets: Iterable[str]) -> bool:
    defined = [cells.get((encoder, dataset), {}).keys() >= set(AXES) for dataset in datasets]
    return bool(defined) and all(defined)


def _anchor(of_dataset: Mapping[str, Mapping[str, float]], axis: str) -> Anchor:
    by_id = sorted(of_dataset)
    low, high = (pick(by_id, key=lambda member: of_dataset[member][axis]) for pick in (min, max))
    return Anchor(low=of_dataset[low][axis], high=of_dataset[high][axis], low_encoder_id=low, high_encoder_id=high)


def _leaves(value: Any, prefix: str = "") -> dict[str, str]:
    """Return dotted name -> JSON text of every value that is no mapping."""
    if not isinstance(value, dict):
        return {prefix: json.dumps(value)}
    leaves: dict[str, str] = {}
    for key, inner in value.items():
        leaves |= _leaves(inner, f"{prefix}.{key}" if prefix else key)
    return leaves
