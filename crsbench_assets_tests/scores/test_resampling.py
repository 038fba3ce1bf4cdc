from __future__ import annotations

import math
from collections import Counter
from itertools import product
from typing import Any

import numpy as np
import polars as pl
import pytest
from scipy.optimize import brentq

from crsbench_assets.config.protocol import Protocol
from crsbench_assets.scores.crs import crs_scores
from crsbench_assets.scores.ensemble import Floats, score_ensemble
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.profile import axis_values
from crsbench_assets.scores.resampling import (
    RESAMPLINGS,
    Resampled,
    Resampling,
    enumerated_scores,
    recomputed_scores,
    resampled_scores,
    scored_candidates,
    seed_multisets,
)
from crsbench_assets_tests.scores.replicates import (
    Case,
    Cell,
    cell_axes_frame,
    encoders_of,
    every_axis,
    freeze_cells,
    protocol_of,
    replicates_frame,
)

# Two seeds, one dataset; every encoder has the same value on all four axes.
#
#            seed 0   seed 1   mean
#   floor    0        0        0
#   copy     0        0        0       equal to floor
#   steady   .5       .5       .5
#   swing    .25      .75      .5
#
# Anchors 0 and .5. Draws of the two seeds, P against four members, CRS = .5 P + .3 B + .2 W:
#
#            0, 0 (1 of 4)              0, 1 (2 of 4)         1, 1 (1 of 4)
#   steady   z 1    P .875   .9375      z 1   P .75   .875    z 1             P .625   .8125
#   swing    z .5   P .625   .5625      z 1   P .75   .875    z 1.5 (1)       P .875   .9375
#   floor    z 0    P .25    .125       as before             as before
#
# With the anchors of the draw, 0 and .75, under 1, 1: steady z 2/3, CRS .3125 + .2 + .4/3.
CELLS: dict[Cell, Any] = {
    ("floor", "near"): every_axis(0.0, 0.0),
    ("copy", "near"): every_axis(0.0, 0.0),
    ("steady", "near"): every_axis(0.5, 0.5),
    ("swing", "near"): every_axis(0.25, 0.75),
}
NO_REPLICATES = replicates_frame({})


@pytest.fixture
def two_seeds(protocol: Protocol) -> Protocol:
    return protocol_of(protocol, 2)


def enumerate_by_hand(two_seeds: Protocol) -> tuple[Resampled, Floats, Panel]:
    panel = freeze_cells(CELLS, two_seeds)
    found = enumerated_scores(cell_axes_frame(CELLS), encoders_of(CELLS), panel, two_seeds)
    assert not isinstance(found, str)
    return *found, panel


def test_multisets_are_counted_by_their_orders() -> None:
    for s in (1, 2, 3, 5):
        counts, n_ordered = seed_multisets(s)
        right = Counter(tuple(draw.count(seed) for seed in range(s)) for draw in product(range(s), repeat=s))
        assert {tuple(map(int, row)): n for row, n in zip(counts, n_ordered, strict=True)} == right
    assert (len(counts), n_ordered.sum()) == (126, 3125)
    counts, n_ordered = seed_multisets(7)
    assert (len(counts), n_ordered.sum()) == (math.comb(13, 7), 7**7)


def test_enumeration_by_hand(two_seeds: Protocol) -> None:
    found, n_ordered, panel = enumerate_by_hand(two_seeds)
    assert n_ordered.tolist() == [1, 2, 1]
    assert found.encoders == ("copy", "floor", "steady", "swing")
    assert found.is_member.all()
    assert found.values[:, 3, 0].tolist() == [[0.25] * 4, [0.5] * 4, [0.75] * 4]
    right = [[0.125, 0.125, 0.9375, 0.5625], [0.125, 0.125, 0.875, 0.875], [0.125, 0.125, 0.8125, 0.9375]]
    np.testing.assert_allclose(found.scores.crs, right, rtol=0, atol=1e-15)
    np.testing.assert_allclose(found.point.crs, right[1:2], rtol=0, atol=1e-15)
    right[2][2] = 0.3125 + 0.2 + 0.4 / 3
    np.testing.assert_allclose(recomputed_scores(found, panel, two_seeds.scores).crs, right, rtol=0, atol=1e-15)


def test_drawn_seeds_are_the_enumerated_ones(two_seeds: Protocol) -> None:
    panel = freeze_cells(CELLS, two_seeds)
    frames = cell_axes_frame(CELLS), NO_REPLICATES, encoders_of(CELLS), panel, two_seeds
    drawn = resampled_scores("seed", *frames)
    assert isinstance(drawn, Resampled)
    assert drawn.scores.crs.shape == (10_000, 4)
    listed, n_ordered, _ = enumerate_by_hand(two_seeds)
    bits, n_drawn = np.unique(drawn.scores.crs, axis=0, return_counts=True)
    order = np.lexsort(listed.scores.crs.T[::-1])
    np.testing.assert_array_equal(bits, listed.scores.crs[order])
    share = n_ordered[order] / 4
    assert (np.abs(n_drawn / 10_000 - share) < 4 * np.sqrt(share * (1 - share) / 10_000)).all()
    few = resampled_scores("seed", *frames, n_replicates=7)
    assert isinstance(few, Resampled)
    np.testing.assert_array_equal(few.scores.crs, drawn.scores.crs[:7])


def test_test_groups_by_hand(two_seeds: Protocol) -> None:
    # D, C, L, R of `swing` by seed, seed values .25 and .75 (mean .5), in two replicates, the others stay:
    #   0   .5 1    .125 .375   0 .5   .25 .75     means .75, 2 x .5 - .25 = .75, .25, .5; z 1.5 1.5 .5 1
    #   1   .25 .75  1   1      .25 .75 .25 .75    means .5, 2 x .5 - 1 = 0, .5, .5;       z 1 0 1 1
    still = {cell: np.tile(np.asarray(values), (2, 1, 1)) for cell, values in CELLS.items()}
    swing = np.array(
        [
            [[0.5, 1], [0.125, 0.375], [0, 0.5], [0.25, 0.75]],
            [[0.25, 0.75], [1, 1], [0.25, 0.75], [0.25, 0.75]],
        ]
    )
    panel = freeze_cells(CELLS, two_seeds)
    replicates = replicates_frame(still | {("swing", "near"): swing})
    found = resampled_scores("test", cell_axes_frame(CELLS), replicates, encoders_of(CELLS), panel, two_seeds)
    assert isinstance(found, Resampled)
    assert found.values[:, 3, 0].tolist() == [[0.75, 0.75, 0.25, 0.5], [0.5, 0.0, 0.5, 0.5]]
    # swing, replicate 0: x 1 1 .5 1, dominates floor and copy: P .75, B 1 - sqrt(.25 x .25) = .75, W .5
    # replicate 1: x 1 0 1 1, below steady and above the two: P .625, B 1 - .5 = .5, W 0
    np.testing.assert_allclose(found.scores.crs[:, 3], [0.7, 0.4625], rtol=0, atol=1e-15)
    np.testing.assert_allclose(found.scores.crs[:, 2], [0.875, 0.9375], rtol=0, atol=1e-15)


def test_a_reflected_calibration_ends_at_one_and_at_nought(two_seeds: Protocol) -> None:
    cells: dict[Cell, Any] = {("good", "near"): every_axis(0.9, 0.9), ("bad", "near"): every_axis(0.1, 0.1)}
    replicates = replicates_frame({("good", "near"): [every_axis(0.7, 0.7)], ("bad", "near"): [every_axis(0.3, 0.3)]})
    panel = freeze_cells(cells, two_seeds)
    found = resampled_scores("test", cell_axes_frame(cells), replicates, encoders_of(cells), panel, two_seeds)
    assert isinstance(found, Resampled)
    np.testing.assert_allclose(found.values[0, :, 0], [[0.3, 0, 0.3, 0.3], [0.7, 1, 0.7, 0.7]], rtol=0, atol=1e-15)


# Any panel, in plain Python ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("resampling", RESAMPLINGS)
def test_agrees_with_plain_python(seed: int, resampling: Resampling, protocol: Protocol) -> None:
    case = Case(seed, protocol)
    found = case.resampled(resampling)
    recomputed = recomputed_scores(found, case.panel, protocol.scores)
    assert found.encoders == tuple(sorted({encoder for encoder, _ in case.active} - {"e2"}))
    assert found.is_member.tolist() == [encoder != "e0" for encoder in found.encoders]
    for r, drawn in enumerate(case.draws(resampling)):
        for scores, is_recomputed in ((found.scores, False), (recomputed, True)):
            right = case.plain(resampling, r, drawn, is_recomputed=is_recomputed)
            np.testing.assert_allclose(
                scores.crs[r], [right[encoder] for encoder in found.encoders], rtol=0, atol=1e-12
            )


@pytest.mark.parametrize("seed", range(6))
def test_the_point_is_the_published_score(seed: int, protocol: Protocol) -> None:
    case = Case(seed, protocol)
    case.cells["e3" if ("e3", "near") in case.cells else "e0", "near"] = np.full((4, 5), 0.8)  # recomputed since
    axes, encoders = cell_axes_frame(case.cells), encoders_of(case.active)
    values = axis_values(axes, case.panel.conditions.robustness_variant)
    published, _ = crs_scores(values, encoders, case.panel, protocol, code_version=1)
    found = scored_candidates(axes, encoders, case.panel, protocol)
    scored = published.filter(pl.col("crs").is_not_null())
    assert scored["encoder_id"].to_list() == list(found.encoders)
    for name in ("crs", "pareto", "balance", "worst"):
        np.testing.assert_allclose(getattr(found.point, name)[0], scored[name].to_numpy(), rtol=0, atol=1e-12)


def test_order_and_names_move_nothing(protocol: Protocol) -> None:
    case = Case(1, protocol)
    names = {"e0": "zz", "e1": "e1", "e2": "b", "e3": "a", "e4": "e4", "e5": "c", "e6": "d"}

    def scores(
        cells: dict[Cell, Any], replicates: dict[Cell, Any], panel: Panel, active: dict[Cell, Any], control: str
    ) -> dict[str, list[float]]:
        axes, of_replicates = cell_axes_frame(cells), replicates_frame(replicates)
        found = resampled_scores(
            "seed_test",
            axes.sample(fraction=1, shuffle=True, seed=0),
            of_replicates.sample(fraction=1, shuffle=True, seed=0),
            encoders_of(active, controls=(control,)).reverse(),
            panel,
            protocol,
        )
        assert isinstance(found, Resampled)
        return dict(zip(found.encoders, found.scores.crs.T.tolist(), strict=True))

    first = scores(case.cells, case.replicates, case.panel, case.active, "e2")
    np.testing.assert_array_equal(list(first.values()), case.resampled("seed_test").scores.crs.T)

    def renamed(cells: dict[Cell, Any]) -> dict[Cell, Any]:
        return {(names[encoder], dataset): values for (encoder, dataset), values in cells.items()}

    members = {cell: values for cell, values in case.cells.items() if cell[0] != "e0"}
    panel = freeze_cells(renamed(members), protocol).model_copy(update={"name": "provisional"})
    original = freeze_cells(members, protocol).model_copy(update={"name": "provisional"})
    one = scores(case.cells, case.replicates, original, case.active, "e2")
    other = scores(renamed(case.cells), renamed(case.replicates), panel, renamed(case.active), "b")
    assert {names[encoder]: values for encoder, values in one.items()} == other


def test_who_joins_moves_no_score_of_a_frozen_panel(protocol: Protocol) -> None:
    case = Case(2, protocol)
    before = case.resampled("seed_test")
    late = {("late", dataset): np.full((4, 5), 0.99) for dataset in case.panel.datasets}
    case.cells |= late
    case.active |= late
    case.replicates |= {cell: np.tile(values, (40, 1, 1)) for cell, values in late.items()}
    after = case.resampled("seed_test")
    assert "late" in after.encoders
    places = [after.encoders.index(encoder) for encoder in before.encoders]
    np.testing.assert_array_equal(after.scores.crs[:, places], before.scores.crs)


def test_undefined_draws_of_who_joins_move_nobody(two_seeds: Protocol) -> None:
    cells, replicates = two_datasets(40)
    panel = freeze_cells(cells, two_seeds)

    def found(cells: dict[Cell, Any], replicates: dict[Cell, Any]) -> Resampled:
        frames = cell_axes_frame(cells), replicates_frame(replicates), encoders_of(cells), panel, two_seeds
        resampled = resampled_scores("seed_test", *frames)
        assert isinstance(resampled, Resampled)
        return resampled

    before = found(cells, replicates)
    late = replicates["near", "near"] + 0.2
    late[3] = np.nan  # 39 of 40 are enough for an interval of its own draws, and not for those of the panel
    after = found(cells | {("late", "near"): every_axis(0.7, 0.7)}, replicates | {("late", "near"): late})
    assert after.encoders == before.encoders
    np.testing.assert_array_equal(after.scores.crs, before.scores.crs)


def test_equal_encoders_have_equal_bits(protocol: Protocol) -> None:
    case = Case(3, protocol)
    twins = {("twin", dataset): values for (encoder, dataset), values in case.active.items() if encoder == "e3"}
    case.cells |= twins
    case.active |= twins
    case.replicates |= {("twin", dataset): case.replicates["e3", dataset] for _, dataset in twins}
    for resampling in RESAMPLINGS:
        found = case.resampled(resampling)
        twin, original = found.encoders.index("twin"), found.encoders.index("e3")
        np.testing.assert_array_equal(found.scores.crs[:, twin], found.scores.crs[:, original])
        recomputed = recomputed_scores(found, case.panel, protocol.scores)
        np.testing.assert_array_equal(recomputed.crs[:, twin], recomputed.crs[:, original])


# What cannot be resampled --------------------------------------------------------------------------------------------


def two_datasets(b: int) -> tuple[dict[Cell, Any], dict[Cell, Any]]:
    """Return cells of `both`, `near` and `far`, and b replicates in which replicate r has the value r / 100."""
    cells: dict[Cell, Any] = {
        ("both", "near"): every_axis(0.5, 0.6),
        ("both", "far"): every_axis(0.5, 0.6),
        ("near", "near"): every_axis(0.1, 0.1),
        ("far", "far"): every_axis(0.1, 0.1),
    }
    numbered = np.repeat(np.arange(b) / 100, 8).reshape(b, 4, 2)
    return cells, {cell: numbered.copy() for cell in cells}


def test_undefined_draws_are_left_out_for_all_of_their_dataset(two_seeds: Protocol) -> None:
    cells, replicates = two_datasets(40)
    replicates["near", "near"][3, 2, 1] = np.nan  # one seed of one axis
    replicates["both", "far"][0] = np.nan
    replicates["both", "far"][7] = np.nan
    panel = freeze_cells(cells, two_seeds)
    frames = cell_axes_frame(cells), replicates_frame(replicates), encoders_of(cells), panel, two_seeds
    found = resampled_scores("test", *frames)
    assert isinstance(found, Resampled)
    assert found.encoders == ("both", "far", "near")
    right = {"near": [r for r in range(40) if r != 3][:38], "far": [r for r in range(40) if r not in (0, 7)]}
    for encoder, dataset in cells:
        of_cell = found.values[:, found.encoders.index(encoder), panel.datasets.index(dataset)]
        np.testing.assert_allclose(of_cell[:, 0], np.array(right[dataset]) / 100, rtol=0, atol=1e-15)
    few = resampled_scores("test", *frames, n_replicates=5)
    assert isinstance(few, Resampled)
    np.testing.assert_array_equal(few.scores.crs, found.scores.crs[:5])


def test_who_has_too_few_draws_is_left_out(two_seeds: Protocol) -> None:
    cells, replicates = two_datasets(40)
    panel = freeze_cells(cells, two_seeds)
    axes, encoders = cell_axes_frame(cells), encoders_of(cells)

    def left(replicates: dict[Cell, Any], resampling: Any = "seed_test") -> tuple[str, ...] | str:
        found = resampled_scores(resampling, axes, replicates_frame(replicates), encoders, panel, two_seeds)
        return found if isinstance(found, str) else found.encoders

    replicates["near", "near"][:3] = np.nan  # 37 of 40
    assert left(replicates) == ("both", "far")
    assert left({cell: v for cell, v in replicates.items() if cell[0] != "near"}) == ("both", "far")
    replicates["both", "near"][:3] = np.nan
    assert left(replicates) == ("far",)
    replicates["far", "far"][:] = np.nan
    assert left(replicates) == left({}) == left(replicates, "test") == "no_replicates"
    assert left({}, "seed") == ("both", "far", "near")
    # each of two has enough draws of its own, and not the same
    cells, replicates = two_datasets(40)
    replicates["near", "near"][:2] = np.nan
    replicates["both", "near"][2:4] = np.nan
    assert left(replicates) == "no_replicates"


def test_one_seed_cannot_be_redrawn(protocol: Protocol) -> None:
    one_seed = protocol_of(protocol, 1)
    cells: dict[Cell, Any] = {("a", "near"): every_axis(0.5), ("b", "near"): every_axis(0.6)}
    panel = freeze_cells(cells, one_seed)
    replicates = replicates_frame({cell: [values, values] for cell, values in cells.items()})
    frames = cell_axes_frame(cells), replicates, encoders_of(cells), panel, one_seed
    assert [resampled_scores(r, *frames) for r in ("seed", "seed_test")] == ["one_seed", "one_seed"]
    assert isinstance(resampled_scores("test", *frames), Resampled)
    assert enumerated_scores(frames[0], *frames[2:]) == "one_seed"


def test_eight_seeds_are_too_many_to_list(protocol: Protocol) -> None:
    for n_seeds, is_listed in ((7, True), (8, False)):
        many = protocol_of(protocol, n_seeds)
        cells: dict[Cell, Any] = {("a", "near"): [[0.5] * n_seeds] * 4, ("b", "near"): [[0.6] * n_seeds] * 4}
        panel = freeze_cells(cells, many)
        found = enumerated_scores(cell_axes_frame(cells), encoders_of(cells), panel, many)
        assert (found == "not_enumerated") is not is_listed


def test_who_has_no_score_and_why(two_seeds: Protocol) -> None:
    panel = freeze_cells(CELLS, two_seeds)
    broken = np.array(every_axis(0.5, 0.5))
    broken[2] = np.nan
    others: dict[Cell, Any] = {
        ("half", "near"): broken,
        ("elsewhere", "new"): every_axis(0.5, 0.5),
        ("wide", "near"): every_axis(0.5, 0.5),
        ("wide", "new"): broken,  # the panel does not have that dataset
        ("null", "near"): every_axis(0.1, 0.1),
    }
    cells = {**CELLS, **others}
    encoders = encoders_of(cells | {("missing", "near"): None}, controls=("null",))
    found = scored_candidates(cell_axes_frame(cells), encoders, panel, two_seeds)
    assert found.encoders == ("copy", "floor", "steady", "swing", "wide")
    assert found.is_member.tolist() == [True] * 4 + [False]
    assert found.reasons == {"elsewhere": "no_anchor", "half": "incomplete", "missing": "incomplete"}
    nobody = encoders.filter(pl.col("encoder_id").is_in(["half", "null"]))
    for resampling in RESAMPLINGS:
        frames = cell_axes_frame(cells), NO_REPLICATES, nobody, panel, two_seeds
        assert resampled_scores(resampling, *frames) == "incomplete"
    assert enumerated_scores(cell_axes_frame(cells), nobody, panel, two_seeds) == "incomplete"
    assert (
        resampled_scores("seed", cell_axes_frame({}), NO_REPLICATES, nobody.clear(), panel, two_seeds) == "incomplete"
    )


# Why the calibration axis is reflected -------------------------------------------------------------------------------


def top_label_ece(confidence: Floats, is_right: Floats, weights: Floats) -> Floats:
    """Return the ECE in 15 bins (b,) under image weights (b, n)."""
    bins = np.clip(np.ceil(confidence * 15).astype(int) - 1, 0, 14)
    gaps = np.zeros((len(confidence), 15))
    gaps[np.arange(len(confidence)), bins] = confidence - is_right
    return np.asarray(np.abs(weights @ gaps).sum(axis=1) / weights.sum(axis=1))


def overconfident(p: Floats) -> Floats:
    return 1 / (1 + (1 / p - 1) ** 1.6)


def equal_pair(rng: np.random.Generator, ece: float, protocol: Protocol) -> tuple[Floats, Floats, Floats] | None:
    """Return low and high anchors (d, k) and values (m, k) of two encoders of equal score and of two members.

    The first is perfectly calibrated, the second has this ECE and more discrimination; None where nothing evens it.
    """
    low = np.array([[0.6, rng.uniform(0.75, 0.88), 0.9, 0.9]])
    high = np.array([[0.9, rng.uniform(0.95, 1.0), 1.0, 1.0]])
    pair = np.repeat(rng.uniform(0.2, 0.9, (1, 4)), 2, axis=0)
    pair[1, 2:] += rng.normal(0, 0.1, 2)
    pair[:, 1] = (1 - np.array([0, ece]) - low[0, 1]) / (high - low)[0, 1]
    members = np.repeat([[0.2], [0.8]], 4, axis=1)

    def lead(discrimination: float) -> float:
        pair[1, 0] = discrimination
        values = low + (high - low) * np.vstack([pair, members])
        crs = scored(values[None], low, high, protocol)
        return float(crs[0, 0] - crs[0, 1])

    if lead(0.05) * lead(0.98) > 0:
        return None
    root = brentq(lead, 0.05, 0.98)
    return (low, high, low + (high - low) * np.vstack([pair, members])) if abs(lead(root)) < 1e-6 else None


def scored(values: Floats, low: Floats, high: Floats, protocol: Protocol) -> Floats:
    is_member = np.array([False, False, True, True])
    return score_ensemble(values[:, :, None], low, high, protocol.scores, is_member).crs


@pytest.mark.slow
def test_reflection_tilts_least(protocol: Protocol) -> None:
    rng = np.random.default_rng(0)
    n, b, n_samples, sd = 732, 400, 100, np.array([0.03, 0, 0.03, 0.03])

    def confidences(n: int) -> Floats:
        return 0.3 + 0.7 * rng.beta(3, 1.5, n)

    many = confidences(1_000_000)
    ece = float(top_label_ece(overconfident(many), many, np.ones((1, len(many))))[0])
    pairs = [pair for _ in range(40) if (pair := equal_pair(rng, ece, protocol))][:12]
    tilts: dict[str, list[float]] = {"reflected": [], "centred": [], "as they are": []}
    n_covered = dict.fromkeys(tilts, 0)
    for _ in range(n_samples):
        p = confidences(n)
        stated = [p, overconfident(p)]
        is_right = [(rng.random(n) < p).astype(float) for _ in stated]
        weights = rng.multinomial(n, np.full(n, 1 / n), size=b).astype(float)
        axis, replicate = (
            1 - np.stack([top_label_ece(c, y, w) for c, y in zip(stated, is_right, strict=True)], axis=1)
            for w in (np.ones((1, n)), weights)
        )
        for low, high, true in pairs:
            truth = scored(true[None], low, high, protocol)[0]
            drawn = np.repeat(true[None], b, axis=0)
            drawn[:, :2] += (high - low) * sd * (rng.normal(size=(1, 2, 4)) + rng.normal(size=(b, 2, 4)))
            for name, calibration in (
                ("reflected", 2 * axis - replicate),
                ("centred", axis + replicate - replicate.mean(axis=0)),
                ("as they are", replicate),
            ):
                drawn[:, :2, 1] = np.clip(calibration, 0, 1)
                crs = scored(drawn, low, high, protocol)[:, :2]
                tilts[name].append(float((crs[:, 0] > crs[:, 1]).mean() + 0.5 * (crs[:, 0] == crs[:, 1]).mean()))
                bounds = np.quantile(crs, [0.025, 0.975], axis=0)
                n_covered[name] += int(((bounds[0] <= truth[:2]) & (truth[:2] <= bounds[1])).sum())
    tilt = {name: abs(float(np.mean(found)) - 0.5) for name, found in tilts.items()}
    assert tilt["reflected"] < min(tilt["centred"], tilt["as they are"])
    assert n_covered["reflected"] > n_covered["centred"] > n_covered["as they are"]
    assert n_covered["reflected"] / (2 * n_samples * len(pairs)) > 0.88
