"""Blocking checks of a stage's tables.

What lives here: one check step per stage, made from the shapes of its tables and from the rules that numbers must
obey before anything is computed from them. What stays out: the rules' arithmetic. A failed blocking check stops the
chain of the cell within its run.
https://docs.dagster.io/guides/test/asset-checks
"""

# Dagster reads annotations as objects, so this module does not postpone them.

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import dagster as dg

from crsbench_assets.orchestration.failures import one_sentence
from crsbench_assets.orchestration.keys import asset_key
from crsbench_assets.orchestration.partitions import PARTITIONS, partition_of
from crsbench_assets.orchestration.previews import first_rows
from crsbench_assets.orchestration.resources import ProjectResource
from crsbench_assets.planning.stages import StageSpec
from crsbench_assets.storage.lake import Lake
from crsbench_assets.storage.layout import PartitionKey
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.validate import faulty_rows, violations

if TYPE_CHECKING:
    import polars as pl

SHAPE = "shape"


@dataclass(frozen=True)
class Finding:
    """What a rule found: whether it holds, one sentence, and the rows that break it."""

    holds: bool
    sentence: str
    failing: Optional["pl.DataFrame"] = None


Rule = Callable[[Lake, PartitionKey], Finding]


def shape_rule(table: str) -> Rule:
    """Return the rule that a partition has the shape of its table and a result."""

    def rule(lake: Lake, key: PartitionKey) -> Finding:
        pointer = lake.pointer(table, key)
        if pointer is None or pointer.status == "failed":
            return Finding(False, "no result" if pointer is None else f"{pointer.reason}: {pointer.detail}")
        if pointer.status != "ok":
            return Finding(True, f"{pointer.status}: {pointer.reason}")
        rows = lake.read(table, key)
        faults = violations(rows, TABLES[table])
        if faults:
            return Finding(False, "; ".join(faults), faulty_rows(rows, TABLES[table]))
        return Finding(True, f"{pointer.n_rows} rows")

    return rule


def empty_rule(table: str) -> Rule:
    """Return the rule that a table of violations has no row."""

    def rule(lake: Lake, key: PartitionKey) -> Finding:
        rows = lake.read(table, key)
        if rows.is_empty():
            return Finding(True, "none")
        return Finding(False, f"{rows.height} row(s), first: {rows.row(0, named=True)}", rows)

    return rule


def converged_rule(lake: Lake, key: PartitionKey) -> Finding:
    """Every probe that was fitted reached the certified gap."""
    import polars as pl

    pointer = lake.pointer("probe_fits", key)
    if pointer is not None and pointer.status != "ok":
        return Finding(True, pointer.status)
    fits = lake.read("probe_fits", key)
    bad = fits.filter(~pl.col("is_converged"))
    worst = fits.get_column("relative_gap").max()
    found = f"{bad.height} of {fits.height} fits not converged, largest relative gap {worst!s}"
    return Finding(bad.is_empty(), found, bad)


RULES: dict[str, dict[str, Rule]] = {
    "leakage_violations": {"no_leakage": empty_rule("leakage_violations")},
    "probe_fits": {"converged": converged_rule},
}
"""Rules beyond the shape, by table."""


def stage_checks(stage: StageSpec, arm: str) -> dg.AssetChecksDefinition:
    """Return the check step of a stage: every rule of every table it writes."""
    rules = {
        (table, name): rule
        for table in stage.tables
        for name, rule in ({SHAPE: shape_rule(table)} | RULES.get(table, {})).items()
    }
    specs = [
        dg.AssetCheckSpec(
            name,
            asset=asset_key(table, arm),
            blocking=True,
            partitions_def=PARTITIONS[stage.grain],
            description=_description(table, name),
        )
        for table, name in rules
    ]

    @dg.multi_asset_check(name=f"{stage.name}_checks", specs=specs)
    def check(context: dg.AssetCheckExecutionContext, project: ProjectResource) -> Iterator[Any]:
        with one_sentence():
            lake = project.open(dict(context.run.tags)).lake
            key = partition_of(context, stage.grain)
            for (table, name), rule in rules.items():
                finding = rule(lake, key)
                metadata: dict[str, Any] = {"found": finding.sentence}
                if not finding.holds and finding.failing is not None:
                    metadata["failing rows"] = first_rows(TABLES[table], finding.failing)
                yield dg.AssetCheckResult(
                    asset_key=asset_key(table, arm), check_name=name, passed=finding.holds, metadata=metadata
                )

    return check


def _description(table: str, name: str) -> str:
    if name == SHAPE:
        return f"{TABLES[table].name} has a result of its declared shape: no NaN, no value out of bounds, unique keys"
    return {
        "no_leakage": "no group stands on both sides of a split",
        "converged": "every fitted probe reached the certified gap of the protocol",
    }[name]
