"""What the plan means for the person who waits: how much there is to do, and how long it may take.

What lives here: the estimate and the JSON forms of plan and status. What stays out: the decision (``plan``) and
tables on a screen (``cli``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from crsbench_assets.config.cards import IMAGE_KINDS
from crsbench_assets.planning.plan import BLOCKED, CURRENT, MISSING, Plan, Task
from crsbench_assets.storage.lake import Pointer
from crsbench_assets.storage.project import Project


@dataclass(frozen=True)
class Estimate:
    """Work that is due.

    ``n_images`` and ``n_passes`` are None where a cohort was not indexed yet and its card does not say how many images
    it has; ``seconds`` and ``n_bytes`` come from finished partitions and are None before the first one.
    """

    n_cells: int
    n_images: int | None
    n_passes: int | None
    n_fits: int
    seconds: float | None
    n_bytes: int | None


def estimate(project: Project, plan: Plan) -> Estimate:
    """Return how much work is due."""
    protocol = project.registry.protocol
    cells = plan.due("cell")
    due = [task for task in plan.tasks if task.is_due]
    n_images = {dataset_id: _n_images(project, dataset_id) for dataset_id in {key[1] for key in cells}}
    encoders = project.registry.encoders
    # vectors that exist already, or that are drawn, need no pass through a network
    extract = [t.key for t in due if t.stage.name == "extract" and encoders[t.key[0]].kind in IMAGE_KINDS]
    corrupted = protocol.splits.test_fraction * len(protocol.corruption_conditions)
    return Estimate(
        n_cells=len(cells),
        n_images=_sum(n_images.values()),
        n_passes=_rounded(_sum(_passes(n_images[key[1]], corrupted) for key in extract)),
        n_fits=sum(task.stage.name == "probe" for task in due) * len(protocol.seeds) * len(protocol.label_fractions),
        seconds=_total(plan, due, lambda pointer: pointer.seconds),
        n_bytes=_rounded(_total(plan, due, lambda pointer: pointer.n_bytes)),
    )


def plan_json(project: Project, plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON: counts, estimate and every task that is not current."""
    return {
        "home": str(project.layout.root),
        "protocol": project.registry.protocol.label,
        "counts": asdict(plan.counts),
        "due": asdict(estimate(project, plan)),
        "tasks": [
            {
                "stage": task.stage.name,
                "tables": list(task.stage.tables),
                "partition": list(task.key),
                "state": task.state,
                "reason": task.reason,
                "why": task.why,
            }
            for task in plan.tasks
            if task.state != CURRENT and not (task.stage.is_on_request and task.state == MISSING)
        ],
    }


def status_json(project: Project, plan: Plan) -> dict[str, Any]:
    """Return the grid of cells as JSON."""
    return {
        "home": str(project.layout.root),
        "counts": asdict(plan.counts),
        "statuses": dict(sorted(Counter(cell.status for cell in plan.cells).items())),
        "cells": [asdict(cell) for cell in plan.cells],
    }


def blocked_sentences(plan: Plan) -> list[str]:
    """Return why what cannot be computed cannot be, each cause once."""
    found = Counter(task.why for task in plan.tasks if task.state == BLOCKED and not task.is_blocked_by_upstream)
    return [f"{why} ({n} partition(s))" if n > 1 else why for why, n in sorted(found.items())]


def _sum(values: Iterable[float | None]) -> Any:
    found = list(values)
    return None if None in found else sum(value for value in found if value is not None)


def _passes(n_images: int | None, corrupted: float) -> float | None:
    return None if n_images is None else n_images * (1 + corrupted)


def _n_images(project: Project, dataset_id: str) -> int | None:
    pointer = project.lake.pointer("images", (dataset_id,))
    if pointer is not None and pointer.status == "ok":
        return pointer.n_rows
    card = project.registry.datasets[dataset_id]
    if card.source.synthetic:
        return card.source.synthetic.n_images
    return card.expected_n_images


def _total(plan: Plan, due: Iterable[Task], value: Any) -> float | None:
    """Return the sum over what is due of the median of finished partitions of the same stage and, if any, dataset."""
    finished: dict[tuple[str, str], list[float]] = {}
    for task in plan.tasks:
        if task.pointer is not None and task.pointer.status == "ok":
            for name in ("", task.key[-1] if task.key else ""):
                finished.setdefault((task.stage.name, name), []).append(_of(task.pointer, value))
    total = 0.0
    for task in due:
        dataset_id = task.key[-1] if task.key else ""
        known = finished.get((task.stage.name, dataset_id)) or finished.get((task.stage.name, ""))
        if known is None:
            return None
        total += median(known)
    return round(total, 1)


def _of(pointer: Pointer, value: Any) -> float:
    return float(value(pointer))


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
