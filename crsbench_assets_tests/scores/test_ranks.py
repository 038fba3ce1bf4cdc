from __future__ import annotations

import math

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import rankdata

from crsbench_assets.config.protocol import Protocol
from crsbench_assets.scores.crs import crs_scores, unscored
from crsbench_assets.scores.panel import Panel
from crsbench_assets.scores.ranks import REPLICATE_COLUMNS, competition_ranks, ranks
from crsbench_assets.tables.scores import SCORE_TABLES
from crsbench_assets_tests.scores.conftest import DELTA, MEMBERS, Cohort, encoders_frame, values_frame


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
    assert frame.schema == {n: t for n, t in spec.polars_schema().items() if n not in REPLICATE_COLUMNS}
    assert dict(frame.select("encoder_id", "rank").rows()) == {
        "alpha": 1, "beta": 3, "delta": 2, "gamma": 4, "half": None, "null": None,
    }  # fmt: skip
    assert frame["encoder_id"].is_sorted()
    assert set(frame["n_ranked"]) == {4}
    assert frame.filter(pl.col("encoder_id") == "half")["reason"].to_list() == ["incomplete"]


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
