"""Tables of scores, and what publication adds.

What lives here: their shapes. What stays out: the score itself (``scores``). Source: protocol page, section 7.
"""

from __future__ import annotations

from crsbench_assets.config.protocol import AXES
from crsbench_assets.tables.columns import (
    DATASET_ID,
    ENCODER_ID,
    INPUTS_HASH,
    PANEL_ID,
    REASON,
    RULES,
    STATUS,
    count,
    metric,
)
from crsbench_assets.tables.schema import ColumnSpec, TableSpec

_AXIS = ColumnSpec("axis", "text", "One of the four axes")
_PROFILE = tuple(
    metric(f"x_{axis}", f"Clipped profile on {axis}: 0 is the panel's worst, 1 its best", 0, 1) for axis in AXES
)
_PARTS = (
    metric("crs", "Clinical Reliability Score; higher is better", 0, 1),
    metric("pareto", "Dominance against the panel's members, 0.5 is neutral; higher is better", 0, 1),
    metric("balance", "Closeness to the ideal profile; higher is better", 0, 1),
    metric("worst", "Worst axis of the profile; higher is better", 0, 1),
)

SCORE_TABLES = (
    TableSpec(
        "reference_panels",
        "One row per panel, dataset and axis: the anchors and who holds them.",
        "whole",
        ("panel_id", "dataset_id", "axis"),
        (
            *RULES,
            PANEL_ID,
            ColumnSpec("panel_name", "text", "Name it was frozen under"),
            DATASET_ID,
            _AXIS,
            ColumnSpec("anchor_low", "real", "Smallest value of a member"),
            ColumnSpec("anchor_high", "real", "Largest value of a member"),
            ColumnSpec("low_encoder_id", "text", "Member that holds the smallest"),
            ColumnSpec("high_encoder_id", "text", "Member that holds the largest"),
            count("n_members", "Members that have the cell"),
            ColumnSpec("is_degenerate", "boolean", "All members agree, so the axis is set to 0.5"),
            ColumnSpec("robustness_variant", "text", "`shift`, or `corruption_only` without the shift target"),
        ),
        schema_version=2,
    ),
    TableSpec(
        "crs_scores",
        "One row per encoder and panel: the score and its parts. Without a result: status and reason.",
        "whole",
        ("encoder_id", "panel_id"),
        (
            *RULES,
            ENCODER_ID,
            PANEL_ID,
            *_PARTS,
            *_PROFILE,
            count("rank_panel", "Rank among the members and itself; no other candidate moves it", nullable=True),
            count("n_datasets", "Datasets of the panel that count for this encoder"),
            ColumnSpec("is_member", "boolean", "Whether the panel was frozen with it"),
            STATUS,
            REASON,
            INPUTS_HASH,
        ),
        schema_version=2,
    ),
    TableSpec(
        "cell_scores",
        "One row per cell, panel and axis; the score of the cell stands in each of its four rows.",
        "whole",
        ("encoder_id", "dataset_id", "panel_id", "axis"),
        (
            *RULES,
            ENCODER_ID,
            DATASET_ID,
            PANEL_ID,
            _AXIS,
            metric("z_raw", "Position between the anchors, unclipped"),
            metric("z", "Position between the anchors, clipped", 0, 1),
            *_PARTS,
            STATUS,
            REASON,
        ),
        schema_version=2,
    ),
    TableSpec(
        "ranks",
        "One row per encoder and panel: its place among all scored candidates.",
        "whole",
        ("encoder_id", "panel_id"),
        (
            *RULES,
            ENCODER_ID,
            PANEL_ID,
            count("rank", "Competition rank on the unrounded score; 1 is best", nullable=True),
            count("rank_lo", "Best rank of the 95 % interval under test and seed uncertainty", nullable=True),
            count("rank_hi", "Worst rank of that interval", nullable=True),
            count("tie_group", "Encoders of one group are not separable", nullable=True),
            metric("p_best", "Probability of rank 1 under test and seed uncertainty", 0, 1),
            count("n_ranked", "Candidates that were ranked"),
            REASON,
        ),
        code_version=2,
        schema_version=2,
    ),
)

PUBLICATION_TABLES = (
    TableSpec(
        "cells",
        "One row per cell of the grid: what the planner found when the warehouse was published.",
        "publication",
        ("encoder_id", "dataset_id"),
        (
            ENCODER_ID,
            DATASET_ID,
            ColumnSpec("status", "text", "ok, missing, stale, running, failed, not_applicable or retired"),
            ColumnSpec("reason", "text", "Why it is not ok", nullable=True),
        ),
    ),
    TableSpec(
        "partitions",
        "One row per partition of the lake that this warehouse was built from: its provenance.",
        "publication",
        ("arm", "table_name", "encoder_id", "dataset_id"),
        (
            ColumnSpec("arm", "text", "`main` is the frozen arm"),
            ColumnSpec("table_name", "text", "Table"),
            ColumnSpec("encoder_id", "text", "Encoder; empty where the table has none"),
            ColumnSpec("dataset_id", "text", "Dataset; empty where the table has none"),
            STATUS,
            REASON,
            count("n_rows", "Rows"),
            count("n_bytes", "Bytes on disk"),
            ColumnSpec("seconds", "real", "Seconds of computation", low=0),
            ColumnSpec("host", "text", "Machine"),
            ColumnSpec("run_id", "text", "Run", nullable=True),
            ColumnSpec("written_at", "text", "UTC time, ISO 8601"),
            ColumnSpec("code_version", "integer", "Version of the code", low=1),
            ColumnSpec("schema_version", "integer", "Version of the shape", low=1),
            ColumnSpec("inputs_hash", "text", "Hash of everything it was computed from"),
            ColumnSpec("content_hash", "text", "Hash of its rows"),
        ),
    ),
)
