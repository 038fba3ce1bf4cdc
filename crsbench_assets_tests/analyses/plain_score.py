"""The score in plain Python, written from the protocol page, section 7, and random panels to compare it on."""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from crsbench_assets.config.protocol import AXES
from crsbench_assets.config.registry import load_protocol
from crsbench_assets.scores.panel import Panel, provisional_panel
from crsbench_assets_tests.scores.conftest import Cohort, conditions_of, encoders_frame, values_frame

PROTOCOL = load_protocol("crs-1", Path())
RULES = PROTOCOL.scores

Cells = Mapping[str, Mapping[str, Sequence[float]]]
"""Encoder -> dataset -> its four axis values."""


def panel_from(cells: Cells) -> Panel:
    """Return the provisional panel of some encoders; its id does not hang on their values, so draws are the same."""
    cohort: Cohort = {encoder: {d: tuple(values) for d, values in own.items()} for encoder, own in cells.items()}
    datasets = {dataset for own in cells.values() for dataset in own}
    conditions = conditions_of(PROTOCOL)
    conditions = conditions.model_copy(
        update={
            "test_set_hash": dict.fromkeys(datasets, "0"),
            "feasible_fractions": dict.fromkeys(datasets, (0.1, 1.0)),
        }
    )
    panel, incomplete = provisional_panel(values_frame(cohort), encoders_frame(cohort), conditions)
    assert panel is not None
    assert not incomplete
    return panel


def random_cells(seed: int, n_encoders: int | None = None, n_datasets: int = 3) -> dict[str, dict[str, list[float]]]:
    """Return encoders with a cell on most datasets; coarse values, so that ties and dominance are frequent."""
    draw = random.Random(seed)
    datasets = [f"d{i}" for i in range(n_datasets)]
    cells = {}
    for i in range(n_encoders or draw.randint(2, 12)):
        own = [dataset for dataset in datasets if draw.random() < 0.85] or datasets[:1]
        quality = draw.random()
        cells[f"e{i:02}"] = {d: [round(quality + draw.random(), 2) for _ in AXES] for d in own}
    return cells


def plain_anchors(cells: Cells) -> dict[tuple[str, int], tuple[float, float]]:
    anchors = {}
    for dataset in sorted({dataset for own in cells.values() for dataset in own}):
        for k in range(4):
            column = [own[dataset][k] for own in cells.values() if dataset in own]
            anchors[dataset, k] = (min(column), max(column))
    return anchors


def plain_crs(
    cells: Cells,
    anchors: Mapping[tuple[str, int], tuple[float, float]] | None = None,
    members: Collection[str] | None = None,
    axis_weights: Sequence[float] = (0.25, 0.25, 0.25, 0.25),
    component_weights: Sequence[float] = (0.5, 0.3, 0.2),
) -> dict[str, float]:
    """Return the score of every encoder; anchors, and whom P compares with, come from the encoders themselves."""
    anchors = plain_anchors(cells) if anchors is None else anchors
    members = list(cells) if members is None else list(members)
    raw: dict[str, list[float]] = {}
    clipped: dict[str, list[float]] = {}
    for encoder, own in cells.items():
        raw[encoder], clipped[encoder] = [], []
        for k in range(4):
            z = []
            for dataset in sorted(own):
                low, high = anchors[dataset, k]
                z.append(0.5 if high - low <= 1e-12 else (own[dataset][k] - low) / (high - low))
            raw[encoder].append(sum(z) / len(z))
            clipped[encoder].append(sum(min(max(value, 0.0), 1.0) for value in z) / len(z))
    crs = {}
    for encoder in cells:
        n_won = sum(plain_dominates(raw[encoder], raw[member]) for member in members)
        n_lost = sum(plain_dominates(raw[member], raw[encoder]) for member in members)
        pareto = (1 + (n_won - n_lost) / len(members)) / 2
        x = clipped[encoder]
        balance = 1 - math.sqrt(sum(weight * (1 - value) ** 2 for weight, value in zip(axis_weights, x, strict=True)))
        a, b, c = component_weights
        crs[encoder] = a * pareto + b * balance + c * min(x)
    return crs


def plain_dominates(first: Sequence[float], second: Sequence[float]) -> bool:
    pairs = list(zip(first, second, strict=True))
    return all(one >= other for one, other in pairs) and any(one > other for one, other in pairs)


def plain_tau_b(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Return tau-b by counting pairs; scores within 1e-12 tie, as plain sums round differently."""
    n_concordant = n_discordant = n_x = n_y = 0
    for i in range(len(x)):
        for j in range(i):
            dx, dy = (0 if abs(v[i] - v[j]) < 1e-12 else math.copysign(1, v[i] - v[j]) for v in (x, y))
            n_concordant += dx * dy > 0
            n_discordant += dx * dy < 0
            n_x += dx != 0
            n_y += dy != 0
    return None if not (n_x and n_y) else (n_concordant - n_discordant) / math.sqrt(n_x * n_y)


def plain_overlap(x: Sequence[float], y: Sequence[float], k: int) -> float | None:
    """Return the overlap of two top k, places shared among those that tie for them."""
    if len(x) <= k:
        return None

    def shares(scores: Sequence[float]) -> list[float]:
        result = []
        for score in scores:
            n_better = sum(other > score + 1e-12 for other in scores)
            n_tied = sum(abs(other - score) <= 1e-12 for other in scores)
            result.append(min(max((k - n_better) / n_tied, 0.0), 1.0))
        return result

    return sum(min(a, b) for a, b in zip(shares(x), shares(y), strict=True)) / k
