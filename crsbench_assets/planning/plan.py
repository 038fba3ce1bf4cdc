"""The planner: what is missing or stale, and why.

What lives here: the state of every stage of every dataset and cell, derived from pointers and inputs hashes alone.
What stays out: doing anything about it (``cli``, sensor and schedule ask here) and its display (``status``).
Source: architecture page, principle 6; works after the loss of the Dagster database and without importing Dagster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from crsbench_assets.config.cards import IMAGE_KINDS, PRIMARY
from crsbench_assets.config.cells import Cell, GridCounts, grid_counts
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.planning.inputs import Inputs, InputsHasher
from crsbench_assets.planning.stages import STAGE_OF_TABLE, STAGES, StageSpec
from crsbench_assets.storage.lake import Pointer
from crsbench_assets.storage.layout import PartitionKey
from crsbench_assets.storage.leases import Attempt
from crsbench_assets.storage.project import Project
from crsbench_assets.tables.schema import Grain

CURRENT, MISSING, STALE, FAILED, RUNNING, BLOCKED = "current", "missing", "stale", "failed", "running", "blocked"
"""States of a task. ``blocked`` tasks cannot be computed as things stand; nobody asks for them."""


PointerLookup = Callable[[str, PartitionKey], Pointer | None]
"""(table, partition) -> pointer of the last table of that table's stage, or None."""


Contents = list[tuple[PartitionKey, str]]
"""Partitions with results, sorted, and the content hash of each."""


@dataclass(frozen=True)
class Task:
    """One stage of one partition and its state; ``why`` is a sentence for people, ``reason`` a code or None."""

    stage: StageSpec
    key: PartitionKey
    state: str
    why: str = ""
    reason: str | None = None
    inputs: Inputs | None = None
    pointer: Pointer | None = None
    attempt: Attempt | None = None
    is_settled: bool = False
    """Whether the stored result is what would be computed now; also while somebody computes it again."""
    is_blocked_by_upstream: bool = False

    @property
    def has_died(self) -> bool:
        """Whether the last attempt says running and its process is gone, so the reaper has work."""
        return self.attempt is not None and self.attempt.state == "running" and self.state != RUNNING

    @property
    def is_outdated(self) -> bool:
        """Whether there is no result of today's inputs."""
        return self.state in (MISSING, STALE)

    @property
    def is_due(self) -> bool:
        """Whether a default `materialize` computes it."""
        return self.is_outdated and not self.stage.is_on_request


@dataclass(frozen=True)
class CellState:
    """A cell of the grid with its status (interfaces page, ``cells.status``)."""

    encoder_id: str
    dataset_id: str
    status: str
    reason: str | None


@dataclass(frozen=True)
class Plan:
    """Everything the planner found."""

    tasks: tuple[Task, ...]
    grid: tuple[Cell, ...]
    counts: GridCounts
    retired: tuple[CellState, ...]

    def due(self, grain: Grain) -> list[PartitionKey]:
        """Return the partitions of a grain with work to do, in order."""
        return list(dict.fromkeys(t.key for t in self.tasks if t.is_due and t.stage.grain == grain))

    def of(self, key: PartitionKey, grain: Grain) -> list[Task]:
        """Return the tasks of one partition, upstream first."""
        return self._by_partition.get((grain, key), [])

    @cached_property
    def _by_partition(self) -> dict[tuple[str, PartitionKey], list[Task]]:
        found: dict[tuple[str, PartitionKey], list[Task]] = {}
        for task in self.tasks:
            found.setdefault((task.stage.grain, task.key), []).append(task)
        return found

    @cached_property
    def cells(self) -> tuple[CellState, ...]:
        """Every cell of the grid with its status, retired encoders last."""
        return tuple(self._cell_state(cell) for cell in self.grid) + self.retired

    def _cell_state(self, cell: Cell) -> CellState:
        if not cell.is_applicable:
            return CellState(cell.encoder_id, cell.dataset_id, "not_applicable", cell.reason)
        upstream = self.of((cell.dataset_id,), "dataset")
        own = [task for task in self.of((cell.encoder_id, cell.dataset_id), "cell") if not task.stage.is_on_request]
        status, reason = _status_of(upstream, own)
        return CellState(cell.encoder_id, cell.dataset_id, status, reason)


def _status_of(upstream: Sequence[Task], own: Sequence[Task]) -> tuple[str, str | None]:
    for state in (RUNNING, FAILED):
        found = next((task for task in (*own, *upstream) if task.state == state), None)
        if found:
            return state, f"{found.stage.name}: {found.reason or found.why}"
    pending = next((task for task in (*upstream, *own) if task.state != CURRENT), None)
    if pending is None:
        return "ok", None
    has_result = any(task.pointer is not None for task in own if task.stage.name == "derive_axes")
    return ("stale" if has_result else "missing"), f"{pending.stage.name}: {pending.reason or pending.why}"


class _Planner:
    """Walks the stages upstream first and remembers what it saw."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.hasher = InputsHasher(project)
        self.tasks: dict[tuple[str, PartitionKey], Task] = {}
        self._pooled: dict[str, Contents] = {}

    def walk(self, stages: Sequence[StageSpec]) -> None:
        """Find the state of every partition of some stages, which stand upstream first."""
        for stage in stages:
            for key in self._keys(stage.grain):
                self.tasks[stage.name, key] = self._task(stage, key)

    def plan(self) -> Plan:
        """Return the state of everything."""
        self.walk(STAGES)
        return Plan(tuple(self.tasks.values()), self.project.grid, grid_counts(self.project.registry), self._retired())

    def _keys(self, grain: Grain) -> list[PartitionKey]:
        if grain == "cell":
            return [(cell.encoder_id, cell.dataset_id) for cell in self.project.grid if cell.is_applicable]
        if grain == "dataset":
            return [(dataset_id,) for dataset_id in self.project.registry.datasets]
        return [()]

    def _task(self, stage: StageSpec, key: PartitionKey) -> Task:
        pointer = self.project.lake.pointer(stage.last_table, key)
        attempt = self.project.lake.attempt(stage.lease_table, key)
        task = self._compared(stage, key, pointer, attempt)
        if attempt is None:
            return task
        if attempt.is_running():
            why = f"computed by process {attempt.pid} on {attempt.host}"
            return replace(task, attempt=attempt, state=RUNNING, why=why)
        return replace(task, attempt=attempt)

    def _compared(self, stage: StageSpec, key: PartitionKey, pointer: Pointer | None, attempt: Attempt | None) -> Task:
        # what cannot be looked at any more, such as vectors whose file was removed, counts as it was computed
        is_kept = pointer is not None and pointer.status == "ok"
        blocker = self._blocker(stage, key)
        if blocker:
            return Task(stage, key, BLOCKED, *blocker, pointer=pointer, is_settled=is_kept)
        waiting = self._waiting(stage, key)
        if waiting is not None:
            return self._waiting_task(stage, key, pointer, waiting)
        try:
            inputs = self.hasher.inputs(stage, key, self._contents(stage, key))
        except ConfigError as error:
            return Task(stage, key, BLOCKED, str(error), pointer=pointer, is_settled=is_kept)
        return _compared(stage, key, inputs, pointer, attempt)

    def _contents(self, stage: StageSpec, key: PartitionKey) -> dict[str, Contents]:
        if stage.grain != "whole":
            return upstream_contents(self.project, stage, key, self.pointer)
        # two dozen pooled stages read the same few tables, each of all cells
        for table in stage.reads:
            if table not in self._pooled:
                self._pooled[table] = table_contents(self.project, stage, table, key, self.pointer)
        return {table: self._pooled[table] for table in stage.reads}

    def pointer(self, table: str, key: PartitionKey) -> Pointer | None:
        """Return the pointer of a partition whose result is settled, or of a table of grain ``whole``."""
        stage = STAGE_OF_TABLE[table]
        task = self.tasks.get((stage.name, key))
        if task is None:  # a stage of grain ``whole`` that nobody walked
            return self.project.lake.pointer(stage.last_table, key)
        return task.pointer if task.is_settled or stage.grain == "whole" else None

    def _waiting(self, stage: StageSpec, key: PartitionKey) -> Task | None:
        """Return the first upstream task that is not current, for partitions that need all of theirs."""
        if stage.grain == "whole":
            return None  # pooled stages work with what there is
        for table in stage.reads:
            upstream = STAGE_OF_TABLE[table]
            task = self.tasks[upstream.name, upstream_key(stage, upstream, key)]
            if not task.is_settled:
                return task
        return None

    def _waiting_task(self, stage: StageSpec, key: PartitionKey, pointer: Pointer | None, waiting: Task) -> Task:
        if waiting.state in (FAILED, BLOCKED):
            why = f"{waiting.stage.name}: {waiting.why}"
            return Task(stage, key, BLOCKED, why, waiting.reason, pointer=pointer, is_blocked_by_upstream=True)
        state = MISSING if pointer is None else STALE
        return Task(stage, key, state, f"{waiting.stage.name} is {waiting.state}", pointer=pointer)

    def _blocker(self, stage: StageSpec, key: PartitionKey) -> tuple[str, str] | None:
        registry = self.project.registry
        if stage.name == "index":
            card = registry.datasets[key[0]]
            if card.agreement is not None and card.agreement not in registry.settings.agreements:
                why = f"dataset {card.id!r}: crsbench.yaml does not record that somebody accepted {card.agreement!r}"
                return why, "no_access"
            for name, source in card.open_sources(registry.settings.agreements).items():
                if source.layout not in ("manifest", "synthetic") and source.root is None:
                    place = card.id if name == PRIMARY else name
                    why = f"dataset {card.id!r}: crsbench.yaml names no folder for it; add `roots: {{{place}: FOLDER}}`"
                    return why, "no_root"
        if stage.name == "extract" and registry.encoders[key[0]].kind in IMAGE_KINDS:
            weights = registry.encoders[key[0]].weights
            if weights is None:
                return f"encoder {key[0]!r} reads images, and its card names no `weights`", "not_available"
            if not weights.is_loadable:
                return f"encoder {key[0]!r}: this version has no loader {weights.loader!r} yet", "not_available"
        return None

    def _retired(self) -> tuple[CellState, ...]:
        registry = self.project.registry
        return tuple(
            CellState(encoder_id, dataset_id, "retired", None)
            for dataset_id in registry.datasets
            for encoder_id in registry.settings.retired
            if encoder_id in registry.encoders
        )


def _compared(
    stage: StageSpec, key: PartitionKey, inputs: Inputs, pointer: Pointer | None, attempt: Attempt | None
) -> Task:
    if pointer is not None and pointer.inputs == inputs.parts:  # equal parts have an equal hash, which costs more
        if pointer.status == "failed":
            return Task(stage, key, FAILED, pointer.detail or "", pointer.reason, inputs, pointer)
        return Task(stage, key, CURRENT, "", pointer.reason, inputs, pointer, is_settled=True)
    if attempt is not None and pointer is None and attempt.message:
        why = f"last attempt {attempt.state}: {attempt.message}"
        return Task(stage, key, MISSING, why, attempt.reason, inputs, None)
    if pointer is None:
        return Task(stage, key, MISSING, "never computed", None, inputs, None)
    changed = sorted(
        name for name in inputs.parts | pointer.inputs if inputs.parts.get(name) != pointer.inputs.get(name)
    )
    why = f"changed: {', '.join(changed)}"
    if attempt is not None and attempt.message:
        why += f"; last attempt {attempt.state}: {attempt.message}"
    return Task(stage, key, STALE, why, None, inputs, pointer)


def plan(project: Project) -> Plan:
    """Return what is missing or stale in a project, and why."""
    return _Planner(project).plan()


def upstream_key(stage: StageSpec, upstream: StageSpec, key: PartitionKey) -> PartitionKey:
    """Return the upstream partition that a partition reads; stages of grain ``whole`` read all of them instead."""
    if upstream.grain == "dataset" and stage.grain == "cell":
        return (key[1],)
    if upstream.grain == "whole":
        return ()
    return key


def upstream_partitions(project: Project, stage: StageSpec, table: str, key: PartitionKey) -> list[PartitionKey]:
    """Return the partitions of ``table`` that one partition of ``stage`` reads, sorted."""
    upstream = STAGE_OF_TABLE[table]
    if stage.grain != "whole" or upstream.grain == "whole":
        return [upstream_key(stage, upstream, key)]
    if upstream.grain == "dataset":
        return sorted((dataset_id,) for dataset_id in project.registry.datasets)
    return sorted((cell.encoder_id, cell.dataset_id) for cell in project.grid if cell.is_applicable)


def upstream_contents(
    project: Project, stage: StageSpec, key: PartitionKey, pointer_of: PointerLookup
) -> dict[str, Contents]:
    """Return, for every table that a stage reads, its partitions with results and their content hashes.

    Args:
        project: the project.
        stage: the reading stage.
        key: the reading partition.
        pointer_of: (table, partition) -> pointer of the last table of that table's stage.
    """
    return {table: table_contents(project, stage, table, key, pointer_of) for table in stage.reads}


def table_contents(
    project: Project, stage: StageSpec, table: str, key: PartitionKey, pointer_of: PointerLookup
) -> Contents:
    """Return the partitions of one table as :func:`upstream_contents` does of all that a stage reads."""
    results = upstream_results(project, stage, table, key, pointer_of)
    return [(part, found.stage_contents[table]) for part, found in results if table in found.stage_contents]


def upstream_results(
    project: Project, stage: StageSpec, table: str, key: PartitionKey, pointer_of: PointerLookup
) -> list[tuple[PartitionKey, Pointer]]:
    """Return the partitions of ``table`` with results that one partition of ``stage`` reads, sorted."""
    results = []
    for part in upstream_partitions(project, stage, table, key):
        pointer = pointer_of(table, part)
        if pointer is not None and pointer.status == "ok":
            results.append((part, pointer))
    return results


def pointers_for(project: Project, stage: StageSpec) -> PointerLookup:
    """Return the lookup with which a worker reads and stamps a stage.

    A stage of a dataset or cell reads what the lake holds. A pooled stage reads settled results only: what is stale
    or was computed before its cell failed speaks of inputs that are gone, and must not be scored or frozen.
    """
    if stage.grain == "whole":
        planner = _Planner(project)
        planner.walk(_partitioned_upstream(stage))
        return planner.pointer

    def lookup(table: str, key: PartitionKey) -> Pointer | None:
        return project.lake.pointer(STAGE_OF_TABLE[table].last_table, key)

    return lookup


def _partitioned_upstream(stage: StageSpec) -> list[StageSpec]:
    """Return the stages of datasets and cells that a pooled stage rests on, directly or not, upstream first."""
    tables, found = set(stage.reads), []
    for upstream in reversed(STAGES):
        if upstream.grain != "whole" and tables.intersection(upstream.tables):
            tables.update(upstream.reads)
            found.append(upstream)
    return found[::-1]
