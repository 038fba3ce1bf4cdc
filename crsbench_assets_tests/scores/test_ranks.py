from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from crsbench_assets.config.protocol import Protocol
from crsbench_assets.scores.crs import crs_scores, unscored
from crsbench_assets.scores.ensemble import Scores
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.ranks import (
    REPLICATE_COLUMNS,
    competition_ranks,
    rank_intervals,
    ranks,
    tie_groups,
)
from crsbench_assets.scores.resampling import Resampled
from crsbench_assets.tables.scores import SCORE_TABLES
from crsbench_assets_tests.scores.conftest import DELTA, MEMBERS, Cohort, encoders_frame, values_frame
from crsbench_assets_tests.tables.rows import written


def test_competition_ranks_by_hand() -> None:
    assert competition_ranks([0.5, 0.9, 0.5, 0.1]).tolist() == [2, 1, 2, 4]
    assert competition_ranks([]).tolist() == []
    assert competition_ranks([0.5, math.nextafter(0.5, 1)]).tolist() == [2, 1]  # unrounded
    with pytest.raises(ValueError, match="NaN"):
        competition_ranks([0.5, math.nan])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]), min_size=1))
def test_competition_ranks_agree_with_scipy(scores: list[float]) -> None:
    assert competition_ranks(scores).tolist() == rankdata([-s for s in scores], method="min").tolist()


def test_ranks_of_candidates(panel: Panel, protocol: Protocol) -> None:
    # CRS: alpha .649, delta .642, beta .503, gamma .083; the control would be second; half is incomplete.
    cohort: Cohort = MEMBERS | DELTA | {"null": MEMBERS["alpha"], "half": {"near": (None, 1.0, 1.0, 1.0)}}
    encoders = encoders_frame(cohort, ("null",))
    scores, _ = crs_scores(values_frame(cohort), encoders, panel, protocol, code_version=1)
    frame = ranks(scores.reverse(), encoders)
    (spec,) = (spec for spec in SCORE_TABLES if spec.name == "ranks")
    assert frame.schema == spec.computed_schema()
    assert dict(frame.select("encoder_id", "rank").rows()) == {
        "alpha": 1, "beta": 3, "delta": 2, "gamma": 4, "half": None, "null": None,
    }  # fmt: skip
    assert frame["encoder_id"].is_sorted()
    assert set(frame["n_ranked"]) == {4}
    reasons = {"half": "incomplete", "null": None} | dict.fromkeys(["alpha", "beta", "delta", "gamma"], "no_replicates")
    assert dict(frame.select("encoder_id", "reason").rows()) == reasons
    assert frame.select(REPLICATE_COLUMNS).null_count().row(0) == (6,) * 4


def test_panels_are_ranked_apart(panel: Panel, protocol: Protocol) -> None:
    encoders = encoders_frame(MEMBERS)
    scores, _ = crs_scores(values_frame(MEMBERS), encoders, panel, protocol, code_version=1)
    both = pl.concat([scores, unscored(encoders, "provisional", "no_panel")])
    frame = ranks(both, encoders)
    assert frame.select("panel_id", "n_ranked").unique().sort("panel_id").rows() == [
        (panel.panel_id, 3),
        ("provisional", 0),
    ]
    assert frame.filter(pl.col("panel_id") == "provisional")["reason"].to_list() == ["no_panel"] * 3


def test_refuses_scores_of_unknown_encoders(panel: Panel, protocol: Protocol) -> None:
    scores, _ = crs_scores(values_frame(MEMBERS), encoders_frame(MEMBERS), panel, protocol, code_version=1)
    with pytest.raises(ValueError, match="gamma"):
        ranks(scores, encoders_frame(MEMBERS).filter(pl.col("encoder_id") != "gamma"))


# Scores of four encoders in 40 replicates, and their ranks:
#
#              38 times      once          once
#   first      .9   1        .9   2        .1   4
#   second     .5   2        .95  1        .5   1
#   third      .3   3        .3   3        .3   2
#   copy       .3   3        .3   3        .3   2     equal to third
#
# P(first > second) = 38 / 40 = .95, P(first > third) = 39 / 40 = .975, P(second > third) = 1.
REPLICATES = np.array([[0.9, 0.5, 0.3, 0.3]] * 38 + [[0.9, 0.95, 0.3, 0.3], [0.1, 0.5, 0.3, 0.3]])


def resampled_of(encoders: Sequence[str], crs: ArrayLike) -> Resampled:
    """Return replicates of which only the score counts here."""
    scores = np.asarray(crs, dtype=np.float64)
    b, m = scores.shape
    profiles, parts = np.zeros((b, m, 4)), np.zeros((b, m))
    of_replicates = Scores(profiles, profiles, parts, parts, parts, scores)
    values = np.zeros((b, m, 1, 4))
    return Resampled(tuple(encoders), ("near",), np.ones(m, dtype=bool), values, of_replicates, of_replicates)


def test_rank_intervals_by_hand() -> None:
    # one replicate of 40 is left out on either side
    low, high = rank_intervals(REPLICATES)
    assert (low.tolist(), high.tolist()) == ([1, 1, 3, 3], [2, 2, 3, 3])
    assert [bound.tolist() for bound in rank_intervals(REPLICATES[-1:])] == [[4, 1, 2, 2]] * 2
    equal = rank_intervals(np.full((100, 3), 0.5))
    assert [bound.tolist() for bound in equal] == [[1, 1, 1]] * 2


def test_tie_groups_by_hand() -> None:
    assert tie_groups([0, 1, 2, 3], REPLICATES).tolist() == [1, 1, 2, 2]
    # .95 does not separate the first two, 39 of 40 does
    assert tie_groups([0, 1], REPLICATES[:, :2]).tolist() == [1, 1]
    assert tie_groups([0, 1], REPLICATES[:, [0, 2]]).tolist() == [1, 2]
    assert tie_groups([0, 1], REPLICATES[[0] * 38 + [-1] * 2][:, [0, 2]]).tolist() == [1, 1]
    assert tie_groups([0], REPLICATES[:, :1]).tolist() == [1]
    # in an order that the replicates contradict nothing is separated
    assert tie_groups([3, 2, 1, 0], REPLICATES).tolist() == [1] * 4


def test_a_cut_needs_every_pair_across_it() -> None:
    # a > b always, but c exceeds a in half of the replicates: no cut above c, so none after a
    scores = np.array([[0.9, 0.5, 0.95], [0.9, 0.5, 0.4]] * 20)
    assert tie_groups([0, 1, 2], scores).tolist() == [1, 1, 1]
    assert tie_groups([0, 1], scores[:, :2]).tolist() == [1, 2]


def plain_tie_groups(order: Sequence[int], scores: Sequence[Sequence[float]]) -> dict[int, int]:
    groups, group = {}, 1
    for r, encoder in enumerate(order):
        if r and all(
            sum(row[i] > row[j] for row in scores) >= 0.975 * len(scores) for i in order[:r] for j in order[r:]
        ):
            group += 1
        groups[encoder] = group
    return groups


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), spread=st.sampled_from([0.05, 0.3, 1.0]))
def test_agrees_with_plain_python(seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    m, b = rng.integers(2, 7), 80
    point = rng.integers(0, 6, m) / 6
    scores = point + spread * rng.integers(-2, 3, (b, m)) / 6  # coarse, so that ties are frequent
    order = sorted(range(m), key=lambda i: (-point[i], i))
    rows = scores.tolist()
    found = tie_groups(order, scores)
    assert dict(enumerate(found.tolist())) == plain_tie_groups(order, rows)
    low, high = rank_intervals(scores)
    for i in range(m):
        places = sorted(1 + sum(other > row[i] for other in row) for row in rows)
        assert (low[i], high[i]) == (places[2], places[-3])
    shuffled = rng.permutation(m)
    place_of = {int(encoder): place for place, encoder in enumerate(shuffled)}
    moved = tie_groups([place_of[i] for i in order], scores[rng.permutation(b)][:, shuffled])
    assert moved.tolist() == found[shuffled].tolist()


def published(crs: dict[str, float | None], panel_id: str = "demo") -> pl.DataFrame:
    (spec,) = (spec for spec in SCORE_TABLES if spec.name == "crs_scores")
    rows = [
        {"encoder_id": encoder, "panel_id": panel_id, "crs": score, "reason": None if score else "incomplete"}
        for encoder, score in crs.items()
    ]
    return pl.DataFrame(rows, schema=spec.polars_schema())


def candidates_of(names: Sequence[str]) -> pl.DataFrame:
    return encoders_frame({name: {"near": (0.5,) * 4} for name in names})


def firmness(frame: pl.DataFrame) -> dict[str, tuple[object, ...]]:
    return {row[0]: row[1:] for row in frame.select("encoder_id", "rank", *REPLICATE_COLUMNS, "reason").rows()}


def test_firmness_by_hand() -> None:
    names = ("copy", "first", "second", "third")
    crs = {"first": 0.9, "second": 0.5, "third": 0.3, "copy": 0.3, "half": None}
    resampled = resampled_of(names, REPLICATES[:, [3, 0, 1, 2]])
    frame = ranks(published(crs), candidates_of(list(crs)), {"demo": resampled})
    assert firmness(frame) == {
        "first": (1, 1, 2, 1, 38 / 40, None),
        "second": (2, 1, 2, 1, 2 / 40, None),
        "third": (3, 3, 3, 2, 0.0, None),
        "copy": (3, 3, 3, 2, 0.0, None),
        "half": (None, None, None, None, None, "incomplete"),
    }
    written(frame, "ranks")


def test_equal_encoders_share_everything() -> None:
    names = ["a", "b", "c", "d"]
    frame = ranks(
        published(dict.fromkeys(names, 0.5)),
        candidates_of(names),
        {"demo": resampled_of(names, np.repeat(np.random.default_rng(0).random((100, 1)), 4, axis=1))},
    )
    assert firmness(frame) == dict.fromkeys(names, (1, 1, 1, 1, 0.25, None))


def test_who_has_no_replicates_keeps_its_rank() -> None:
    crs: dict[str, float | None] = {"first": 0.9, "bare": 0.6, "second": 0.5}
    of_two = resampled_of(("first", "second"), REPLICATES[:, :2])
    found = firmness(ranks(published(crs), candidates_of(list(crs)), {"demo": of_two}))
    assert found["bare"] == (2, None, None, None, None, "no_replicates")
    assert found["second"] == (3, 1, 2, 1, 0.05, None)
    for resampled, reason in (({"demo": "one_seed"}, "one_seed"), ({"other": of_two}, "no_replicates")):
        found = firmness(ranks(published(crs), candidates_of(list(crs)), resampled))
        assert found["first"] == (1, None, None, None, None, reason)


def test_replicates_of_who_is_not_ranked_count_for_nothing() -> None:
    crs: dict[str, float | None] = {"first": 0.9, "second": 0.5}
    of_three = resampled_of(("best", "first", "second"), np.hstack([np.ones((40, 1)), REPLICATES[:, :2]]))
    found = firmness(ranks(published(crs), candidates_of(list(crs)), {"demo": of_three}))
    assert found["first"] == (1, 1, 2, 1, 38 / 40, None)
    nobody = firmness(ranks(published({"other": 0.5}), candidates_of(["other"]), {"demo": of_three}))
    assert nobody["other"] == (1, None, None, None, None, "no_replicates")
