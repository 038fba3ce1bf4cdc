"""How any members and their cells become a panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crsbench_assets.config.protocol import AXES
from crsbench_assets.scores.panel import Anchor, Panel, PanelConditions


def panel_of(
    cells: Mapping[str, Sequence[str]], *, infeasible: Mapping[str, Sequence[float]] | None = None, name: str = "demo"
) -> Panel:
    """Return a panel whose members have the given datasets; fractions are .01, .1 and 1."""
    datasets = sorted({dataset for own in cells.values() for dataset in own})
    fractions = {
        dataset: tuple(f for f in (0.01, 0.1, 1.0) if f not in (infeasible or {}).get(dataset, ()))
        for dataset in datasets
    }
    conditions = PanelConditions(
        protocol_id="crs-1@0123456789ab",
        protocol_hash="0" * 64,
        arm="main",
        label_policy="u_zeros",
        robustness_variant="corruption_only",
        canonical_px=448,
        caps={},
        test_set_hash=dict.fromkeys(datasets, "0" * 64),
        feasible_fractions=fractions,
        code_versions={},
    )
    anchor = Anchor(low=0.0, high=1.0, low_encoder_id=min(cells), high_encoder_id=min(cells))
    return Panel(
        name=name,
        conditions=conditions,
        members=tuple(sorted(cells)),
        values={d: {e: dict.fromkeys(AXES, 0.5) for e in sorted(cells) if d in cells[e]} for d in datasets},
        anchors={d: dict.fromkeys(AXES, anchor) for d in datasets},
    )
