"""Whether medical pretraining pays more where labels are few.

What lives here: the rows of ``label_scarcity``. What stays out: AUROC over the seeds (``aggregates.seeds``), and the
same two groups at another institution (``institutional_shift_test``).
Source: protocol page, section 8; Welch (1947), doi:10.1093/biomet/34.1-2.28.

The interval of the interaction. An encoder's own change, AUROC at the fraction less AUROC at all labels, takes its
general quality out; the interaction is the difference of the two groups' mean changes, and its interval is Welch's on
these changes: encoders are the units, and the groups may differ in spread. Encoders are few (the paper's panel has 4,
5 and 6), and a percentile bootstrap of so few units is too narrow (Hesterberg 2015, doi:10.1080/00031305.2015.1089789;
it covers .84 where 4 and 6 normal changes of unequal spread are drawn, Welch's .95). It speaks of encoders like these,
not of test images or seeds, whose part in the spread it contains. Encoders of one family are not independent, so it
is rather too narrow than too wide.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from crsbench_assets.analyses.inference import welch_interval
from crsbench_assets.analyses.population import GENERALIST, MEDICAL, analysis_frame, common_datasets
from crsbench_assets.config.ids import CLEAN
from crsbench_assets.metrics.replicates import Interval
from crsbench_assets.scores.panel import Panel

_Values = dict[str, float] | str
"""Encoder -> macro AUROC, or the reason why the encoders cannot be compared."""


def label_scarcity(
    seed_aggregates: pl.DataFrame, encoders: pl.DataFrame, panel: Panel, label_fractions: Sequence[float]
) -> pl.DataFrame:
    """Return the lead of medically pretrained over generalist encoders at every label fraction.

    ``difference`` is mean macro AUROC (clean, mean over seeds) of the category less that of the generalists, in
    [-1, 1]; ``interaction`` is that less the difference at all labels, in [-2, 2], positive where scarcity favours the
    category. At all labels it is 0 by definition. Its 95 % interval is Welch's on the encoders' own changes (see the
    module), cut to [-2, 2].

    Args:
        seed_aggregates: rows of the table ``seed_aggregates`` of any cells; only the members' clean ones count.
        encoders: encoder_id, category; a member without category is in neither group.
        panel: frozen or provisional.
        label_fractions: the protocol's, ending at 1.

    Returns:
        One row per dataset of the panel, and one with the empty id for the mean over the datasets that all members
        have, so that no encoder's mean rests on other datasets than another's; by category and fraction. Counts are
        of members on the dataset. Reasons: ``infeasible_fraction``; ``incomplete``: a member's value is missing, and
        the lead of a part is not the panel's; ``no_common_dataset``; ``empty_group``: no encoder of the category or
        no generalist; and for the interval alone ``too_few_units`` (one encoder in a group) and ``no_spread``.
        Means are rounded once, so the order of the encoders moves no bit of them.
    """
    clean = seed_aggregates.filter((pl.col("condition_id") == CLEAN) & pl.col("macro_auroc_mean").is_not_null())
    found = {
        (encoder, dataset, fraction): value
        for encoder, dataset, fraction, value in clean.select(
            "encoder_id", "dataset_id", "label_fraction", "macro_auroc_mean"
        ).iter_rows()
    }
    category_of = dict(encoders.select("encoder_id", "category").iter_rows())
    populations = [(dataset, [dataset], sorted(panel.values[dataset])) for dataset in panel.datasets]
    populations.append(("", common_datasets(panel), list(panel.members)))
    rows = []
    for dataset_id, datasets, members in populations:
        values = {fraction: _values(found, panel, datasets, members, fraction) for fraction in label_fractions}
        generalists = [member for member in members if category_of.get(member) == GENERALIST]
        for category, of_category in MEDICAL.items():
            medical = [member for member in members if category_of.get(member) in of_category]
            for fraction in label_fractions:
                key = {
                    "panel_id": panel.panel_id,
                    "dataset_id": dataset_id,
                    "category": category,
                    "label_fraction": fraction,
                    "n_medical": len(medical),
                    "n_generalist": len(generalists),
                }
                rows.append(key | _row(values[fraction], values[1.0], medical, generalists))
    return analysis_frame("label_scarcity", rows)


def _values(
    found: Mapping[tuple[str, str, float], float],
    panel: Panel,
    datasets: Sequence[str],
    members: Sequence[str],
    fraction: float,
) -> _Values:
    """Return the mean over the datasets of every member's AUROC."""
    if not datasets:
        return "no_common_dataset"
    if not all(fraction in panel.conditions.feasible_fractions[dataset] for dataset in datasets):
        return "infeasible_fraction"
    if not all((member, dataset, fraction) in found for member in members for dataset in datasets):
        return "incomplete"
    return {member: statistics.mean(found[member, d, fraction] for d in datasets) for member in members}


def _row(here: _Values, full: _Values, medical: Sequence[str], generalists: Sequence[str]) -> dict[str, Any]:
    """Return the numbers of one category at one fraction, and why any is missing."""
    if isinstance(here, str):
        return {"reason": here}
    of_medical, of_generalists = [here[encoder] for encoder in medical], [here[encoder] for encoder in generalists]
    row: dict[str, Any] = {
        "mean_medical": statistics.mean(of_medical) if medical else None,
        "mean_generalist": statistics.mean(of_generalists) if generalists else None,
    }
    if not (medical and generalists):
        return row | {"reason": "empty_group"}
    row["difference"] = row["mean_medical"] - row["mean_generalist"]
    if isinstance(full, str):
        return row | {"reason": full}
    changes = [[here[encoder] - full[encoder] for encoder in group] for group in (medical, generalists)]
    # At all labels the changes are 0 by definition, whoever the encoders are.
    interval = Interval(0.0, 0.0, None) if here is full else welch_interval(*changes)
    return row | {
        "interaction": statistics.mean(changes[0]) - statistics.mean(changes[1]),
        "interaction_ci_low": None if interval.low is None else max(interval.low, -2.0),
        "interaction_ci_high": None if interval.high is None else min(interval.high, 2.0),
        "reason": interval.reason,
    }
