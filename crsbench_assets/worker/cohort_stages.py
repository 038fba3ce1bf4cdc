"""Stages of a dataset: index its images, draw its splits.

What lives here: reading cohorts and handing them to the pure functions of ``data``. What stays out: those functions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import polars as pl

from crsbench_assets.config.cards import PRIMARY, DatasetCard
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.pace import Pace
from crsbench_assets.config.randomness import keyed_ranks
from crsbench_assets.data import leakage, splits
from crsbench_assets.data.cohort import Cohort, closed_in_words, images_frame, read_cohorts
from crsbench_assets.data.duplicates import shared_pictures
from crsbench_assets.data.integrity import ImageCheck, check_images, joined_groups
from crsbench_assets.data.statistics import dataset_statistics
from crsbench_assets.worker.context import StageContext, StageOutput, require_source_unchanged

LEFT_OUT = "left_out"
IN_OWN_DATASET = "in_own_dataset"

SHOWN_FAULTS = 20
"""Images whose fault stands in the sentence that refuses a cohort."""


def index(context: StageContext) -> StageOutput:
    """Return every image of a dataset and of its shift target, and what was left out.

    A shift target whose agreement is not recorded is not read: it has no row, and its records are ``no_access``.
    """
    settings = context.project.registry.settings
    cohorts = read_cohorts(context.dataset, settings.label_policy, settings.agreements)
    for source_id in context.dataset.sources.keys() - cohorts.keys():
        context.progress(f"{source_id} is not read: it {closed_in_words(context.dataset, source_id)}")
    for source_id, note in notes_of(cohorts):
        context.progress(f"{source_id}: {note}")
    images, quarantine = look_at(context, cohorts)
    require_usable(context.dataset, images, cohorts, quarantine)
    return StageOutput({"quarantine": quarantine, "images": images})


def notes_of(cohorts: Mapping[str, Cohort]) -> list[tuple[str, str]]:
    """Return (source, clause) of what people should know of how cohorts were read.

    A group of the dataset may stand in its shift target by the same name. Whether it is the same patient only the user
    knows, because two institutions may number theirs alike, so it is said and nothing is left out.
    """
    notes = [(source_id, note) for source_id, cohort in cohorts.items() for note in cohort.notes]
    own = set(_own_groups(cohorts[PRIMARY]).values()) if PRIMARY in cohorts else set()
    for source_id in cohorts.keys() - {PRIMARY}:
        shared = [image_id for image_id, group in _own_groups(cohorts[source_id]).items() if group in own]
        if shared:
            notes.append(
                (
                    source_id,
                    f"{len(shared):,} image(s), such as {shared[0]}, have a group that the dataset has too: where both "
                    "mean the same patient, take these images out of one of them",
                )
            )
    return notes


def _own_groups(cohort: Cohort) -> dict[str, str]:
    """Return image id -> raw group of the images whose group is more than themselves."""
    return {image: group for image, group in zip(cohort.image_ids, cohort.groups, strict=True) if group != image}


def look_at(context: StageContext, cohorts: dict[str, Cohort]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows of ``images`` and ``quarantine`` of cohorts, after every file was decoded."""
    frames: list[pl.DataFrame] = []
    left_out: list[tuple[str, str, str, str | None]] = []
    own: list[ImageCheck] = []
    for source_id, cohort in cohorts.items():
        checks = check_images(cohort, n_threads=context.n_threads, progress=_progress(context, source_id))
        if source_id == PRIMARY:
            own = checks
        else:
            checks = _foreign(checks, own)
        left_out += [(source_id, *row) for row in cohort.left_out]
        left_out += [(source_id, c.image_id, c.reason, c.detail) for c in checks if c.reason is not None]
        salt = context.project.registry.settings.group_salt
        frames.append(images_frame(context.dataset.id, source_id, cohort, checks, salt))
    schema = dict.fromkeys(("source_id", "image_id", "reason", "detail"), pl.String)
    quarantine = pl.DataFrame(left_out, schema=schema, orient="row")
    return pl.concat(frames), quarantine


def _foreign(checks: list[ImageCheck], own: list[ImageCheck]) -> list[ImageCheck]:
    """Return the checks of a shift target, those of images that the dataset itself holds with a reason.

    The copy leaves the shift target and not the dataset, whose numbers do not depend on a target.
    """
    shared = shared_pictures(checks, own)
    return [
        replace(
            check,
            pixel_hash=None,
            thumbnail=b"",
            reason=IN_OWN_DATASET,
            detail=f"it is the picture of {shared[check.image_id]} of the dataset itself",
        )
        if check.image_id in shared
        else check
        for check in checks
    ]


def require_usable(
    card: DatasetCard,
    images: pl.DataFrame,
    cohorts: dict[str, Cohort],
    quarantine: pl.DataFrame,
) -> None:
    """Check that every source has an image that can be used, and that every class of the cohort itself has one.

    Raises:
        ConfigError: naming each source and class without, and what is wrong with the files.
    """
    faults = []
    for source_id, cohort in cohorts.items():
        if not (images.get_column("source_id") == source_id).any():
            faults.append(f"none of the {len(cohort.image_ids)} images of {source_id} can be used")
    labels = images.filter(pl.col("source_id") == PRIMARY).get_column("labels")
    if card.task != "multi_label" and not faults:
        empty = [name for i, name in enumerate(card.classes) if not (labels.list.get(i) == 1).any()]
        faults += [f"no image of class {name!r} can be used" for name in empty]
    if faults:
        rows = quarantine.head(SHOWN_FAULTS).iter_rows(named=True)
        shown = [f"{row['image_id']}: {row['reason']} ({row['detail']})" for row in rows]
        more = f"; and {quarantine.height - SHOWN_FAULTS} more" if quarantine.height > SHOWN_FAULTS else ""
        raise ConfigError(f"dataset {card.id!r}: {'; '.join(faults)}. Left out: {'; '.join(shown) or 'none'}{more}.")


def _progress(context: StageContext, source_id: str) -> Callable[[int, int], None]:
    pace = Pace()

    def tell(n_done: int, n: int) -> None:
        if pace.is_due(n_done, n):
            context.progress(f"{source_id}: {n_done:,} of {n:,} images looked at")

    return tell


def split(context: StageContext) -> StageOutput:
    """Return the splits of every seed, their statistics, and every group that straddles two of them."""
    settings = context.project.registry.settings
    cohorts = read_cohorts(context.dataset, settings.label_policy, settings.agreements)
    return split_cohort(context, context.read("images"), context.read("quarantine"), cohorts)


def split_cohort(
    context: StageContext, images: pl.DataFrame, quarantine: pl.DataFrame, cohorts: dict[str, Cohort]
) -> StageOutput:
    """Return the splits of a cohort that was indexed as ``images`` and ``quarantine``.

    The draw is keyed by raw group ids, which no table holds, so the cohort itself is needed.
    """
    rules, protocol, card = context.protocol.splits, context.protocol, context.dataset
    primary, cohort = images.filter(pl.col("source_id") == PRIMARY).sort("image_id"), cohorts[PRIMARY]
    of_primary = quarantine.filter(pl.col("source_id") == PRIMARY)
    require_source_unchanged(context, primary, of_primary, cohort.image_ids)
    unusable = set(cohort.image_ids) - set(primary.get_column("image_id"))
    pictures = dict(primary.select("image_id", "duplicate_index").iter_rows())
    result = splits.draw_splits(
        cohort.image_ids,
        joined_groups(cohort.groups, [pictures.get(image_id) for image_id in cohort.image_ids]),
        cohort.labels,
        cohort.declared_split,
        dataset_id=card.id,
        seeds=protocol.seeds,
        test_fraction=rules.test_fraction,
        validation_fraction=rules.validation_fraction,
        excluded=unusable.union(_beyond_cap(context, cohort)),
    )
    is_multi_label = card.task == "multi_label"
    feasible = [
        fraction
        for fraction in protocol.label_fractions
        if splits.is_feasible(result.frame, cohort.image_ids, cohort.labels, fraction, is_multi_label=is_multi_label)
    ]
    test = result.frame.filter(pl.col("split") == splits.TEST).get_column("image_id").unique()
    constant = {
        "test_set_hash": splits.test_set_hash(test.to_list()),
        "feasible_fractions": json.dumps(feasible),
    }
    statistics = dataset_statistics(images, result.frame, card.classes, protocol.seeds, constant, cohorts)
    violations = leakage.leakage_violations(result.frame, primary)
    seeds = pl.DataFrame({"seed": protocol.seeds}, schema={"seed": pl.Int64})
    left_out = result.left_out.join(seeds, how="cross").with_columns(split=pl.lit(LEFT_OUT))
    frame = pl.concat([result.frame, left_out], how="diagonal")
    return StageOutput({"leakage_violations": violations, "dataset_statistics": statistics, "splits": frame})


def _beyond_cap(context: StageContext, cohort: Cohort) -> list[str]:
    """Return the ids that the dataset's cap leaves out: those that come last in a keyed order."""
    cap = context.project.registry.settings.caps.get(context.dataset.id)
    if cap is None or cap >= len(cohort.image_ids):
        return []
    order = keyed_ranks(cohort.image_ids, "cap", context.dataset.id).argsort()
    return [cohort.image_ids[i] for i in order[cap:]]
