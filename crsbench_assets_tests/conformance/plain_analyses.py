"""The analyses of a panel a second time, in plain Python, to check the first.

What lives here: one function per table of the protocol page's section 8 whose numbers follow from the panel without a
draw; where a table rests on random subsets, bases or weights, these are read from its own columns. Each function
returns the rows that the table should have. What stays out: axes, anchors and CRS (``plain``); correlations and tests
of groups (``plain_statistics``); what needs replicates (``plain_replicates``); the comparison (``compare_analyses``).
Source: protocol page, sections 6 to 8. No array library, no import from the package. An undefined value is None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product
from statistics import fmean, stdev
from typing import Any, NamedTuple

from crsbench_assets_tests.conformance import plain
from crsbench_assets_tests.conformance.plain import AXES, AxisValues, Cell, Row
from crsbench_assets_tests.conformance.plain_statistics import (
    hedges_g,
    pairs,
    pearson,
    pearson_interval,
    permutation_p,
    quantile,
    spearman,
    spearman_chance,
    spearman_interval,
    t_quantile,
    tau_b,
    top_overlap,
    top_share,
    welch,
)

Rows = list[dict[str, Any]]
Values = dict[Cell, dict[str, float]]
MEDICAL = ("broad_medical", "specialty")


class Panel(NamedTuple):
    """What the analyses of one panel rest on."""

    panel_id: str
    members: list[str]
    axes: dict[tuple[str, str], dict[Cell, float]]
    """Axis and variant -> cell -> value, members' defined values only."""
    robustness: str
    """Variant of robustness that the panel scores: ``primary`` or ``corruption_only``."""

    def values(self, **variants: str) -> Values:
        """Return cell -> value per axis, an axis named here under its variant; complete cells only."""
        wanted = dict.fromkeys(AXES, "primary") | {"robustness": self.robustness} | variants
        columns = [self.axes.get((axis, wanted[axis]), {}) for axis in AXES]
        complete = sorted(set.intersection(*(set(column) for column in columns)))
        return {cell: {axis: column[cell] for axis, column in zip(AXES, columns, strict=True)} for cell in complete}


def panel_of(panel_id: str, crs_scores: Iterable[Row], reference_panels: Iterable[Row], axes: Iterable[Row]) -> Panel:
    """Return a panel from the rows that the tables of these names hold for it."""
    members = sorted(row["encoder_id"] for row in crs_scores if row["panel_id"] == panel_id and row["is_member"])
    variants = {row["robustness_variant"] for row in reference_panels if row["panel_id"] == panel_id}
    found: dict[tuple[str, str], dict[Cell, float]] = {}
    for row in axes:
        if row["encoder_id"] in members and row["value"] is not None:
            column = found.setdefault((row["axis"], row["variant"]), {})
            column[row["encoder_id"], row["dataset_id"]] = row["value"]
    return Panel(panel_id, members, found, "primary" if variants == {"shift"} else "corruption_only")


class Profile(NamedTuple):
    """Profile of one encoder against a panel, in the order of the axes."""

    raw: list[float]
    clipped: list[float]


# --- scores under other panels, axes and weights ---------------------------------------------------------------------


def profiles(
    values: Mapping[Cell, AxisValues],
    members: Collection[str],
    found: Mapping[tuple[str, str], plain.Anchor] | None = None,
) -> dict[str, Profile]:
    """Return member -> profile, against the anchors of these members where no others are given."""
    own = {cell: of_axes for cell, of_axes in values.items() if cell[0] in members}
    raw = plain.cell_positions(own, found or plain.anchors(own, members))
    of_encoders = plain.profiles(raw, own.keys(), {dataset for _, dataset in own})
    return {encoder: Profile(x_raw, x) for encoder, (x_raw, x, _) in of_encoders.items()}


def parts(of_members: Mapping[str, Profile], axes: Sequence[int] = (0, 1, 2, 3)) -> dict[str, plain.Score]:
    """Return encoder -> CRS and its parts over some axes, dominance against all given encoders."""

    def kept(profile: Sequence[float]) -> list[float]:
        return [profile[k] for k in axes]

    rivals = [kept(profile.raw) for profile in of_members.values()]
    return {
        encoder: plain.score(kept(profile.raw), kept(profile.clipped), rivals)
        for encoder, profile in of_members.items()
    }


def crs(values: Mapping[Cell, AxisValues], members: Collection[str]) -> dict[str, float]:
    """Return member -> CRS in the panel that these members form."""
    return {encoder: own.crs for encoder, own in parts(profiles(values, members)).items()}


def cell_crs(values: Mapping[Cell, AxisValues], members: Collection[str], dataset: str) -> dict[str, float]:
    """Return member -> CRS of its cell on one dataset, among the members that have one."""
    return crs({cell: of_axes for cell, of_axes in values.items() if cell[1] == dataset}, members)


def panel_perturbations(panel: Panel, stored: Iterable[Row]) -> Rows:
    """Return the rows of ``panel_perturbations`` for the subsets that the stored rows name."""
    values = panel.values()
    full = crs(values, panel.members)
    rows: Rows = []
    for row in stored:
        dropped = json.loads(row["dropped_encoders"])
        left = [member for member in panel.members if member not in dropped]
        reduced = crs(values, left)
        rows.append(
            {
                "n_dropped": len(dropped),
                "perturbation_id": row["perturbation_id"],
                "n_encoders": len(left),
                **_agreement({member: full[member] for member in left}, reduced),
            }
        )
    return rows


def _agreement(reference: Mapping[str, float], other: Mapping[str, float]) -> dict[str, Any]:
    return {
        "tau_b": tau_b(reference, other),
        "top_3_overlap": top_overlap(reference, other, 3),
        "reason": None if len(reference) > 3 else "too_few_units",
    }


def insertion_trials(panel: Panel, stored: Iterable[Row]) -> Rows:
    """Return the rows of ``insertion_trials`` for the bases that the stored rows name."""
    values, after = panel.values(), crs(panel.values(), panel.members)
    bases: dict[tuple[int, str], list[str]] = {}
    for row in stored:
        bases.setdefault((row["trial"], row["mode"]), []).append(row["encoder_id"])
    rows: Rows = []
    for (trial, mode), base in bases.items():
        before = crs(values, base)
        for encoder in base:
            end = before[encoder] if mode == "fixed_reference" else after[encoder]
            rows.append(
                {
                    "trial": trial,
                    "mode": mode,
                    "encoder_id": encoder,
                    "n_base": len(base),
                    "n_inserted": len(panel.members) - len(base),
                    "crs_before": before[encoder],
                    "crs_after": end,
                    "displacement": abs(end - before[encoder]),
                    "reason": None,
                }
            )
    return rows


def weight_perturbations(panel: Panel, stored: Iterable[Row]) -> Rows:
    """Return the rows of ``weight_perturbations`` for the weights that the stored rows hold."""
    found = profiles(panel.values(), panel.members)
    reference = parts(found)
    declared = {encoder: own.crs for encoder, own in reference.items()}
    top = top_share(declared, 3)
    rows: Rows = []
    for row in stored:
        weights = [row[f"weight_{axis}"] for axis in AXES]
        other = {}
        for encoder, own in reference.items():
            distance = math.fsum(w * (1.0 - x) ** 2 for w, x in zip(weights, found[encoder].clipped, strict=True))
            other[encoder] = (
                row["weight_pareto"] * own.pareto
                + row["weight_balance"] * (1.0 - math.sqrt(distance))
                + row["weight_worst"] * own.worst
            )
        rows.append(
            {
                "weights_of": row["weights_of"],
                "perturbation_id": row["perturbation_id"],
                "n_encoders": len(declared),
                **_agreement(declared, other),
                "is_top_3_unchanged": top_share(other, 3) == top,
            }
        )
    return rows


def crs_variants(panel: Panel, encoders: Iterable[Row], shift_of: Mapping[str, str | None]) -> Rows:
    """Return the rows of ``crs_variants``, anchors and dominance from the values of each variant.

    Args:
        panel: the panel.
        encoders: cards, whose ``exposure`` says which shift targets their pretraining saw.
        shift_of: dataset -> shift target.
    """
    exposure = {row["encoder_id"]: json.loads(row["exposure"]) for row in encoders}
    primary, without = panel.values(), panel.values(robustness="corruption_only")
    mixed = {
        (encoder, d): (without if exposure[encoder].get(shift_of[d]) == "seen" else primary)[encoder, d]
        for encoder, d in primary
    }
    rows: Rows = []
    for variant, values in {"corruption_only": without, "without_exposed": mixed}.items():
        score = crs(values, panel.members)
        ranks = plain.competition_ranks(score)
        rows += [
            {"variant": variant, "encoder_id": encoder, "crs": own, "rank": ranks[encoder], "reason": None}
            for encoder, own in score.items()
        ]
    return rows


# --- choosing by AUROC and by CRS ------------------------------------------------------------------------------------


def common_datasets(cells: Iterable[Cell], members: Collection[str]) -> list[str]:
    """Return the datasets on which every member has a cell, sorted."""
    held = set(cells)
    return sorted({d for _, d in held if all((member, d) in held for member in members)})


class Orders(NamedTuple):
    """Scores that are compared as orders, by variant."""

    auroc: dict[str, dict[str, float]]
    crs: dict[str, dict[str, float]]


def orders(panel: Panel) -> Orders:
    """Return the two AUROC scores and the two CRS that ``rank_agreement`` compares."""
    found, values = profiles(panel.values(), panel.members), panel.values()
    datasets = common_datasets(values, panel.members)
    return Orders(
        auroc={
            "profile": {encoder: profile.clipped[0] for encoder, profile in found.items()},
            "raw_common_datasets": {
                encoder: fmean(values[encoder, d]["discrimination"] for d in datasets) for encoder in panel.members
            },
        },
        crs={
            "primary": {encoder: own.crs for encoder, own in parts(found).items()},
            "without_discrimination": {encoder: own.crs for encoder, own in parts(found, (1, 2, 3)).items()},
        },
    )


def rank_agreement(panel: Panel) -> Rows:
    """Return the rows of ``rank_agreement`` without the resolved reversals, which need replicates."""
    found = orders(panel)
    rows: Rows = []
    for (auroc_variant, auroc), (crs_variant, score) in product(found.auroc.items(), found.crs.items()):
        by_auroc, by_crs = plain.competition_ranks(auroc), plain.competition_ranks(score)
        names = sorted(auroc)
        rows.append(
            {
                "auroc_variant": auroc_variant,
                "crs_variant": crs_variant,
                "n_encoders": len(auroc),
                "n_pairs": len(auroc) * (len(auroc) - 1) // 2,
                "n_reversed": pairs(auroc, score).discordant,
                "tau_b": tau_b(auroc, score),
                "spearman": spearman([auroc[name] for name in names], [score[name] for name in names]),
                "mean_absolute_rank_displacement": fmean(abs(by_auroc[name] - by_crs[name]) for name in names),
                "reason": None,
            }
        )
    return rows


def rank_displacement(panel: Panel) -> Rows:
    """Return the rows of ``rank_displacement``."""
    found = orders(panel)
    rows: Rows = []
    for (auroc_variant, auroc), (crs_variant, score) in product(found.auroc.items(), found.crs.items()):
        by_auroc, by_crs = plain.competition_ranks(auroc), plain.competition_ranks(score)
        rows += [
            {
                "auroc_variant": auroc_variant,
                "crs_variant": crs_variant,
                "encoder_id": encoder,
                "auroc_score": auroc[encoder],
                "crs": score[encoder],
                "rank_auroc": by_auroc[encoder],
                "rank_crs": by_crs[encoder],
                "rank_displacement": by_auroc[encoder] - by_crs[encoder],
                "reason": None,
            }
            for encoder in auroc
        ]
    return rows


def selection_regret(panel: Panel, weights: Sequence[float]) -> Rows:
    """Return the rows of ``selection_regret`` without intervals, for a user's weights of the four axes."""
    found = profiles(panel.values(), panel.members)
    score = {encoder: own.crs for encoder, own in parts(found).items()}
    x = {
        encoder: {
            **dict(zip(AXES, profile.clipped, strict=True)),
            "weighted": math.fsum(w * own for w, own in zip(weights, profile.clipped, strict=True)),
        }
        for encoder, profile in found.items()
    }
    chosen = {
        "auroc": max(panel.members, key=lambda encoder: x[encoder]["discrimination"]),
        "crs": max(panel.members, key=lambda encoder: score[encoder]),
        "random": "",
    }
    rows: Rows = []
    for (rule, choice), axis in product(chosen.items(), (*AXES, "weighted")):
        best = max(panel.members, key=lambda encoder, axis=axis: x[encoder][axis])  # type: ignore[misc]
        kept = x[choice][axis] if choice else fmean(own[axis] for own in x.values())
        rows.append(
            {
                "rule": rule,
                "axis": axis,
                "chosen_encoder_id": choice,
                "best_encoder_id": best,
                "regret": x[best][axis] - kept,
                "reason": None,
            }
        )
    return rows


def dominance(panel: Panel) -> Rows:
    """Return the rows of ``dominance`` between members, without probabilities."""
    found = profiles(panel.values(), panel.members)
    return [
        {
            "encoder_id": one,
            "other_encoder_id": other,
            "is_dominating": plain.dominates(found[one].raw, found[other].raw),
        }
        for one, other in product(found, found)
        if one != other
    ]


# --- correlations ----------------------------------------------------------------------------------------------------

LEVELS = list(product(("encoder", "cell"), ("raw", "within_dataset")))


def units(column: Mapping[Cell, float], level: str, centring: str) -> dict[Any, float]:
    """Return unit -> value: cells, or encoders as the mean over their cells, centred within datasets where asked.

    >>> units({("a", "d"): 1.0, ("b", "d"): 3.0}, "encoder", "within_dataset")
    {'a': -1.0, 'b': 1.0}
    """
    own = dict(column)
    if centring == "within_dataset":
        mean_of = {d: fmean(value for cell, value in column.items() if cell[1] == d) for _, d in column}
        own = {cell: value - mean_of[cell[1]] for cell, value in column.items()}
    if level == "cell":
        return dict(own)
    return {e: fmean(value for cell, value in own.items() if cell[0] == e) for e in sorted({e for e, _ in own})}


def axis_correlations(panel: Panel) -> Rows:
    """Return the rows of ``axis_correlations``."""
    values = panel.values()
    columns = {axis: {cell: of_axes[axis] for cell, of_axes in values.items()} for axis in AXES}
    rows: Rows = []
    for (level, centring), axis, other in product(LEVELS, AXES, AXES):
        one, two = units(columns[axis], level, centring), units(columns[other], level, centring)
        names = {"level": level, "centring": centring, "dataset_id": "", "axis": axis, "other_axis": other}
        # A mean taken off per dataset costs what a partial correlation given the datasets costs: one unit each but one.
        lost = len({dataset for _, dataset in values}) - 1 if (level, centring) == ("cell", "within_dataset") else 0
        pair = list(one.values()), [two[unit] for unit in one]
        rows.append({**names, **_correlation(*pair, is_itself=axis == other, lost=lost)})
    for dataset in sorted({dataset for _, dataset in values}):
        of_dataset = [of_axes for cell, of_axes in sorted(values.items()) if cell[1] == dataset]
        names = {"level": "cell", "centring": "raw", "dataset_id": dataset}
        names |= {"axis": "discrimination", "other_axis": "calibration"}
        pair = [own["discrimination"] for own in of_dataset], [own["calibration"] for own in of_dataset]
        rows.append({**names, **_correlation(*pair)})
    return rows


def _correlation(
    one: Sequence[float], other: Sequence[float], *, is_itself: bool = False, lost: int = 0
) -> dict[str, Any]:
    r, rho, n = pearson(one, other), spearman(one, other), len(one)
    interval, rank_interval = pearson_interval(r, n - lost), spearman_interval(rho, n - lost)
    if is_itself:  # equal by definition: nothing is estimated
        interval = rank_interval = (1.0, 1.0)
    return {
        "n_units": n,
        "pearson": r,
        "pearson_ci_low": interval[0],
        "pearson_ci_high": interval[1],
        "spearman": rho,
        "spearman_ci_low": rank_interval[0],
        "spearman_ci_high": rank_interval[1],
        "reason": None,
    }


def label_efficiency_informativeness(panel: Panel) -> Rows:
    """Return the rows of ``label_efficiency_informativeness``."""
    auroc = panel.axes["discrimination", "primary"]
    rows: Rows = []
    for (quantity, variant), (level, centring) in product({"retention": "primary", "aulc": "aulc"}.items(), LEVELS):
        column = panel.axes["label_efficiency", variant]
        one = units(column, level, centring)
        two = units({cell: auroc[cell] for cell in column}, level, centring)
        sides = [one[unit] for unit in one], [two[unit] for unit in one]
        rows.append(
            {
                "quantity": quantity,
                "level": level,
                "centring": centring,
                "n_units": len(one),
                "pearson": pearson(*sides),
                "spearman": spearman(*sides),
                "reason": None,
            }
        )
    return rows


# --- transfer --------------------------------------------------------------------------------------------------------


def _transfer(predicted: Mapping[str, float], target: Mapping[str, float]) -> dict[str, Any]:
    names = sorted(predicted)
    rho = spearman([predicted[name] for name in names], [target[name] for name in names])
    low, high = spearman_interval(rho, len(names))
    first = [max(order.values()) for order in (predicted, target)]
    winners = [{n for n in names if order[n] == top} for order, top in zip((predicted, target), first, strict=True)]
    return {
        "n_encoders": len(names),
        "spearman": rho,
        "spearman_ci_low": low,
        "spearman_ci_high": high,
        "spearman_chance_p95": spearman_chance(len(names)),
        "top_3_overlap": top_overlap(predicted, target, 3),
        "top_3_overlap_chance": 3 / len(names),
        "is_winner_recovered": winners[0] == winners[1],
        "reason": None if low is not None else "perfect_correlation",
    }


def lodo_transfer(panel: Panel) -> Rows:
    """Return the rows of ``lodo_transfer``.

    The others' anchors are taken over all their members, dominance among the encoders that have the held-out dataset.
    """
    values = panel.values()
    rows: Rows = []
    for dataset in sorted({d for _, d in values}):
        others = {cell: of_axes for cell, of_axes in values.items() if cell[1] != dataset}
        have = {encoder for encoder, d in values if d == dataset} & {encoder for encoder, _ in others}
        found = profiles(others, have, plain.anchors(others, panel.members))
        predicted = {encoder: own.crs for encoder, own in parts(found).items()}
        target = cell_crs(values, panel.members, dataset)
        rows.append({"dataset_id": dataset, **_transfer(predicted, {encoder: target[encoder] for encoder in have})})
    return rows


def mimic_transfer(panel: Panel, shifts: Iterable[Row]) -> Rows:
    """Return the rows of ``mimic_transfer`` from those of ``institutional_shift``."""
    own = [row for row in shifts if row["encoder_id"] in panel.members]
    score = crs(panel.values(robustness="corruption_only"), panel.members)
    rows: Rows = []
    for dataset, shift in sorted({(row["dataset_id"], row["shift_id"]) for row in own}):
        of_dataset = [row for row in own if row["dataset_id"] == dataset]
        for target in ("shift", "source"):
            auroc = {row["encoder_id"]: row[f"{target}_macro_auroc"] for row in of_dataset}
            names = {"dataset_id": dataset, "shift_id": shift, "target": target}
            rows.append({**names, **_transfer({encoder: score[encoder] for encoder in auroc}, auroc)})
    return rows


# --- other metrics ---------------------------------------------------------------------------------------------------

CALIBRATION_VARIANTS = {"adaptive_ece": "adaptive_ece", "brier": "brier", "ece_debiased": "ece_debiased"}


def metric_sensitivity(panel: Panel, ordinal: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Rows:
    """Return the rows of ``metric_sensitivity``.

    Args:
        panel: the panel.
        ordinal: ``qwk`` and ``ordinal_mae`` -> dataset -> encoder -> value on clean images at all labels; the error
            is turned here, so that larger is better.
    """
    primary = crs(panel.values(), panel.members)
    variants: dict[str, dict[str, str]] = {
        name: {"calibration": variant} for name, variant in CALIBRATION_VARIANTS.items()
    }
    variants["corruption_only"] = {"robustness": "corruption_only"}
    variants["chance_corrected"] = {"label_efficiency": "chance_corrected", "robustness": "chance_corrected"}
    found = {name: crs(panel.values(**changed), panel.members) for name, changed in variants.items()}
    found["percentile_anchors"] = _percentile_crs(panel)
    rows: Rows = [
        {"variant": variant, "dataset_id": "", **_sensitivity(primary, other)} for variant, other in found.items()
    ]
    sign = {"qwk": 1.0, "ordinal_mae": -1.0}
    for variant, of_datasets in ordinal.items():
        for dataset, of_encoders in of_datasets.items():
            values = {cell: own for cell, own in panel.values().items() if cell[1] == dataset}
            changed_values = {
                cell: {**own, "discrimination": sign[variant] * of_encoders[cell[0]]} for cell, own in values.items()
            }
            both = crs(values, panel.members), crs(changed_values, panel.members)
            rows.append({"variant": variant, "dataset_id": dataset, **_sensitivity(*both)})
    return rows


def _sensitivity(primary: Mapping[str, float], other: Mapping[str, float]) -> dict[str, Any]:
    moved = [other[encoder] - primary[encoder] for encoder in other]
    reference = {encoder: primary[encoder] for encoder in other}
    return {
        "n_encoders": len(other),
        "tau_b": tau_b(reference, other),
        "top_3_overlap": top_overlap(reference, other, 3),
        "top_5_overlap": top_overlap(reference, other, 5),
        "mean_crs_shift": fmean(moved),
        "mean_absolute_crs_shift": fmean(abs(own) for own in moved),
        "reason": None,
    }


def _percentile_crs(panel: Panel) -> dict[str, float]:
    values = panel.values()
    found = {}
    for (dataset, axis), anchor in plain.anchors(values, panel.members).items():
        held = [of_axes[axis] for cell, of_axes in values.items() if cell[1] == dataset]
        found[dataset, axis] = anchor._replace(low=quantile(held, 0.05), high=quantile(held, 0.95))
    return {encoder: own.crs for encoder, own in parts(profiles(values, panel.members, found)).items()}


# --- groups of encoders ----------------------------------------------------------------------------------------------


def institutional_shift(label_metrics: Iterable[Row], encoders: Iterable[Row]) -> Rows:
    """Return the rows of ``institutional_shift`` from label metrics at all labels, clean and under shift."""
    aurocs: dict[Cell, dict[int, dict[str, dict[str, float]]]] = {}
    for row in label_metrics:
        if row["auroc"] is not None:
            of_seed = aurocs.setdefault((row["encoder_id"], row["dataset_id"]), {}).setdefault(row["seed"], {})
            of_seed.setdefault(row["condition_id"], {})[row["class_name"]] = row["auroc"]
    cards = {row["encoder_id"]: row for row in encoders}
    rows: Rows = []
    for (encoder, dataset), of_seeds in sorted(aurocs.items()):
        (shift,) = {name for of_seed in of_seeds.values() for name in of_seed} - {"clean"}
        shift_id = shift.removeprefix("shift_")
        sources, targets, gaps, counts = [], [], [], []
        for of_seed in of_seeds.values():
            both = sorted(of_seed["clean"].keys() & of_seed[shift].keys())
            sources.append(fmean(of_seed["clean"][label] for label in both))
            targets.append(fmean(of_seed[shift][label] for label in both))
            gaps.append((sources[-1] - targets[-1]) / sources[-1])
            counts.append(len(both))
        rows.append(
            {
                "encoder_id": encoder,
                "dataset_id": dataset,
                "shift_id": shift_id,
                "category": cards[encoder]["category"],
                "shift_exposure": json.loads(cards[encoder]["exposure"]).get(shift_id, "unknown"),
                "n_seeds": len(of_seeds),
                "n_defined_auroc": min(counts),
                "source_macro_auroc": fmean(sources),
                "shift_macro_auroc": fmean(targets),
                "relative_gap": fmean(gaps),
                "reason": None,
            }
        )
    return rows


def institutional_shift_test(panel: Panel, shifts: Iterable[Row], encoders: Iterable[Row]) -> Rows:
    """Return the rows of ``institutional_shift_test`` from those of ``institutional_shift``."""
    family = {row["encoder_id"]: row["family"] or row["encoder_id"] for row in encoders}
    own = [row for row in shifts if row["encoder_id"] in panel.members]
    rows: Rows = []
    for dataset, shift in sorted({(row["dataset_id"], row["shift_id"]) for row in own}):
        for quantity, unit in product(("shift_macro_auroc", "relative_gap"), ("encoder", "family")):
            groups: list[list[float]] = []
            for is_medical in (True, False):
                of_units: dict[str, list[float]] = {}
                for row in own:
                    if row["dataset_id"] == dataset and (row["category"] in MEDICAL) == is_medical:
                        name = row["encoder_id"] if unit == "encoder" else family[row["encoder_id"]]
                        of_units.setdefault(name, []).append(row[quantity])
                groups.append([fmean(of_units[name]) for name in sorted(of_units)])
            medical, generalist = groups
            test = welch(medical, generalist)
            assert test is not None
            rows.append(
                {
                    "dataset_id": dataset,
                    "shift_id": shift,
                    "quantity": quantity,
                    "unit": unit,
                    "n_medical": len(medical),
                    "n_generalist": len(generalist),
                    "mean_medical": fmean(medical),
                    "mean_generalist": fmean(generalist),
                    "sd_medical": stdev(medical),
                    "sd_generalist": stdev(generalist),
                    "difference": test.difference,
                    "welch_t": test.t,
                    "welch_df": test.df,
                    "p_welch": test.p,
                    "hedges_g": hedges_g(medical, generalist),
                    "p_permutation": permutation_p(medical, generalist),
                    "reason": None,
                }
            )
    return rows


def label_scarcity(panel: Panel, aggregates: Iterable[Row], encoders: Iterable[Row]) -> Rows:
    """Return the rows of ``label_scarcity`` from aggregates on clean images.

    Where datasets are pooled, an encoder counts with its mean over those that all members have. The interval of the
    interaction is Welch's, over the encoders' own differences between the fraction and all labels.
    """
    category = {row["encoder_id"]: row["category"] for row in encoders}
    curves: dict[Cell, dict[float, float]] = {}
    for row in aggregates:
        if row["encoder_id"] in panel.members and row["condition_id"] == "clean":
            of_cell = curves.setdefault((row["encoder_id"], row["dataset_id"]), {})
            of_cell[row["label_fraction"]] = row["macro_auroc_mean"]
    common = common_datasets(curves, panel.members)
    rows: Rows = []
    for pooled in ("", *sorted({d for _, d in curves})):
        wanted = [pooled] if pooled else common
        of_encoders: dict[str, dict[float, float]] = {}
        for encoder in panel.members:
            own = [curves[encoder, d] for d in wanted if (encoder, d) in curves]
            if own:
                of_encoders[encoder] = {f: fmean(curve[f] for curve in own) for f in own[0]}
        generalists = [curve for encoder, curve in of_encoders.items() if category[encoder] == "generalist"]
        for name in (*MEDICAL, "medical"):
            medical = [c for e, c in of_encoders.items() if category[e] in (MEDICAL if name == "medical" else (name,))]
            rows += [
                {
                    "dataset_id": pooled,
                    "category": name,
                    "label_fraction": fraction,
                    "n_medical": len(medical),
                    "n_generalist": len(generalists),
                    **_scarcity(medical, generalists, fraction),
                }
                for fraction in sorted(medical[0])
            ]
    return rows


def _scarcity(
    medical: Sequence[Mapping[float, float]], generalists: Sequence[Mapping[float, float]], fraction: float
) -> dict[str, Any]:
    lead, kept = [fmean(curve[fraction] for curve in group) for group in (medical, generalists)]
    falls = [[curve[fraction] - curve[1.0] for curve in group] for group in (medical, generalists)]
    interaction = fmean(falls[0]) - fmean(falls[1])
    test = welch(*falls)
    half = 0.0 if test is None else t_quantile(0.975, test.df) * test.standard_error
    return {
        "mean_medical": lead,
        "mean_generalist": kept,
        "difference": lead - kept,
        "interaction": interaction,
        "interaction_ci_low": interaction - half,
        "interaction_ci_high": interaction + half,
        "reason": None,
    }


def specialization(
    panel: Panel, cell_scores: Iterable[Row], encoders: Iterable[Row], modality: Mapping[str, str]
) -> Rows:
    """Return the rows of ``specialization`` from places between the anchors (z) and the cards.

    Args:
        panel: the panel.
        cell_scores: rows of one panel.
        encoders: cards, whose ``domains`` are the modalities that an encoder's pretraining was made for.
        modality: of every dataset.
    """
    z: dict[tuple[str, str, str], float] = {
        (row["encoder_id"], row["dataset_id"], row["axis"]): row["z"]
        for row in cell_scores
        if row["encoder_id"] in panel.members
    }
    cells = sorted({(e, d) for e, d, _ in z})
    cards = {row["encoder_id"]: row for row in encoders if row["encoder_id"] in panel.members}
    inside = {cell for cell in cells if modality[cell[1]] in json.loads(cards[cell[0]]["domains"])}
    rows: Rows = []
    for category, axis in product(("generalist", *MEDICAL), AXES):
        own = [cell for cell in cells if cards[cell[0]]["category"] == category]
        groups = [cell for cell in own if cell in inside], [cell for cell in own if cell not in inside]
        names = {"reference": "out_of_domain", "category": category, "encoder_id": "", "parent_encoder_id": ""}
        rows.append({**names, "axis": axis, **_place(groups, lambda cell, axis=axis: z[(*cell, axis)], "empty_group")})  # type: ignore[misc]
    for encoder, axis in product(sorted(cards), AXES):
        card = cards[encoder]
        if card["category"] not in MEDICAL:
            continue
        parents = [
            other
            for other in sorted(cards)
            if cards[other]["category"] == "generalist" and card["family"] and cards[other]["family"] == card["family"]
        ]
        for parent in parents or [""]:
            own = [cell for cell in cells if cell[0] == encoder and cell in inside]
            reference = [(parent, d) for _, d in own if (parent, d) in cells]
            shared = [cell for cell in own if not parent or (parent, cell[1]) in cells]
            names = {"reference": "generalist_parent", "category": card["category"]}
            names |= {"encoder_id": encoder, "parent_encoder_id": parent}
            reason = "empty_group" if parent else "no_parent"
            place = _place((shared, reference), lambda cell, axis=axis: z[(*cell, axis)], reason)  # type: ignore[misc]
            rows.append({**names, "axis": axis, **place})
    return rows


def _place(groups: tuple[list[Cell], list[Cell]], place: Callable[[Cell], float], reason: str) -> dict[str, Any]:
    inside, reference = (plain.mean(place(cell) for cell in group) for group in groups)
    is_defined = inside is not None and reference is not None
    return {
        "n_in_domain": len(groups[0]),
        "n_reference": len(groups[1]),
        "mean_in_domain": inside,
        "mean_reference": reference,
        "difference": inside - reference if inside is not None and reference is not None else None,
        "reason": None if is_defined else reason,
    }


# --- calibration -----------------------------------------------------------------------------------------------------


def corruption_miscalibration(
    panel: Panel, run_records: Iterable[Row], axes: Iterable[Row], corruptions: Collection[str]
) -> Rows:
    """Return the rows of ``corruption_miscalibration`` from records at all labels."""
    eces: dict[Cell, dict[str, list[float]]] = {}
    for row in run_records:
        if row["label_fraction"] == 1.0:
            of_cell = eces.setdefault((row["encoder_id"], row["dataset_id"]), {})
            of_cell.setdefault(row["condition_id"], []).append(row["ece"])
    kept = {
        (row["encoder_id"], row["dataset_id"]): row["value"]
        for row in axes
        if (row["axis"], row["variant"]) == ("robustness", "corruption_only")
    }
    rises = {
        cell: {c: fmean(of_cell[c]) - fmean(of_cell["clean"]) for c in corruptions} for cell, of_cell in eces.items()
    }
    mean_rise = {cell: fmean(of_cell.values()) for cell, of_cell in rises.items()}
    pooled = sorted(cell for cell in rises if cell[0] in panel.members)
    r = pearson([1.0 - kept[cell] for cell in pooled], [mean_rise[cell] for cell in pooled])
    rows: Rows = []
    for (encoder, dataset), of_conditions in sorted(rises.items()):
        worst = max(sorted(of_conditions), key=of_conditions.__getitem__)
        rows.append(
            {
                "encoder_id": encoder,
                "dataset_id": dataset,
                "n_conditions": len(of_conditions),
                "mean_delta_ece": mean_rise[encoder, dataset],
                "worst_delta_ece": of_conditions[worst],
                "worst_condition_id": worst,
                "mean_relative_auroc_loss": 1.0 - kept[encoder, dataset],
                "max_mean_delta_ece": max(mean_rise[cell] for cell in pooled if cell[1] == dataset),
                "n_cells": len(pooled),
                "pearson": r,
                "reason": None,
            }
        )
    return rows


def calibration_repair(calibrated: Iterable[Row], run_records: Iterable[Row]) -> Rows:
    """Return the rows of ``calibration_repair`` without ``is_primary``, from records before and after repair."""
    before = {
        (row["encoder_id"], row["dataset_id"], row["seed"], row["condition_id"]): row
        for row in run_records
        if row["label_fraction"] == 1.0
    }
    of_key: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in calibrated:
        key = row["encoder_id"], row["dataset_id"], row["method"], row["condition_id"]
        of_key.setdefault(key, []).append(row)
    rows: Rows = []
    for (encoder, dataset, method, condition), own in sorted(of_key.items()):
        first = [before[encoder, dataset, row["seed"], condition] for row in own]
        ece_before, ece_after = fmean(row["ece"] for row in first), fmean(row["ece"] for row in own)
        rows.append(
            {
                "encoder_id": encoder,
                "dataset_id": dataset,
                "method": method,
                "condition_id": condition,
                "n_seeds": len(own),
                "n_seeds_accepted": sum(row["is_accepted"] for row in own),
                "n_seeds_no_gain": sum(row["refusal_reason"] == "no_gain" for row in own),
                "n_seeds_at_bound": sum(row["refusal_reason"] == "at_bound" for row in own),
                "ece_before": ece_before,
                "ece_after": ece_after,
                "relative_reduction": (ece_before - ece_after) / ece_before,
                "ece_floor_p95": fmean(row["ece_floor_p95"] for row in own),
                "delta_auroc": fmean(row["macro_auroc"] for row in own) - fmean(row["macro_auroc"] for row in first),
                "reason": None,
            }
        )
    return rows
