"""A cohort: which images there are, who belongs together, and what their labels are.

What lives here: the one form that every reader returns, and the choice of the reader. What stays out: the layouts
(``sources``), splits (``splits``) and pixels (``integrity``).
Source: protocol page, sections 1 and 2.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from crsbench_assets.config.cards import PRIMARY, DatasetCard, Source
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.settings import LabelPolicy
from crsbench_assets.data.integrity import ImageCheck, joined_groups

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray


NO_IMAGES = "no_images"


@dataclass(frozen=True)
class Cohort:
    """The images of one source, sorted by id.

    Args:
        image_ids: n unique ids.
        groups: raw group id per image (patient, lesion); it never enters a table.
        declared_split: ``train``, ``validation``, ``test`` or None per image.
        labels: int8 (n, k): 1, 0, or -1 where unknown; one-hot for single-label and ordinal tasks.
        left_out: (image id, reason, detail) of rows that cannot be used. A row without a class is not among
            ``image_ids``; a row whose file is absent or outside the root is, because it takes part in the draw of the
            splits: repairing its file later moves no other image.
        paths: n paths of image files relative to ``root``, with ``/``; None for a cohort without images.
        root: as ``config.layouts.image_root`` finds it; None for a cohort without images.
        stated: float64 (n, k): labels as the source states them, before the label policy: 1, 0, -1 uncertain, NaN
            blank; None where a label cannot be left open.
        notes: what the reader chose where copies of a release differ, and how many rows it passed over that no other
            row of this cohort tells of, one clause each.
    """

    image_ids: list[str]
    groups: list[str]
    declared_split: list[str | None]
    labels: NDArray[np.int8]
    left_out: list[tuple[str, str, str]] = field(default_factory=list)
    paths: list[str] | None = None
    root: str | None = None
    stated: NDArray[np.float64] | None = None
    notes: list[str] = field(default_factory=list)

    def files(self) -> dict[str, Path]:
        """Return the file of every image that may be opened: those that are not left out, by image id.

        Empty for a cohort without images.
        """
        if self.paths is None or self.root is None:
            return {}
        closed = {image_id for image_id, _, _ in self.left_out}
        folder = Path(self.root)
        return {
            image_id: folder / path
            for image_id, path in zip(self.image_ids, self.paths, strict=True)
            if image_id not in closed
        }


class CohortError(ConfigError):
    """A source whose tables have faults.

    Attributes:
        readable: what its tables say all the same, for looking on; nothing is computed from it.
    """

    def __init__(self, message: str, readable: Cohort | None = None) -> None:
        super().__init__(message)
        self.readable = readable


def read_cohorts(card: DatasetCard, policy: LabelPolicy, agreements: Collection[str] = ()) -> dict[str, Cohort]:
    """Return the cohorts of a dataset by source id: ``primary``, and its shift target where one may be read.

    Args:
        card: the dataset.
        policy: what an uncertain label becomes.
        agreements: names of the agreements that the home's settings record.

    Raises:
        ConfigError: the agreement that the card names is not recorded, and nothing was read; or a file is absent or
            not as the card says, with every fault, in one sentence per source.
    """
    cohorts, faults = readable_cohorts(card, policy, agreements)
    if faults:
        raise ConfigError(" ".join(faults))
    return cohorts


def readable_cohorts(
    card: DatasetCard, policy: LabelPolicy, agreements: Collection[str] = ()
) -> tuple[dict[str, Cohort], list[str]]:
    """Return what can be read of a dataset's sources, and one sentence per source with faults.

    A source with faults may still be among the cohorts: so that its files can be looked at in the same run. A shift
    target whose agreement is not recorded is not among them: it is not read, and everything else is.

    Args:
        card: the dataset.
        policy: what an uncertain label becomes.
        agreements: names of the agreements that the home's settings record.

    Raises:
        ConfigError: the dataset's own agreement is not recorded, and nothing was read.
    """
    if card.agreement is not None and card.agreement not in agreements:
        raise ConfigError(f"dataset {card.id!r} {closed_in_words(card, PRIMARY)}")
    cohorts, faults = {}, []
    for source_id, source in card.open_sources(agreements).items():
        try:
            cohorts[source_id] = _read(card, source, source_id, policy)
        except CohortError as error:
            faults.append(str(error))
            if error.readable is not None:
                cohorts[source_id] = error.readable
        except ConfigError as error:
            faults.append(str(error))
        except OSError as error:
            faults.append(f"dataset {card.id!r}: {error.filename} cannot be read: {error.strerror}.")
    return cohorts, faults


def closed_in_words(card: DatasetCard, source_id: str) -> str:
    """Return the rest of the sentence about a source whose agreement is not recorded: how to open it.

    Args:
        card: the dataset.
        source_id: ``primary`` or the shift target, which names an agreement.
    """
    agreement = card.agreements[source_id]
    access = card.access if source_id == PRIMARY or card.shift is None else card.shift.access
    return (
        f"may be read once crsbench.yaml records the agreement {agreement}: {access or 'accept it with its owner'}; "
        f"then add `agreements: {{{agreement}: {{accepted_by: NAME, accepted_on: DATE}}}}`."
    )


def _read(card: DatasetCard, source: Source, source_id: str, policy: LabelPolicy) -> Cohort:
    from crsbench_assets.data.sources import aptos2019, chexpert, isic2019, manifest, mimic_cxr, synthetic

    match source.layout:
        case "manifest":
            return manifest.read_manifest(card, source, source_id, policy)
        case "synthetic":
            return synthetic.draw_cohort(card, source, source_id)
        case "isic2019":
            return isic2019.read_isic2019(card, source, source_id)
        case "aptos2019":
            return aptos2019.read_aptos2019(card, source, source_id)
        case "chexpert":
            return chexpert.read_chexpert(card, source, source_id, policy)
        case "mimic_cxr":
            return mimic_cxr.read_mimic_cxr(card, source, source_id, policy)


def group_index(groups: list[str]) -> NDArray[np.int64]:
    """Return the number of each image's group, groups numbered by first appearance; (n,)."""
    import numpy as np

    numbers: dict[str, int] = {}
    return np.asarray([numbers.setdefault(group, len(numbers)) for group in groups], dtype=np.int64)


def images_frame(
    dataset_id: str, source_id: str, cohort: Cohort, checks: Sequence[ImageCheck], salt: str
) -> pl.DataFrame:
    """Return the rows of table ``images``: usable images, group ids salted, unknown labels NULL.

    Args:
        dataset_id: the dataset.
        source_id: ``primary`` or the shift target.
        cohort: as read.
        checks: what was found of its files; an image with a reason is no row, and duplicates join groups.
        salt: of the group ids.
    """
    import polars as pl

    from crsbench_assets.data.duplicates import pictures

    check_of = {check.image_id: check for check in checks}
    left_out = {image_id for image_id, _, _ in cohort.left_out}
    left_out |= {check.image_id for check in checks if check.reason is not None}
    rows = [i for i, image_id in enumerate(cohort.image_ids) if image_id not in left_out]
    found = [check_of.get(image_id, ImageCheck(image_id)) for image_id in cohort.image_ids]
    shown = pictures(found)
    groups = joined_groups(cohort.groups, shown.index)
    raw_groups: dict[str, set[str]] = {}
    for i in rows:
        raw_groups.setdefault(groups[i], set()).add(cohort.groups[i])
    labels = pl.Series("labels", cohort.labels[rows], dtype=pl.Array(pl.Int8, cohort.labels.shape[1])).arr.to_list()
    return pl.DataFrame(
        {
            "dataset_id": pl.Series([dataset_id] * len(rows), dtype=pl.String),
            "source_id": pl.Series([source_id] * len(rows), dtype=pl.String),
            "image_id": pl.Series([cohort.image_ids[i] for i in rows], dtype=pl.String),
            "group_index": group_index([groups[i] for i in rows]),
            "group_id": pl.Series([_salted(groups[i], salt) for i in rows], dtype=pl.String),
            "n_groups_joined": pl.Series([len(raw_groups[groups[i]]) for i in rows], dtype=pl.Int64),
            "declared_split": pl.Series([cohort.declared_split[i] for i in rows], dtype=pl.String),
            "labels": labels.list.eval(pl.when(pl.element() >= 0).then(pl.element())),
            "path": pl.Series([cohort.paths[i] if cohort.paths else None for i in rows], dtype=pl.String),
            "file_sha256": pl.Series([found[i].sha256 for i in rows], dtype=pl.String),
            "pixel_sha256": pl.Series([found[i].pixel_hash for i in rows], dtype=pl.String),
            "phash": pl.Series([shown.phash[i] for i in rows], dtype=pl.String),
            "duplicate_index": pl.Series([shown.index[i] for i in rows], dtype=pl.Int64),
            "width_px": pl.Series([found[i].width_px for i in rows], dtype=pl.Int64),
            "height_px": pl.Series([found[i].height_px for i in rows], dtype=pl.Int64),
            "file_reason": pl.Series([None if cohort.paths else NO_IMAGES] * len(rows), dtype=pl.String),
        }
    )


def _salted(group: str, salt: str) -> str:
    return hashlib.blake2b(group.encode(), key=salt.encode()[:64], digest_size=12).hexdigest()
