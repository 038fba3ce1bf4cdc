"""Whether medically pretrained encoders keep more at another institution.

What lives here: the rows of ``institutional_shift_test``. What stays out: the numbers of each encoder
(``institutional_shift``) and the tests as functions (``inference``).
Source: protocol page, section 8; Welch (1947), doi:10.1093/biomet/34.1-2.28; Hedges (1981),
doi:10.3102/10769986006002107.

Encoders are the units, and those of one family share weights or a recipe, so their number overstates what is known.
Where ``unit`` is ``family`` a unit is the mean of a group's encoders of one family: of all ways to let one stand for a
family it is the one that neither names nor results decide. A family with encoders in both groups (a generalist and
the medical encoder made from it) has a unit in each. Several medical encoders saw the shift target in pretraining
(``institutional_shift.shift_exposure``): the difference of the groups is not one of domain knowledge alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from crsbench_assets.analyses.inference import hedges_g, permutation_p, welch_test
from crsbench_assets.analyses.population import GENERALIST, MEDICAL, analysis_frame
from crsbench_assets.scores.panel import Panel

QUANTITIES = ("shift_macro_auroc", "relative_gap")
UNITS = ("encoder", "family")


def institutional_shift_test(shifts: pl.DataFrame, encoders: pl.DataFrame, panel: Panel) -> pl.DataFrame:
    """Return the tests of a panel's medically pretrained against its generalist members.

    Two-sided p of Welch's test, Hedges' g and the permutation test over all assignments to the two groups.

    Args:
        shifts: rows of the table ``institutional_shift`` of any encoders; only the members' count.
        encoders: encoder_id, category, family; a member without category is in neither group, one without family is
            a family of its own.
        panel: frozen or provisional.

    Returns:
        Per dataset of the panel in ``shifts``: quantity (shift_macro_auroc, relative_gap) by unit (encoder, family).
        Everything is NULL where a member of a group has no value, or a member no card any more (``incomplete``);
        differences and tests where a group
        has no member (``empty_group``). Welch's test, g, and the deviation of a group of one are NULL with
        ``too_few_units`` where a group has one unit, Welch's test and g with ``no_spread`` where neither group has any
        spread; the permutation test stands there too.
    """
    categories = dict(encoders.select("encoder_id", "category").iter_rows())
    families = dict(encoders.select("encoder_id", "family").iter_rows())
    found = {(row["encoder_id"], row["dataset_id"]): row for row in shifts.iter_rows(named=True)}
    shift_of = {row["dataset_id"]: row["shift_id"] for row in found.values()}
    rows = []
    for dataset in panel.datasets:
        if dataset not in shift_of:
            continue
        members = sorted(panel.values[dataset])
        groups = {
            "medical": [m for m in members if categories.get(m) in MEDICAL["medical"]],
            "generalist": [m for m in members if categories.get(m) == GENERALIST],
        }
        for quantity in QUANTITIES:
            # a member without a card could be of either group: without a value, it makes the row incomplete
            compared = [m for m in members if m not in categories or any(m in group for group in groups.values())]
            values = {m: found.get((m, dataset), {}).get(quantity) if m in categories else None for m in compared}
            for unit in UNITS:
                unit_of = {m: (families[m], "") if unit == "family" and families.get(m) else ("", m) for m in members}
                key = {
                    "panel_id": panel.panel_id,
                    "dataset_id": dataset,
                    "shift_id": shift_of[dataset],
                    "quantity": quantity,
                    "unit": unit,
                }
                rows.append(key | _row(values, groups, unit_of, (panel.panel_id, dataset, quantity, unit)))
    return analysis_frame("institutional_shift_test", rows)


def _row(
    values: Mapping[str, float | None],
    groups: Mapping[str, Sequence[str]],
    unit_of: Mapping[str, tuple[str, str]],
    names: tuple[str, ...],
) -> dict[str, Any]:
    """Return one comparison of the two groups."""
    row: dict[str, Any] = {f"n_{name}": len({unit_of[m] for m in group}) for name, group in groups.items()}
    known = {member: value for member, value in values.items() if value is not None}
    if len(known) < len(values):
        return row | {"reason": "incomplete"}
    units = {name: _units(known, group, unit_of) for name, group in groups.items()}
    for name, group_units in units.items():
        row[f"mean_{name}"] = statistics.mean(group_units) if group_units else None
        row[f"sd_{name}"] = statistics.stdev(group_units) if len(group_units) > 1 else None
    medical, generalist = units["medical"], units["generalist"]
    if not (medical and generalist):
        return row | {"reason": "empty_group"}
    row |= {
        "difference": row["mean_medical"] - row["mean_generalist"],
        "p_permutation": permutation_p(medical, generalist, *names),
    }
    test = welch_test(medical, generalist)
    if isinstance(test, str):
        return row | {"reason": test}
    return row | {
        "welch_t": test.t,
        "welch_df": test.df,
        "p_welch": test.p,
        "hedges_g": hedges_g(medical, generalist),
    }


def _units(values: Mapping[str, float], group: Sequence[str], unit_of: Mapping[str, tuple[str, str]]) -> list[float]:
    """Return the mean of the members of each unit, sorted by unit."""
    parts: dict[tuple[str, str], list[float]] = {}
    for member in group:
        parts.setdefault(unit_of[member], []).append(values[member])
    return [statistics.mean(part) for _, part in sorted(parts.items())]
