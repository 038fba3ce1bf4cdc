"""What follows for somebody who must choose an encoder, in sentences made of the tables' numbers.

What lives here: the findings of the decision page and the benchmark's limits. What stays out: every statistic (the
tables hold them), the rows (``frames``), the page (``html``).
Source: protocol page, sections 6 to 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crsbench_assets.report.figures.reliability import explain
from crsbench_assets.report.marks import Marks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from crsbench_assets.report.frames import ReportFrames

LIMITS = (
    "Encoders are frozen and read by a linear probe; fine-tuning may order them differently.",
    "Each dataset has one test split: intervals cover its images and the seeds, not another cohort or hospital.",
    "Corruptions are simulated and stand for no measured fault of a device.",
    "Ranks and scores are relative to the panel; a score from another panel is another scale.",
    "Under the protocol's fixed penalty the ECE follows the width of the vectors, so the probe has a part in it.",
    "An encoder may have seen these or similar images in pretraining, and exposure is often unknown.",
    "The score says nothing about clinical utility or safety.",
)
"""What the numbers cannot say, whatever they are."""


@dataclass(frozen=True)
class Finding:
    """A question of the one who chooses, its answer in sentences, and the section with the numbers."""

    question: str
    sentences: tuple[str, ...]
    section: str


def findings(frames: ReportFrames) -> list[Finding]:
    """Return the findings in the order of the page; a value that is NULL is said with its reason."""
    names = dict(frames.encoders.select("encoder_id", "name").iter_rows())

    def name(encoder_id: str) -> str:
        return names.get(encoder_id) or encoder_id

    def rows(table: str) -> list[dict[str, Any]]:
        return frames.sections[table].to_dicts()

    marks = Marks(frames.encoders, frames.datasets)
    ranked = [row for row in frames.leaderboard.to_dicts() if row["rank"] is not None]
    return [
        Finding("Who leads?", _tier(rows("bootstrap_ranks"), name), "bootstrap_ranks"),
        Finding("Who cannot be told apart?", _ties(ranked, name), "bootstrap_ranks"),
        Finding("Who dominates whom?", _dominance(rows("dominance"), name), "dominance"),
        Finding("What does a choice cost?", _regret(rows("selection_regret"), name), "selection_regret"),
        Finding("Which axes order noise?", _reliability(rows("axis_reliability")), "axis_reliability"),
        Finding("Who saw the images in pretraining?", _seen(marks), "encoders"),
        Finding("Who saw the shift target?", _exposure(rows("institutional_shift"), name), "institutional_shift"),
        Finding("Does the shift target decide?", _variants(rows("crs_variants"), ranked, name), "crs_variants"),
        Finding("Who is not independent?", _dependence(marks), "encoders"),
    ]


def _list(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _why(rows: list[dict[str, Any]], column: str = "reason") -> str:
    """Return why there is no answer."""
    reasons = sorted({row[column] for row in rows if row[column]})
    return "; ".join(map(explain, reasons)) if reasons else "the table has no rows for this panel"


def _tier(rows: list[dict[str, Any]], name: Callable[[str], str]) -> tuple[str, ...]:
    rows = [row for row in rows if row["resampling"] == "seed"]
    tier = [row for row in rows if row["is_in_tier"]]
    if not tier:
        return (f"There is no leading tier: {_why(rows, 'enumeration_reason')}.",)
    return (
        f"The leading tier holds {len(tier)} of {len(rows)}: {_list(name(row['encoder_id']) for row in tier)}. "
        "It leads in every draw of the seeds; test images are not redrawn here.",
    )


def _ties(ranked: list[dict[str, Any]], name: Callable[[str], str]) -> tuple[str, ...]:
    known = [row for row in ranked if row["tie_group"] is not None]
    if not known:
        return (f"Ranks have no intervals: {_why(ranked)}.",)
    best = known[0]
    first = (
        f"{name(best['encoder_id'])} has rank {best['rank']}, with a 95 % interval from {best['rank_lo']} to "
        f"{best['rank_hi']} and probability {best['p_best']:.2f} of being first, under test and seed uncertainty."
    )
    groups: dict[int, list[str]] = {}
    for row in known:
        groups.setdefault(row["tie_group"], []).append(name(row["encoder_id"]))
    tied = [group for group in groups.values() if len(group) > 1]
    if not tied:
        return first, "No two neighbours share a tie group."
    return first, *(f"Not separable: {_list(group)}." for group in tied)


def _dominance(rows: list[dict[str, Any]], name: Callable[[str], str]) -> tuple[str, ...]:
    below: dict[str, list[str]] = {}
    for row in rows:
        if row["is_established"]:
            below.setdefault(row["encoder_id"], []).append(name(row["other_encoder_id"]))
    if below:
        return tuple(f"{name(encoder_id)} dominates {_list(others)}." for encoder_id, others in below.items())
    if any(row["is_established"] is None for row in rows):
        return (f"Dominance has no probability: {_why(rows)}.",)
    return ("No dominance is established: no pair reaches a probability of .95.",)


def _regret(rows: list[dict[str, Any]], name: Callable[[str], str]) -> tuple[str, ...]:
    sentences = []
    for row in (row for row in rows if row["axis"] == "weighted"):
        rule = {"auroc": "Choosing by AUROC", "crs": "Choosing by CRS"}.get(row["rule"], "Choosing at random")
        chosen = f" takes {name(row['chosen_encoder_id'])} and" if row["chosen_encoder_id"] else ""
        if row["regret"] is None:
            sentences.append(f"{rule}: the regret is undefined: {explain(row['reason'])}.")
            continue
        interval = (
            f"no interval: {explain(row['reason'])}"
            if row["regret_ci_low"] is None
            else f"{row['regret_ci_low']:.3f} to {row['regret_ci_high']:.3f}"
        )
        sentences.append(f"{rule}{chosen} loses {row['regret']:.3f} of the weighted profile ({interval}).")
    return tuple(sentences) or (f"Regret is undefined: {_why(rows)}.",)


def _reliability(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    low = [row for row in rows if row["is_reliable"] is False]
    unknown = [row for row in rows if row["is_reliable"] is None]
    sentences = [
        f"{row['axis'].replace('_', ' ').capitalize()} on {row['dataset_id']}: reliability {row['reliability']:.2f}, "
        "below .7."
        for row in low
    ]
    if unknown or not rows:
        sentences.append(f"Reliability is undefined for {len(unknown)} of {len(rows)} axes: {_why(unknown)}.")
    return tuple(sentences) or (f"None: all {len(rows)} axes have a reliability of at least .7.",)


def _exposure(rows: list[dict[str, Any]], name: Callable[[str], str]) -> tuple[str, ...]:
    if not rows:
        return ("No dataset of the panel has a shift target with results.",)
    seen = [row for row in rows if row["shift_exposure"] == "seen"]
    unknown = [row for row in rows if row["shift_exposure"] == "unknown"]
    sentences = [f"Seen in pretraining: {_list(name(row['encoder_id']) for row in seen)}."] if seen else []
    if unknown:
        sentences.append(f"Unknown: {_list(name(row['encoder_id']) for row in unknown)}.")
    return tuple(sentences) or ("By their cards, no encoder saw it.",)


def _seen(marks: Marks) -> tuple[str, ...]:
    sentences = [
        f"{concerned} was seen by {_list(map(marks.name, encoders))}." for concerned, encoders in marks.exposed.items()
    ]
    if marks.of_unknown:
        sentences.append(f"Unknown for one dataset or more: {_list(map(marks.name, marks.of_unknown))}.")
    return tuple(sentences) or ("By their cards, no encoder saw images of a dataset or shift target.",)


def _dependence(marks: Marks) -> tuple[str, ...]:
    sentences = [
        f"{_list(map(marks.name, group))} share an encoder: they are not independent, and their results are one piece "
        "of evidence."
        for group in marks.same_encoder
    ]
    sentences += [
        f"{_list(map(marks.name, members))} are of one family ({family}), so not independent."
        for family, members in marks.families.items()
    ]
    return tuple(sentences) or ("By their cards, no two encoders share weights or a family.",)


def _variants(rows: list[dict[str, Any]], ranked: list[dict[str, Any]], name: Callable[[str], str]) -> tuple[str, ...]:
    rank = {row["encoder_id"]: row["rank"] for row in ranked}
    sentences: list[str] = []
    for variant, said in (
        ("corruption_only", "without shift terms"),
        ("without_exposed", "without the targets seen in pretraining"),
    ):
        those = [row for row in rows if row["variant"] == variant]
        known = [row for row in those if row["rank"] is not None and row["encoder_id"] in rank]
        moved = [row for row in known if row["rank"] != rank[row["encoder_id"]]]
        if not known:
            sentences.append(f"There is no score {said}: {_why(those)}.")
        elif not moved:
            sentences.append(f"No rank of {len(known)} moves {said}.")
        sentences += [
            f"{name(row['encoder_id'])}: rank {rank[row['encoder_id']]}, but {row['rank']} {said}." for row in moved
        ]
    return tuple(sentences)
