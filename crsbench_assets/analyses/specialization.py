"""Whether pretraining on a kind of image pays on that kind of image.

What lives here: the rows of ``specialization``. What stays out: the position between the anchors
(``scores.components``), and what a card says of an encoder (``config.cards``).
Source: protocol page, section 8. Positions, not values of axes, are compared, because datasets differ in difficulty.

A cell is in-domain where the modality of the dataset is among those that the encoder's pretraining was made for
(``domains`` of its card). That is not exposure: an encoder for fundus photographs need not have seen this dataset's,
and one trained on everything has seen some and is made for none. The generalist parent is the generalist member of the
same family: its weights or its recipe are what the medical encoder started from. Where a family has several, each is a
reference of its own. An encoder and its parent share most of their pretraining, so their difference is nearer to the
effect of specialization than that of two categories; it is still that of one pair.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from crsbench_assets.analyses.population import GENERALIST, MEDICAL, Cell, analysis_frame, member_cells
from crsbench_assets.config.protocol import AXES, ScoreRules
from crsbench_assets.scores.components import z_scores
from crsbench_assets.scores.panel import Panel

CATEGORIES = (GENERALIST, *MEDICAL["medical"])


def specialization(panel: Panel, encoders: pl.DataFrame, datasets: pl.DataFrame, rules: ScoreRules) -> pl.DataFrame:
    """Return a panel's members in-domain against out-of-domain, and against the generalist of their family.

    Means over cells of the position between the panel's anchors, in [0, 1], by the values that members were frozen
    with; the difference is in [-1, 1], positive where specialization pays.

    Args:
        panel: frozen or provisional.
        encoders: encoder_id, category, family, domains (JSON list of modalities, ``[]`` for none).
        datasets: dataset_id, modality.
        rules: the range that counts as none.

    Returns:
        Four rows, one per axis, for every category against its own cells out of domain, and for every medically
        pretrained member against each generalist member of its family, on the in-domain datasets that both have.
        ``empty_group`` where one side has no cell, as for generalists; ``no_parent`` where no generalist member is of
        the family. Where a member has no card any more, the rows of the categories alone, ``incomplete``. Numbers that
        rest on an axis on which all members of a dataset agree stand, and say
        ``degenerate_axis``.
    """
    modality = dict(datasets.select("dataset_id", "modality").iter_rows())
    cards = {row["encoder_id"]: row for row in encoders.iter_rows(named=True) if row["encoder_id"] in panel.members}
    category_of = {member: card["category"] for member, card in cards.items()}
    domains = {member: json.loads(card["domains"]) for member, card in cards.items()}
    if cards.keys() != set(panel.members):
        # whose category is unknown may belong to any mean
        lacking = {
            "n_in_domain": 0,
            "n_reference": 0,
            "encoder_id": "",
            "parent_encoder_id": "",
            "reason": "incomplete",
        }
        keys = [{"category": category, "axis": axis} for category in CATEGORIES for axis in AXES]
        rows = [{"panel_id": panel.panel_id, "reference": "out_of_domain"} | lacking | key for key in keys]
        return analysis_frame("specialization", rows)
    cells = member_cells(panel)
    is_in_domain = {(e, d): modality.get(d) in domains.get(e, ()) for e, d in cells}
    positions = _Positions(panel, rules)
    rows = []
    for category in CATEGORIES:
        own = [cell for cell in cells if category_of.get(cell[0]) == category]
        key = {"reference": "out_of_domain", "category": category, "encoder_id": "", "parent_encoder_id": ""}
        inside, outside = ([cell for cell in own if is_in_domain[cell] is wanted] for wanted in (True, False))
        rows += [key | row for row in positions.comparison(inside, outside, "empty_group")]
    for member in panel.members:
        if category_of.get(member) not in MEDICAL["medical"]:
            continue
        family = cards[member]["family"]
        parents = [p for p in panel.members if category_of.get(p) == GENERALIST and cards[p]["family"] == family]
        for parent in parents if parents and family else [""]:
            in_domain = [d for d in panel.datasets if is_in_domain.get((member, d))]
            shared = [d for d in in_domain if not parent or parent in panel.values[d]]
            inside = [(member, d) for d in shared]
            outside = [(parent, d) for d in shared if parent]
            key = {
                "reference": "generalist_parent",
                "category": category_of[member],
                "encoder_id": member,
                "parent_encoder_id": parent,
            }
            absence = "empty_group" if parent else "no_parent"
            rows += [key | row for row in positions.comparison(inside, outside, absence)]
    return analysis_frame("specialization", [{"panel_id": panel.panel_id} | row for row in rows])


class _Positions:
    """Positions between the anchors of all cells of a panel's members."""

    def __init__(self, panel: Panel, rules: ScoreRules) -> None:
        self._z: dict[tuple[str, str, str], float] = {}
        self._degenerate: set[tuple[str, str]] = set()
        for dataset, of_members in panel.values.items():
            for axis in AXES:
                anchor = panel.anchors[dataset][axis]
                if anchor.high - anchor.low <= rules.degenerate_range:
                    self._degenerate.add((dataset, axis))
                for member, of_cell in of_members.items():
                    z_raw = z_scores(of_cell[axis], anchor.low, anchor.high, degenerate_range=rules.degenerate_range)
                    self._z[member, dataset, axis] = float(np.clip(z_raw, 0.0, 1.0))

    def comparison(self, inside: Sequence[Cell], outside: Sequence[Cell], absence: str) -> list[dict[str, Any]]:
        """Return the means of two groups of cells on every axis; ``absence`` is the reason where one is empty."""
        return [self._axis(axis, inside, outside, absence) for axis in AXES]

    def _axis(self, axis: str, inside: Sequence[Cell], outside: Sequence[Cell], absence: str) -> dict[str, Any]:
        means = [
            statistics.mean(self._z[(*cell, axis)] for cell in cells) if cells else None for cells in (inside, outside)
        ]
        row: dict[str, Any] = {
            "axis": axis,
            "n_in_domain": len(inside),
            "n_reference": len(outside),
            "mean_in_domain": means[0],
            "mean_reference": means[1],
        }
        if means[0] is None or means[1] is None:
            return row | {"reason": absence}
        is_degenerate = any((dataset, axis) in self._degenerate for _, dataset in (*inside, *outside))
        return row | {"difference": means[0] - means[1], "reason": "degenerate_axis" if is_degenerate else None}
