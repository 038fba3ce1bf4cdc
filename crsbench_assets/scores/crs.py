"""The Clinical Reliability Score of encoders and cells against one reference panel.

What lives here: profiles from cells, the score of every active encoder and of every cell, and why one has none.
What stays out: the parts as functions (``scores.components``), the panel (``scores.panel``), the order of the scored
encoders (``scores.ranks``).
Source: protocol page, section 7. A score depends on the encoder's own values and the panel alone, and sums are
correctly rounded, so no other encoder can move a bit of it.

If i dominates j (on x_raw) and also x_i >= x_j on all axes, then CRS_i >= CRS_j, strictly where one of them is a member
as it was frozen. Between members, and on a single dataset, the second condition follows from the first. Beyond the
anchors it need not: an encoder far above the best on one dataset and far below the worst on another has a larger mean
of raw positions than of clipped ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.hashes import content_hash
from crsbench_assets.config.protocol import AXES, Protocol, ScoreRules
from crsbench_assets.scores.components import (
    balance,
    clinical_reliability_score,
    pareto_score,
    worst_axis,
    z_scores,
)
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.profile import values_by_cell
from crsbench_assets.tables.scores import SCORE_TABLES

_SPECS = {spec.name: spec for spec in SCORE_TABLES}


def crs_scores(
    values: pl.DataFrame, encoders: pl.DataFrame, panel: Panel, protocol: Protocol, *, code_version: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the scores of all active encoders and of all their cells against a panel.

    An encoder's profile is the mean over its datasets of the panel (``n_datasets``). Status and reason are
    ``incomplete`` where one of these cells lacks an axis, ``no_anchor`` where the encoder has no dataset of the
    panel. Members are compared by the values they were frozen with; an encoder's own profile always comes from
    ``values``, so a member that was recomputed is scored as it is now.

    Args:
        values: axis values of all cells, selected with ``panel.conditions.robustness_variant``.
        encoders: active encoders (encoder_id, role, dataset_ids); each gets a row.
        panel: frozen or provisional.
        protocol: the one the panel was formed under.
        code_version: of the table ``crs_scores``; part of each row's ``inputs_hash``.

    Returns:
        Rows of ``crs_scores``, sorted by encoder, and of ``cell_scores``: four per cell an encoder has, sorted by
        encoder and dataset, axes in order. Cells of datasets without anchors have ``no_anchor``; a cell without all
        axes is ``incomplete`` and each undefined axis keeps its own reason; ``degenerate_axis`` marks a 0.5.

    Raises:
        ConfigError: the panel belongs to another protocol.
        ValueError: a NaN, or two values for one cell and axis.
    """
    if panel.conditions.protocol_hash != protocol.hash:
        raise ConfigError(
            f"Panel {panel.panel_id} was formed under {panel.conditions.protocol_id}, and scores were asked for "
            f"under {protocol.label}: rows of two protocols are never mixed. Freeze a panel under "
            "this protocol."
        )
    cells = values_by_cell(values)
    reasons = {
        (row[0], row[1], row[2]): row[3] for row in values.select("encoder_id", "dataset_id", "axis", "reason").rows()
    }
    reference = _Reference(panel, protocol.scores)
    score_rows, cell_rows = [], []
    for encoder in encoders.sort("encoder_id").iter_rows(named=True):
        encoder_id, applicable = encoder["encoder_id"], sorted(encoder["dataset_ids"])
        own = {dataset: cells.get((encoder_id, dataset), {}) for dataset in applicable}
        counting = {dataset: of_cell for dataset, of_cell in own.items() if dataset in panel.values}
        inputs = {
            "code_version": code_version,
            "panel": panel.hash,
            "panel_id": panel.panel_id,
            "protocol": protocol.hash,
            "values": counting,
        }
        score_rows.append(
            {
                "encoder_id": encoder_id,
                "panel_id": panel.panel_id,
                **reference.encoder_score(encoder_id, counting),
                "n_datasets": len(counting),
                "is_member": encoder_id in panel.members,
                "inputs_hash": content_hash(inputs),
            }
        )
        for dataset, of_cell in own.items():
            of_axes = {axis: reasons.get((encoder_id, dataset, axis)) for axis in AXES}
            for row in reference.cell_score(dataset, of_cell, of_axes):
                cell_rows.append({"encoder_id": encoder_id, "dataset_id": dataset, "panel_id": panel.panel_id, **row})
    return (
        _SPECS["crs_scores"].computed(score_rows),
        _SPECS["cell_scores"].computed(cell_rows),
    )


def unscored(encoders: pl.DataFrame, panel_id: str, reason: str) -> pl.DataFrame:
    """Return rows of ``crs_scores`` without a score, because the panel cannot be used.

    Args:
        encoders: active encoders (encoder_id, role, dataset_ids); each gets a row.
        panel_id: ``provisional``, or the frozen panel that was refused.
        reason: ``no_panel`` or ``panel_mismatch``; also the status.
    """
    rows = [
        {
            "encoder_id": encoder_id,
            "panel_id": panel_id,
            "n_datasets": 0,
            "is_member": False,
            "status": reason,
            "reason": reason,
            "inputs_hash": content_hash({"panel_id": panel_id, "reason": reason}),
        }
        for encoder_id in encoders.get_column("encoder_id").sort()
    ]
    return _SPECS["crs_scores"].computed(rows)


class _Reference:
    """The panel in arrays: anchors (k,) and members' positions (m, k) per dataset, and their profiles (m, k)."""

    def __init__(self, panel: Panel, rules: ScoreRules) -> None:
        self._panel = panel
        self._rules = rules
        self._axis_weights = [rules.axis_weights[axis] for axis in AXES]
        self._component_weights = [rules.dominance_weight, rules.balance_weight, rules.worst_weight]
        self._z_raw = {
            dataset: {member: self._position(dataset, of_cell) for member, of_cell in sorted(of_members.items())}
            for dataset, of_members in panel.values.items()
        }
        profiles = {
            member: _profile([of_members[member] for of_members in self._z_raw.values() if member in of_members])
            for member in panel.members
        }
        self._members_raw = np.array([x_raw for x_raw, _ in profiles.values()])
        self._member_crs = {m: self._parts(x_raw, x, self._members_raw)["crs"] for m, (x_raw, x) in profiles.items()}

    def encoder_score(self, encoder_id: str, cells: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
        """Return score, parts, profile, rank, status and reason from an encoder's cells on datasets of the panel."""
        if not cells:
            return {"status": "no_anchor", "reason": "no_anchor"}
        if not all(of_cell.keys() >= set(AXES) for of_cell in cells.values()):
            return {"status": "incomplete", "reason": "incomplete"}
        x_raw, x = _profile([self._position(dataset, of_cell) for dataset, of_cell in cells.items()])
        parts = self._parts(x_raw, x, self._members_raw)
        better = [m for m, crs in self._member_crs.items() if m != encoder_id and crs > parts["crs"]]
        return {
            **parts,
            **{f"x_{axis}": float(x[k]) for k, axis in enumerate(AXES)},
            "rank_panel": 1 + len(better),
            "status": "ok",
            "reason": None,
        }

    def cell_score(
        self, dataset: str, values: Mapping[str, float], reasons: Mapping[str, str | None]
    ) -> list[dict[str, Any]]:
        """Return the four rows of a cell, without its ids; P is taken among the members that have the cell."""
        if dataset not in self._z_raw:
            return [{"axis": axis, "status": "no_anchor", "reason": "no_anchor"} for axis in AXES]
        is_complete = values.keys() >= set(AXES)
        parts: dict[str, float] = {}
        if is_complete:
            z_raw = self._position(dataset, values)
            parts = self._parts(z_raw, _clipped(z_raw), np.array(list(self._z_raw[dataset].values())))
        rows = []
        for axis in AXES:
            row: dict[str, Any] = {"axis": axis, "status": "ok" if is_complete else "incomplete", **parts}
            if axis in values:
                position = self._positions(dataset, [axis], [values[axis]])
                is_degenerate = self._range(dataset, axis) <= self._rules.degenerate_range
                row |= {"z_raw": float(position[0]), "z": float(_clipped(position)[0])}
                row["reason"] = "incomplete" if not is_complete else "degenerate_axis" if is_degenerate else None
            else:
                row["reason"] = reasons[axis] or "incomplete"
            rows.append(row)
        return rows

    def _range(self, dataset: str, axis: str) -> float:
        anchor = self._panel.anchors[dataset][axis]
        return anchor.high - anchor.low

    def _position(self, dataset: str, of_cell: Mapping[str, float]) -> NDArray[np.float64]:
        return self._positions(dataset, list(AXES), [of_cell[axis] for axis in AXES])

    def _positions(self, dataset: str, axes: list[str], values: list[float]) -> NDArray[np.float64]:
        anchors = [self._panel.anchors[dataset][axis] for axis in axes]
        low, high = [anchor.low for anchor in anchors], [anchor.high for anchor in anchors]
        return z_scores(values, low, high, degenerate_range=self._rules.degenerate_range)

    def _parts(
        self, x_raw: NDArray[np.float64], x: NDArray[np.float64], members_raw: NDArray[np.float64]
    ) -> dict[str, float]:
        pareto, balanced, worst = pareto_score(x_raw, members_raw), balance(x, self._axis_weights), worst_axis(x)
        crs = clinical_reliability_score(pareto, balanced, worst, self._component_weights)
        return {"crs": float(crs), "pareto": float(pareto), "balance": float(balanced), "worst": float(worst)}


def _profile(positions: list[NDArray[np.float64]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return x_raw and x (k,): means over datasets of the positions, and of the clipped ones."""

    def mean(rows: list[NDArray[np.float64]]) -> NDArray[np.float64]:
        # fsum rounds once, so the order of the datasets moves no bit.
        return np.array([math.fsum(column) / len(rows) for column in zip(*rows, strict=True)])

    return mean(positions), mean([_clipped(row) for row in positions])


def _clipped(z_raw: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(z_raw, 0.0, 1.0)
