"""What is left of an encoder's discrimination at another institution.

What lives here: the rows of ``institutional_shift``. What stays out: AUROC (``metrics``), the macro over the labels
that two institutions share (``aggregates.axes``), and groups of encoders (``institutional_shift_test``).
Source: protocol page, sections 5, 6 and 8.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from crsbench_assets.aggregates.axes import CommonMacros, common_macros, relative_drop
from crsbench_assets.analyses.population import analysis_frame
from crsbench_assets.config.ids import CLEAN, shift_condition

_Key = tuple[str, str, int, str]
"""Encoder, dataset, seed, condition."""


def institutional_shift(
    label_metrics: pl.DataFrame,
    run_records: pl.DataFrame,
    encoders: pl.DataFrame,
    datasets: pl.DataFrame,
    scored: pl.DataFrame,
    seeds: Sequence[int],
) -> pl.DataFrame:
    """Return macro AUROC at home and at the other institution, over the labels defined at both, and the relative gap.

    All three numbers are of probes on all labels, computed per seed and averaged over the seeds. ``relative_gap`` is
    (source - shift) / source, signed, at most 1; the drop that the axis robustness takes its shift term from.

    Args:
        label_metrics: encoder_id, dataset_id, seed, label_fraction, condition_id, class_name, auroc.
        run_records: encoder_id, dataset_id, seed, label_fraction, condition_id, macro_auroc, reason.
        encoders: rows of the table ``encoders``: encoder_id, category, exposure.
        datasets: rows of the table ``datasets``: dataset_id, shift_id.
        scored: encoder_id, dataset_ids of the active encoders, controls too; one row for each of their cells on a
            dataset with a shift target.
        seeds: the protocol's.

    Returns:
        Rows sorted by encoder and dataset; none where no dataset has a shift target. ``n_defined_auroc`` is the
        smallest number of common labels of a seed. Without a value of every seed the numbers are NULL, with the reason
        that all seeds share (of their records: ``no_access``, ``no_vectors``, ...; ``incomplete`` where there is no
        record; ``undefined_term`` where no label is defined at both, or the source's macro is 0), else
        ``missing_seed``. Exposure is ``unknown`` where the card is silent.
    """
    shifts = {dataset: shift for dataset, shift in datasets.select("dataset_id", "shift_id").iter_rows() if shift}
    is_read = (pl.col("label_fraction") == 1.0) & pl.col("condition_id").is_in(
        [CLEAN, *map(shift_condition, shifts.values())]
    )
    key = ("encoder_id", "dataset_id", "seed", "condition_id")
    absences: dict[_Key, str | None] = {
        (e, d, seed, condition): None if macro is not None else reason or "undefined_term"
        for e, d, seed, condition, macro, reason in run_records.filter(is_read)
        .select(*key, "macro_auroc", "reason")
        .iter_rows()
    }
    aurocs: dict[_Key, dict[str, float | None]] = {}
    for e, d, seed, condition, name, auroc in (
        label_metrics.filter(is_read).select(*key, "class_name", "auroc").iter_rows()
    ):
        aurocs.setdefault((e, d, seed, condition), {})[name] = auroc
    cards = {e: card for e, *card in encoders.select("encoder_id", "category", "exposure").iter_rows()}
    rows = []
    for encoder, applicable in scored.select("encoder_id", "dataset_ids").sort("encoder_id").iter_rows():
        for dataset in sorted(set(applicable) & shifts.keys()):
            category, exposure = cards[encoder]
            outcomes = [_macros(absences, aurocs, (encoder, dataset, seed), shifts[dataset]) for seed in seeds]
            rows.append(
                {
                    "encoder_id": encoder,
                    "dataset_id": dataset,
                    "shift_id": shifts[dataset],
                    "category": category,
                    "shift_exposure": json.loads(exposure).get(shifts[dataset], "unknown"),
                }
                | _row(outcomes)
            )
    return analysis_frame("institutional_shift", rows)


def _macros(
    absences: Mapping[_Key, str | None],
    aurocs: Mapping[_Key, Mapping[str, float | None]],
    cell: tuple[str, str, int],
    shift_id: str,
) -> CommonMacros[float] | str:
    """Return the source's macro (reference) and the shift target's of one seed, or why there is none."""
    source, shift = (*cell, CLEAN), (*cell, shift_condition(shift_id))
    for key in (source, shift):
        absence = absences.get(key, "incomplete")
        if absence:
            return absence
    macros = common_macros(aurocs.get(source, {}), aurocs.get(shift, {}))
    return "undefined_term" if macros is None or macros.reference == 0 else macros


def _row(outcomes: Sequence[CommonMacros[float] | str]) -> dict[str, Any]:
    """Return the means over the seeds, or why there are none."""
    defined = [outcome for outcome in outcomes if not isinstance(outcome, str)]
    reasons = {outcome for outcome in outcomes if isinstance(outcome, str)}
    row: dict[str, Any] = {
        "n_seeds": len(defined),
        "n_defined_auroc": min((macros.n_defined for macros in defined), default=0),
    }
    if reasons:
        return row | {"reason": reasons.pop() if len(reasons) == 1 and not defined else "missing_seed"}
    return row | {
        "source_macro_auroc": statistics.fmean(macros.reference for macros in defined),
        "shift_macro_auroc": statistics.fmean(macros.other for macros in defined),
        "relative_gap": statistics.fmean(relative_drop(macros.reference, macros.other) for macros in defined),
    }
