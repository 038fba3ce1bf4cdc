"""What happens to the scores of a panel when other encoders join.

What lives here: the rows of ``insertion_trials``. What stays out: members that leave (``panel_perturbations``).
Source: protocol page, section 8: 30 trials, a random base of 8 of the 15 members, the other 7 inserted at once. Every
number comes from the score that is published (``scores.crs``), so that the zero of the fixed reference is a
measurement of it. That a panel of another size is cut in half likewise is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from crsbench_assets.analyses.population import analysis_frame
from crsbench_assets.config.protocol import AXES, Protocol
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.scores.crs import crs_scores
from crsbench_assets.scores.panel import Panel, provisional_panel
from crsbench_assets.scores.profile import AXIS_VALUES_SCHEMA, ENCODERS_SCHEMA

N_TRIALS = 30


def insertion_trials(panel: Panel, protocol: Protocol) -> pl.DataFrame:
    """Return the displacement of the base members' scores when the other members are inserted at once.

    The base of a trial is a random ceil(m / 2) of the m members, keyed by the panel's id and the trial: 8 of 15. The
    trial stands on the datasets that the base has: on others the base has no anchors, and a member without any of
    these datasets is not inserted. ``fixed_reference`` scores the union against the base, ``cohort`` against itself.

    Args:
        panel: frozen or provisional; its frozen values are scored.
        protocol: the one that the panel was formed under.

    Returns:
        Per trial and mode one row per base member, by id. ``crs_before`` is its score in the base alone.
        ``too_few_units`` where nobody could be inserted, as in a panel of one.

    Raises:
        ConfigError: the panel belongs to another protocol.
    """
    rows = []
    for trial in range(N_TRIALS):
        order = keyed_generator("insertion_trials", panel.panel_id, trial).permutation(len(panel.members))
        base = sorted(panel.members[i] for i in order[: (len(order) + 1) // 2])
        datasets = [dataset for dataset in panel.datasets if not panel.values[dataset].keys().isdisjoint(base)]
        union = sorted(set(base).union(*(panel.values[dataset] for dataset in datasets)))
        reference, whole = (_panel_of(panel, members, datasets) for members in (base, union))
        before = _crs(panel, base, reference, protocol)
        has_inserted = len(union) > len(base)
        for mode, against in (("fixed_reference", reference), ("cohort", whole)):
            after = _crs(panel, union, against, protocol) if has_inserted else {}
            for encoder in base:
                row = {
                    "panel_id": panel.panel_id,
                    "trial": trial,
                    "mode": mode,
                    "encoder_id": encoder,
                    "n_base": len(base),
                    "n_inserted": len(union) - len(base),
                    "crs_before": before[encoder],
                }
                if has_inserted:
                    displacement = abs(after[encoder] - before[encoder])
                    rows.append(row | {"crs_after": after[encoder], "displacement": displacement})
                else:
                    rows.append(row | {"reason": "too_few_units"})
    return analysis_frame("insertion_trials", rows)


def _frames(panel: Panel, encoders: Sequence[str], datasets: Sequence[str]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the frozen values of some members on some datasets, and the members as active encoders."""
    cells = {encoder: [d for d in datasets if encoder in panel.values[d]] for encoder in encoders}
    values = [
        (encoder, dataset, axis, panel.values[dataset][encoder][axis], None)
        for encoder, own in cells.items()
        for dataset in own
        for axis in AXES
    ]
    active = [(encoder, "candidate", own) for encoder, own in cells.items()]
    return (
        pl.DataFrame(values, schema=AXIS_VALUES_SCHEMA, orient="row"),
        pl.DataFrame(active, schema=ENCODERS_SCHEMA, orient="row"),
    )


def _panel_of(panel: Panel, members: Sequence[str], datasets: Sequence[str]) -> Panel:
    formed, _ = provisional_panel(*_frames(panel, members, datasets), panel.conditions)
    assert formed is not None  # the members of a panel are complete
    return formed


def _crs(panel: Panel, encoders: Sequence[str], against: Panel, protocol: Protocol) -> Mapping[str, float]:
    """Return the published score of some members against a panel; a member has one wherever it has a dataset."""
    scores, _ = crs_scores(*_frames(panel, encoders, against.datasets), against, protocol, code_version=1)
    return dict(scores.select("encoder_id", "crs").iter_rows())
