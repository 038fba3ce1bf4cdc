"""Synthetic cohorts: groups and labels without images.

What lives here: drawing who there is and what they have. What stays out: the vectors, which synthetic encoders draw
(``encoders.synthetic``). Everything that is shown of such a cohort is marked synthetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crsbench_assets.config.cards import PRIMARY, DatasetCard, Source, SyntheticCohort
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.data.cohort import Cohort

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

GROUP_COHESION = 0.5
"""Probability that an image of a multi-label cohort repeats a label of its group instead of drawing its own."""


def draw_cohort(card: DatasetCard, source: Source, source_id: str) -> Cohort:
    """Return the synthetic cohort that a card describes; a function of its ids and settings alone.

    Groups have a geometric size. Single-label and ordinal groups share one class, as lesions do; multi-label images
    take each label from their group or draw their own, as studies of a patient do.
    """
    import numpy as np

    settings = source.synthetic
    if settings is None:
        raise ValueError(f"dataset {card.id}: layout synthetic without settings")
    generator = keyed_generator("synthetic_cohort", card.id, source_id)
    n = settings.n_images
    prefix = "a" if source_id == PRIMARY else "b"
    group_of = _group_numbers(settings, n, generator)
    n_groups = int(group_of[-1]) + 1
    prevalence = np.asarray(settings.prevalence)
    if card.task == "multi_label":
        of_group = generator.random((n_groups, prevalence.size)) < prevalence
        own = generator.random((n, prevalence.size)) < prevalence
        inherits = generator.random((n, prevalence.size)) < GROUP_COHESION
        labels = np.where(inherits, of_group[group_of], own).astype(np.int8)
    else:
        classes = generator.choice(prevalence.size, size=n_groups, p=prevalence / prevalence.sum())
        labels = np.eye(prevalence.size, dtype=np.int8)[classes[group_of]]
    return Cohort(
        image_ids=[f"{prefix}{i:06d}" for i in range(n)],
        groups=[f"{prefix}g{g:06d}" for g in group_of],
        declared_split=[None] * n,
        labels=labels,
    )


def _group_numbers(settings: SyntheticCohort, n: int, generator: np.random.Generator) -> NDArray[np.int64]:
    import numpy as np

    sizes = generator.geometric(1.0 / settings.mean_group_size, size=n)
    return np.repeat(np.arange(n), sizes)[:n]
