"""A cohort: which images there are, who belongs together, and what their labels are.

What lives here: the one form that every reader returns, and the choice of the reader. What stays out: the layouts
(``sources``), splits (``splits``) and pixels.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from crsbench_assets.config.cards import PRIMARY, DatasetCard, Source
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.settings import LabelPolicy

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Cohort:
    """The images of one source, sorted by id.

    Args:
        image_ids: n unique ids.
        groups: raw group id per image (patient, lesion); it never enters a table.
        declared_split: ``train``, ``validation``, ``test`` or None per image.
        labels: int8 (n, k): 1, 0, or -1 where unknown; one-hot for single-label and ordinal tasks.
        left_out: (image id, reason, detail) of rows that could not be used.
    """

    image_ids: list[str]
    groups: list[str]
    declared_split: list[str | None]
    labels: NDArray[np.int8]
    left_out: list[tuple[str, str, str]] = field(default_factory=list)


def read_cohorts(card: DatasetCard, policy: LabelPolicy, agreements: Collection[str] = ()) -> dict[str, Cohort]:
    """Return the cohorts of a dataset by source id: ``primary``, and its shift target where it has one.

    Args:
        card: the dataset.
        policy: what an uncertain label becomes.
        agreements: names of the agreements that the home's settings record.

    Raises:
        ConfigError: an agreement that the card or its shift target names is not recorded, and nothing was read; or a
            file is absent or not as the card says, in one sentence with every fault.
    """
    wanted = [card.agreement, card.shift.agreement if card.shift else None]
    missing = [name for name in wanted if name and name not in agreements]
    if missing:
        raise ConfigError(
            f"dataset {card.id!r} may be read once crsbench.yaml records the agreement {' and '.join(missing)}: accept "
            f"it with its owner, then add `agreements: {{{missing[0]}: {{accepted_by: NAME, accepted_on: DATE}}}}`."
        )
    cohorts = {PRIMARY: _read(card, card.source, PRIMARY, policy)}
    if card.shift is not None:
        cohorts[card.shift.id] = _read(card, card.shift.source, card.shift.id, policy)
    return cohorts


def _read(card: DatasetCard, source: Source, source_id: str, policy: LabelPolicy) -> Cohort:
    from crsbench_assets.data.sources import manifest, synthetic

    if source.layout == "manifest":
        return manifest.read_manifest(card, source, policy)
    if source.layout == "synthetic":
        return synthetic.draw_cohort(card, source, source_id)
    raise ConfigError(f"dataset {card.id!r}: this version cannot read the layout {source.layout} yet.")


def group_index(groups: list[str]) -> NDArray[np.int64]:
    """Return the number of each image's group, groups numbered by first appearance; (n,)."""
    import numpy as np

    numbers: dict[str, int] = {}
    return np.asarray([numbers.setdefault(group, len(numbers)) for group in groups], dtype=np.int64)


def images_frame(dataset_id: str, cohorts: dict[str, Cohort], salt: str) -> pl.DataFrame:
    """Return the rows of table ``images``: group ids salted, unknown labels NULL."""
    import polars as pl

    frames = []
    for source_id, cohort in cohorts.items():
        labels = pl.Series("labels", cohort.labels.tolist(), dtype=pl.List(pl.Int8))
        frames.append(
            pl.DataFrame(
                {
                    "dataset_id": pl.Series([dataset_id] * len(cohort.image_ids), dtype=pl.String),
                    "source_id": pl.Series([source_id] * len(cohort.image_ids), dtype=pl.String),
                    "image_id": pl.Series(cohort.image_ids, dtype=pl.String),
                    "group_index": group_index(cohort.groups),
                    "group_id": [_salted(group, salt) for group in cohort.groups],
                    "declared_split": pl.Series(cohort.declared_split, dtype=pl.String),
                    "labels": labels.list.eval(pl.when(pl.element() >= 0).then(pl.element())),
                }
            )
        )
    return pl.concat(frames)


def _salted(group: str, salt: str) -> str:
    return hashlib.blake2b(group.encode(), key=salt.encode()[:64], digest_size=12).hexdigest()
