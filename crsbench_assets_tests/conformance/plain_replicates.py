"""Ranks and scores under redrawn seeds and test groups a second time, in plain Python.

What lives here: the exact enumeration of the seed draws with the leading tier; the scores of every stored replicate of
the axes; what follows from them: probabilities of ranks, intervals, tie groups, dominance, resolved reversals and the
error of an axis. What stays out: the implementation (``crsbench_assets.scores.resampling``, ``analyses``); what needs
no replicate (``plain_analyses``); the replicates themselves, which are rows of ``axis_replicates``.
Source: protocol page, sections 7 (ranks, tie groups) and 8 (``bootstrap_ranks``, ``dominance``). No array library, no
import from the package.

Which seeds a replicate draws is an argument: a comparison gives the draws of the implementation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, combinations_with_replacement, product
from statistics import fmean, variance
from typing import NamedTuple

from crsbench_assets_tests.conformance import plain
from crsbench_assets_tests.conformance.plain import Cell
from crsbench_assets_tests.conformance.plain_analyses import Profile, Values, common_datasets, parts, profiles
from crsbench_assets_tests.conformance.plain_statistics import quantile, top_share

SEPARATED = 0.975
"""Probability from which on one encoder counts as better than another."""

SeedValues = Mapping[tuple[Cell, str], Sequence[float]]
"""Cell and axis -> value of every seed."""
Replicates = Mapping[tuple[Cell, str], Sequence[Sequence[float]]]
"""Cell and axis -> replicate -> value of every seed."""


class Scored(NamedTuple):
    """All members in one replicate."""

    values: Values
    profiles: dict[str, Profile]
    crs: dict[str, float]


def scored(values: Values, members: Sequence[str], anchors: Mapping[tuple[str, str], plain.Anchor] | None) -> Scored:
    """Return the scores of one replicate, under given anchors or, with None, under its own."""
    found = profiles(values, members, anchors)
    return Scored(values, found, {encoder: own.crs for encoder, own in parts(found).items()})


# --- seeds alone -----------------------------------------------------------------------------------------------------


def multisets(n_seeds: int) -> Iterator[tuple[list[int], int]]:
    """Yield every multiset of drawn seeds, and how many of the n^n ordered draws give it.

    >>> [(list(drawn), n) for drawn, n in multisets(2)]
    [([0, 0], 1), ([0, 1], 2), ([1, 1], 1)]
    """
    for drawn in combinations_with_replacement(range(n_seeds), n_seeds):
        repeats = math.prod(math.factorial(drawn.count(seed)) for seed in set(drawn))
        yield list(drawn), math.factorial(n_seeds) // repeats


def drawn_values(seed_values: SeedValues, drawn: Sequence[int]) -> Values:
    """Return cell -> axis -> mean over the drawn seeds, each as often as it was drawn."""
    found: Values = {}
    for (cell, axis), of_seeds in seed_values.items():
        found.setdefault(cell, {})[axis] = fmean(of_seeds[seed] for seed in drawn)
    return found


class Enumeration(NamedTuple):
    """What holds over all ordered draws of the seeds."""

    n_draws: int
    p_best: dict[str, float]
    p_top_3: dict[str, float]
    tier: list[str]
    """Leading tier; empty where there is none."""
    scores: dict[tuple[int, ...], dict[str, float]]
    """CRS under every multiset of drawn seeds."""


def enumeration(
    seed_values: SeedValues, members: Sequence[str], anchors: Mapping[tuple[str, str], plain.Anchor] | None
) -> Enumeration:
    """Return probabilities of the first rank and the top 3 over all draws, and the leading tier."""
    (n_seeds,) = {len(of_seeds) for of_seeds in seed_values.values()}
    total = n_seeds**n_seeds
    found = [(n, scored(drawn_values(seed_values, drawn), members, anchors).crs) for drawn, n in multisets(n_seeds)]
    return Enumeration(
        n_draws=sum(n for _, n in multisets(n_seeds)),
        p_best={member: math.fsum(n * top_share(crs, 1)[member] for n, crs in found) / total for member in members},
        p_top_3={member: math.fsum(n * top_share(crs, 3)[member] for n, crs in found) / total for member in members},
        tier=leading_tier([crs for _, crs in found]),
        scores={tuple(drawn): crs for (drawn, _), (_, crs) in zip(multisets(n_seeds), found, strict=True)},
    )


def leading_tier(draws: Sequence[Mapping[str, float]]) -> list[str]:
    """Return the smallest top set that is the same in every draw, if it is smaller than all; else an empty list.

    A set leads a draw where all of it score strictly higher than all others.

    >>> leading_tier([{"a": 3.0, "b": 2.0, "c": 1.0}, {"a": 2.0, "b": 3.0, "c": 1.0}])
    ['a', 'b']
    """
    names = sorted(draws[0], key=lambda name: -draws[0][name])
    for size in range(1, len(names)):
        top, rest = names[:size], names[size:]
        if all(min(crs[name] for name in top) > max(crs[name] for name in rest) for crs in draws):
            return sorted(top)
    return []


# --- test groups -----------------------------------------------------------------------------------------------------


def drawn_scores(
    replicates: Replicates,
    seed_values: SeedValues,
    members: Sequence[str],
    anchors: Mapping[tuple[str, str], plain.Anchor] | None,
    drawn: Sequence[Sequence[int]],
) -> list[Scored]:
    """Return the scores of every replicate of the test groups.

    A replicate of the calibration error carries its upward bias once more than the estimate does, so it is reflected
    at the estimate over the same seeds, as the basic interval does; no reflected error is below 0 or above 1.

    Args:
        replicates: value of every seed under the group weights of every replicate.
        seed_values: value of every seed on the test groups as they are.
        members: encoders to score.
        anchors: anchors that hold in every replicate; None: those of the replicate.
        drawn: the seeds of every replicate, the same for all encoders, datasets and axes; all of them where seeds are
            not redrawn.
    """
    found = []
    for b, seeds in enumerate(drawn):
        values: Values = {}
        for (cell, axis), own in replicates.items():
            value = fmean(own[b][seed] for seed in seeds)
            if axis == "calibration":
                value = plain.clipped(2.0 * fmean(seed_values[cell, axis][seed] for seed in seeds) - value)
            values.setdefault(cell, {})[axis] = value
        found.append(scored(values, members, anchors))
    return found


def p_top(draws: Sequence[Mapping[str, float]], size: int) -> dict[str, float]:
    """Return the probability of a place in the top set, ties shared."""
    shares = [top_share(crs, size) for crs in draws]
    return {name: fmean(share[name] for share in shares) for name in draws[0]}


def rank_interval(draws: Sequence[Mapping[str, float]]) -> dict[str, tuple[int, int]]:
    """Return encoder -> best and worst competition rank without the 2.5 % best and the 2.5 % worst draws."""
    ranks = [plain.competition_ranks(dict(crs)) for crs in draws]
    left_out = len(draws) // 40
    ordered = {name: sorted(rank[name] for rank in ranks) for name in draws[0]}
    return {name: (own[left_out], own[-1 - left_out]) for name, own in ordered.items()}


def firmness(draws: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return encoder -> intervals of score and rank and the probabilities of the first places."""
    best, top, ranks = p_top(draws, 1), p_top(draws, 3), rank_interval(draws)
    return {
        name: {
            "n_replicates": len(draws),
            "crs_ci_low": quantile([crs[name] for crs in draws], 0.025),
            "crs_ci_high": quantile([crs[name] for crs in draws], 0.975),
            "rank_lo": ranks[name][0],
            "rank_hi": ranks[name][1],
            "p_best": best[name],
            "p_top_3": top[name],
        }
        for name in draws[0]
    }


def p_above(draws: Sequence[Mapping[str, float]]) -> dict[tuple[str, str], float]:
    """Return ordered pair -> share of the draws in which the first is strictly higher."""
    names = list(draws[0])
    return {
        (one, other): sum(draw[one] > draw[other] for draw in draws) / len(draws)
        for one, other in product(names, names)
        if one != other
    }


def tie_groups(crs: Mapping[str, float], above: Mapping[tuple[str, str], float]) -> dict[str, int]:
    """Return encoder -> number of its tie group, 1 for the group that leads.

    >>> tie_groups({"a": 0.9, "b": 0.5, "c": 0.4}, {**{(i, j): 1.0 for i in "abc" for j in "abc"}, ("b", "c"): 0.9})
    {'a': 1, 'b': 2, 'c': 2}
    """
    order = sorted(crs, key=lambda name: (-crs[name], name))
    groups = {order[0]: 1}
    for r in range(1, len(order)):
        is_cut = all(above[i, j] >= SEPARATED for i in order[:r] for j in order[r:])
        groups[order[r]] = groups[order[r - 1]] + is_cut
    return groups


def p_dominates(draws: Iterable[Scored]) -> dict[tuple[str, str], float]:
    """Return ordered pair -> share of the replicates in which the first dominates the second."""
    found = list(draws)
    names = list(found[0].profiles)
    return {
        (one, other): fmean(plain.dominates(d.profiles[one].raw, d.profiles[other].raw) for d in found)
        for one, other in product(names, names)
        if one != other
    }


def auroc_draws(draws: Sequence[Scored], variant: str) -> list[dict[str, float]]:
    """Return, for every replicate, the AUROC score of every encoder, under the variants of ``rank_agreement``.

    The profile is unclipped: clipped, encoders beyond an anchor would tie, and neither order would tell them apart.
    """
    if variant == "profile":
        return [{encoder: profile.raw[0] for encoder, profile in draw.profiles.items()} for draw in draws]
    members = list(draws[0].profiles)
    datasets = common_datasets(draws[0].values, members)
    return [
        {encoder: fmean(draw.values[encoder, d]["discrimination"] for d in datasets) for encoder in members}
        for draw in draws
    ]


def crs_draws(draws: Sequence[Scored], variant: str) -> list[dict[str, float]]:
    """Return, for every replicate, the CRS of every encoder, under the variants of ``rank_agreement``."""
    if variant == "primary":
        return [draw.crs for draw in draws]
    return [{encoder: own.crs for encoder, own in parts(draw.profiles, (1, 2, 3)).items()} for draw in draws]


def resolved_reversals(
    auroc: Mapping[str, float],
    crs: Mapping[str, float],
    auroc_above: Mapping[tuple[str, str], float],
    crs_above: Mapping[tuple[str, str], float],
) -> int:
    """Count the pairs that the two orders rank opposite and that both separate."""
    return sum(
        auroc[one] > auroc[other]
        and crs[one] < crs[other]
        and auroc_above[one, other] >= SEPARATED
        and crs_above[other, one] >= SEPARATED
        for one, other in product(auroc, auroc)
    )


def error_variance(draws: Sequence[Scored], cells: Sequence[Cell], axis: str) -> tuple[float, float]:
    """Return the mean variance of an axis over its cells, and the mean variance of a difference of two cells."""
    columns = [[draw.values[cell][axis] for draw in draws] for cell in cells]
    differences = [[a - b for a, b in zip(one, other, strict=True)] for one, other in combinations(columns, 2)]
    return fmean(variance(column) for column in columns), fmean(variance(own) for own in differences)


def regret_interval(draws: Sequence[Scored], chosen: str, weights: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of what is lost by a choice that stays as it is, under weights of the four axes.

    A loss is what an encoder's unclipped profile has more than the choice's, or than the mean where ``chosen`` is
    empty. High: the largest of the encoders' upper percentiles. Low: the largest of the order statistics of the
    highest common number k such that 97.5 % of the draws lie nowhere below them. Both cut to [0, 1].
    """
    losses: dict[str, list[float]] = {encoder: [] for encoder in draws[0].profiles}
    for draw in draws:
        held = {
            encoder: math.fsum(w * x for w, x in zip(weights, profile.raw, strict=True))
            for encoder, profile in draw.profiles.items()
        }
        kept = held[chosen] if chosen else fmean(held.values())
        for encoder, own in held.items():
            losses[encoder].append(own - kept)
    ordered = {encoder: sorted(own) for encoder, own in losses.items()}

    def kept_share(k: int) -> float:
        bounds = {encoder: own[k - 1] for encoder, own in ordered.items()}
        return fmean(all(losses[e][b] >= bound for e, bound in bounds.items()) for b in range(len(draws)))

    # The share falls as k rises; at k = 1 it is 1.
    low, high = 1, len(draws)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if kept_share(middle) >= SEPARATED else (low, middle - 1)
    best = max(own[low - 1] for own in ordered.values())
    return plain.clipped(best), plain.clipped(max(quantile(own, 0.975) for own in ordered.values()))
