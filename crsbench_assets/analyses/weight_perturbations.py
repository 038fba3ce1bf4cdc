"""Whether the ranking hangs on the exact weights of the score.

What lives here: the rows of ``weight_perturbations``. What stays out: other metrics behind an axis
(``metric_sensitivity``), and other members (``panel_perturbations``).
Source: protocol page, section 8. Draws are Dirichlet(100 w) about the declared weights w: each has mean w_k and
standard deviation sqrt(w_k (1 - w_k) / 101), .043 for an axis. The worst axis has no weights, so axis weights move
the balance alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from crsbench_assets.analyses.agreement import agreement
from crsbench_assets.analyses.population import analysis_frame
from crsbench_assets.config.protocol import AXES, ScoreRules
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.scores.components import balance, clinical_reliability_score
from crsbench_assets.scores.ensemble import frozen_anchors, members_of, score_ensemble
from crsbench_assets.scores.panel import Panel

N_DRAWS = 1000

CONCENTRATION = 100.0
"""kappa of Dirichlet(kappa w)."""

COMPONENT_ALTERNATIVES: Mapping[str, tuple[float, ...]] = {
    "equal": (1 / 3, 1 / 3, 1 / 3),
    "dominance_heavy": (0.7, 0.2, 0.1),
    "balance_heavy": (0.3, 0.5, 0.2),
    "worst_heavy": (0.3, 0.2, 0.5),
}
"""Name -> weights of dominance, balance and worst axis."""

AXIS_ALTERNATIVES: Mapping[str, tuple[float, ...]] = {
    f"{heavy}_heavy": tuple(0.4 if axis == heavy else 0.2 for axis in AXES) for heavy in AXES
}
"""Name -> weights of the axes."""


def weight_perturbations(panel: Panel, rules: ScoreRules) -> pl.DataFrame:
    """Return how far the ranking of a panel's members under other weights agrees with that under the declared.

    Draw i of a kind is keyed by the panel's id, the kind and i, and depends on no other. A declared weight of 0
    stays 0.

    Args:
        panel: frozen or provisional.
        rules: the declared weights.

    Returns:
        Per kind (``axes``, ``components``) 1,000 draws and four named alternatives, each with all the weights in use.
        ``is_top_3_unchanged`` where the same encoders have the same share of the top 3. ``no_spread`` where all
        members score alike, ``too_few_units`` for three members or fewer, whose top 3 is all of them.
    """
    scores = score_ensemble(members_of(panel).values[None], *frozen_anchors(panel), rules)
    x, pareto, balanced, worst = scores.x[0], scores.pareto[0], scores.balance[0], scores.worst[0]
    axis_weights = [rules.axis_weights[axis] for axis in AXES]
    component_weights = [rules.dominance_weight, rules.balance_weight, rules.worst_weight]
    rows = []
    for weights_of, declared, alternatives in (
        ("axes", axis_weights, AXIS_ALTERNATIVES),
        ("components", component_weights, COMPONENT_ALTERNATIVES),
    ):
        for name, is_draw, weights in _perturbed(panel.panel_id, weights_of, declared, alternatives):
            of_axes, of_components = (weights, component_weights) if weights_of == "axes" else (axis_weights, weights)
            closeness = balance(x, of_axes) if weights_of == "axes" else balanced
            found = agreement(scores.crs[0], clinical_reliability_score(pareto, closeness, worst, of_components))
            overlap = found.top_3_overlap
            rows.append(
                {
                    "panel_id": panel.panel_id,
                    "weights_of": weights_of,
                    "perturbation_id": name,
                    "is_draw": is_draw,
                    **{f"weight_{axis}": weight for axis, weight in zip(AXES, of_axes, strict=True)},
                    "weight_pareto": of_components[0],
                    "weight_balance": of_components[1],
                    "weight_worst": of_components[2],
                    "n_encoders": len(panel.members),
                    **found._asdict(),
                    # shares of places are sums of fractions, so the same three may sum to a little less than 1
                    "is_top_3_unchanged": None if overlap is None else overlap > 1 - 1e-9,
                }
            )
    return analysis_frame("weight_perturbations", rows)


def _perturbed(
    panel_id: str, weights_of: str, declared: Sequence[float], alternatives: Mapping[str, Sequence[float]]
) -> Iterator[tuple[str, bool, Sequence[float]]]:
    """Return id, whether it is a draw, and weights of every perturbation of one kind."""
    concentrations = [CONCENTRATION * weight for weight in declared]
    for draw in range(N_DRAWS):
        generator = keyed_generator("weight_perturbations", panel_id, weights_of, draw)
        yield f"draw-{draw:04}", True, generator.dirichlet(concentrations).tolist()
    for name, weights in alternatives.items():
        yield name, False, weights
