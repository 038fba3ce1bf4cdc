from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from crsbench_assets.report.decision import LIMITS, findings
from crsbench_assets.report.frames import ReportFrames, read_frames
from crsbench_assets.report.html import render_report
from crsbench_assets.report.sections import SECTIONS
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets_tests.report.conftest import MARKUP
from crsbench_assets_tests.report.pages import Element, parse


@pytest.fixture(scope="module")
def frames(reported_home: HomeLayout) -> ReportFrames:
    return read_frames(reported_home)


def said(frames: ReportFrames, question: str, **rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return what is said to a question where tables hold these rows."""
    changed = frames.sections | {table: pl.DataFrame(values) for table, values in rows.items()}
    (found,) = (f for f in findings(replace(frames, sections=changed)) if f.question == question)
    return found.sentences


def test_every_finding_names_a_section(frames: ReportFrames) -> None:
    found = findings(frames)
    assert {finding.section for finding in found} <= {section.key for section in SECTIONS}
    assert all(finding.sentences for finding in found)


def test_the_page_shows_findings_and_limits_as_text(page: Element, frames: ReportFrames) -> None:
    section = page.one("section", id="findings")
    sentences = [sentence for finding in findings(frames) for sentence in finding.sentences]
    assert [entry.text for entry in section.all("dd")] == sentences
    assert [entry.text for entry in section.all("li")] == list(LIMITS)


def test_a_long_answer_is_folded_after_three_sentences(reported_home: HomeLayout, frames: ReportFrames) -> None:
    pairs = [
        {"encoder_id": f"e{i}", "other_encoder_id": "beta", "is_established": True, "reason": None} for i in range(6)
    ]
    # the section needs its columns, the finding these rows
    dominance = frames.sections["dominance"].clear()
    dominance = pl.concat([dominance, pl.DataFrame(pairs)], how="diagonal_relaxed")
    changed = replace(frames, sections=frames.sections | {"dominance": dominance})
    section = parse(render_report(changed)).one("section", id="findings")
    (fold,) = section.all("details")
    assert fold.one("summary").text == "3 more"
    assert [entry.text for entry in fold.all("li")] == [f"e{i} dominates Beta." for i in (3, 4, 5)]
    assert "e2 dominates Beta." in [entry.text for entry in section.all("dd")]


def test_the_leading_tier_is_named_and_its_absence_explained(frames: ReportFrames) -> None:
    def tier(encoder_id: str, is_in: bool | None, reason: str | None, resampling: str = "seed") -> dict[str, Any]:
        return {
            "resampling": resampling, "encoder_id": encoder_id, "is_in_tier": is_in, "enumeration_reason": reason,
        }  # fmt: skip

    led = [tier("alpha", True, None), tier("beta", False, None), tier("beta", True, None, "seed_test")]
    (sentence,) = said(frames, "Who leads?", bootstrap_ranks=led)
    assert sentence.startswith(f"The leading tier holds 1 of 2: {MARKUP}. It leads in every draw")
    equal = [tier("alpha", None, "no_tier"), tier("beta", None, "no_tier")]
    (sentence,) = said(frames, "Who leads?", bootstrap_ranks=equal)
    assert sentence.startswith("There is no leading tier: no set of leading encoders") and "(no_tier)" in sentence


def test_tie_groups_are_said(frames: ReportFrames) -> None:
    def ties(**columns: Any) -> tuple[str, ...]:
        known = {"rank_lo": 1, "rank_hi": 2, "p_best": 0.5, **columns}
        board = frames.leaderboard.with_columns(**{name: pl.lit(value) for name, value in known.items()})
        (found,) = (f for f in findings(replace(frames, leaderboard=board)) if f.question.startswith("Who cannot"))
        return found.sentences

    first, tied = ties(tie_group=1)
    assert "interval from 1 to 2 and probability 0.50 of being first" in first
    assert tied.startswith("Not separable: ") and "Beta" in tied
    (sentence,) = ties(tie_group=pl.Series([None], dtype=pl.Int64).item(), reason="one_seed")
    assert sentence.startswith("Ranks have no intervals: the protocol has one seed")


def test_dominance_is_said_where_it_is_established(frames: ReportFrames) -> None:
    def pair(is_established: bool | None, reason: str | None = None) -> list[dict[str, Any]]:
        return [{"encoder_id": "alpha", "other_encoder_id": "beta", "is_established": is_established, "reason": reason}]

    question = "Who dominates whom?"
    assert said(frames, question, dominance=pair(True)) == (f"{MARKUP} dominates Beta.",)
    assert said(frames, question, dominance=pair(False))[0].startswith("No dominance is established")
    assert "(no_replicates)" in said(frames, question, dominance=pair(None, "no_replicates"))[0]


def test_regret_is_said_with_its_interval_or_reason(frames: ReportFrames) -> None:
    def regret(value: float | None, low: float | None, high: float | None, reason: str | None) -> dict[str, Any]:
        return {
            "rule": "auroc", "axis": "weighted", "chosen_encoder_id": "beta",
            "regret": value, "regret_ci_low": low, "regret_ci_high": high, "reason": reason,
        }  # fmt: skip

    question = "What does a choice cost?"
    assert said(frames, question, selection_regret=[regret(0.125, 0.0, 0.25, None)]) == (
        "Choosing by AUROC takes Beta and loses 0.125 of the weighted profile (0.000 to 0.250).",
    )
    (sentence,) = said(frames, question, selection_regret=[regret(0.125, None, None, "no_replicates")])
    assert "no interval: a cell has no replicates" in sentence
    (sentence,) = said(frames, question, selection_regret=[regret(None, None, None, "no_panel")])
    assert sentence == "Choosing by AUROC: the regret is undefined: no complete candidate forms a panel (no_panel)."


def test_unreliable_axes_are_named(frames: ReportFrames) -> None:
    def axis(value: float | None, is_reliable: bool | None, reason: str | None = None) -> list[dict[str, Any]]:
        row = {"dataset_id": "skin", "axis": "label_efficiency", "reliability": value}
        return [{**row, "is_reliable": is_reliable, "reason": reason}]

    question = "Which axes order noise?"
    assert said(frames, question, axis_reliability=axis(0.4, False)) == (
        "Label efficiency on skin: reliability 0.40, below .7.",
    )
    assert said(frames, question, axis_reliability=axis(0.9, True))[0].startswith("None: all 1 axes")
    assert "(no_spread)" in said(frames, question, axis_reliability=axis(None, None, "no_spread"))[0]


def test_exposure_is_said(frames: ReportFrames) -> None:
    rows = [{"encoder_id": "alpha", "shift_exposure": "seen"}, {"encoder_id": "beta", "shift_exposure": "unknown"}]
    question = "Who saw the shift target?"
    assert said(frames, question, institutional_shift=rows) == (
        f"Seen in pretraining: {MARKUP}.",
        "Unknown: Beta.",
    )
    not_seen = [{"encoder_id": "alpha", "shift_exposure": "not_seen"}]
    assert said(frames, question, institutional_shift=not_seen) == ("By their cards, no encoder saw it.",)


def test_ranks_that_the_shift_target_moves_are_said(frames: ReportFrames) -> None:
    ranks = dict(frames.leaderboard.drop_nulls("rank").select("encoder_id", "rank").iter_rows())

    def variants(step: int) -> list[dict[str, Any]]:
        return [
            {"variant": variant, "encoder_id": encoder_id, "rank": rank + step, "reason": None}
            for variant in ("corruption_only", "without_exposed")
            for encoder_id, rank in ranks.items()
        ]

    question = "Does the shift target decide?"
    assert said(frames, question, crs_variants=variants(0)) == (
        f"No rank of {len(ranks)} moves without shift terms.",
        f"No rank of {len(ranks)} moves without the targets seen in pretraining.",
    )
    moved = said(frames, question, crs_variants=variants(1))
    assert len(moved) == 2 * len(ranks)
    assert "Beta: rank 2, but 3 without shift terms." in moved
    assert "Beta: rank 2, but 3 without the targets seen in pretraining." in moved
    none = [{"variant": "corruption_only", "encoder_id": "beta", "rank": None, "reason": "no_shift"}]
    assert said(frames, question, crs_variants=none)[1].startswith(
        "There is no score without the targets seen in pretraining: "
    )
