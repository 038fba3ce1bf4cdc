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
from crsbench_assets.storage.layout import PartitionKey
from crsbench_assets.storage.project import Project
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


Rule = Callable[[Project, PartitionKey], Finding]


def shape_rule(table: str) -> Rule:
    """Return the rule that a partition has the shape of its table and a result."""

    def rule(project: Project, key: PartitionKey) -> Finding:
        lake = project.lake
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

    def rule(project: Project, key: PartitionKey) -> Finding:
        rows = project.lake.read(table, key)
        if rows.is_empty():
            return Finding(True, "none")
        return Finding(False, f"{rows.height} row(s), first: {rows.row(0, named=True)}", rows)

    return rule


def component_rule(project: Project, key: PartitionKey) -> Finding:
    """No group that duplicates joined is too large."""
    from crsbench_assets.data.duplicates import components_in_words, oversized_components

    images = project.lake.read("images", key)
    found = oversized_components(images)
    failing = images.join(found, on=["source_id", "group_index"], how="semi").sort(
        "source_id", "group_index", "image_id"
    )
    failing = failing.drop("path")  # it may name a patient, and Dagster's database may lie outside of the home
    return Finding(found.is_empty(), "; ".join(components_in_words(found)) or "none", failing)


def expected_counts_rule(project: Project, key: PartitionKey) -> Finding:
    """There are as many images, of every class, as the card expects."""
    from crsbench_assets.data.statistics import unexpected_counts

    card = project.registry.dataset(str(key[0]))
    tables = (project.lake.read(table, key) for table in ("images", "quarantine"))
    faults = unexpected_counts(card, *tables)
    return Finding(not faults, "; ".join(faults) or "as the card expects, or it expects nothing")


def converged_rule(project: Project, key: PartitionKey) -> Finding:
    """Every probe that was fitted reached the certified gap."""
    import polars as pl

    lake = project.lake
    pointer = lake.pointer("probe_fits", key)
    if pointer is not None and pointer.status != "ok":
        return Finding(True, pointer.status)
    fits = lake.read("probe_fits", key)
    bad = fits.filter(~pl.col("is_converged"))
    worst = fits.get_column("relative_gap").max()
    found = f"{bad.height} of {fits.height} fits not converged, largest relative gap {worst!s}"
    return Finding(bad.is_empty(), found, bad)


RULES: dict[str, dict[str, Rule]] = {
    "images": {"component_size": component_rule, "expected_counts": expected_counts_rule},
    "leakage_violations": {"no_leakage": empty_rule("leakage_violations")},
    "probe_fits": {"converged": converged_rule},
}
"""Rules beyond the shape, by table."""

WARNINGS = ("expected_counts",)
"""Rules that say what they found and stop nothing: a part of a release is a cohort, too."""


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
            blocking=name not in WARNINGS,
            partitions_def=PARTITIONS[stage.grain],
            description=_description(table, name),
        )
        for table, name in rules
    ]

    @dg.multi_asset_check(name=f"{stage.name}_checks", specs=specs)
    def check(context: dg.AssetCheckExecutionContext, project: ProjectResource) -> Iterator[Any]:
        with one_sentence():
            opened = project.open(dict(context.run.tags))
            key = partition_of(context, stage.grain)
            for (table, name), rule in rules.items():
                finding = rule(opened, key)
                metadata: dict[str, Any] = {"found": finding.sentence}
                if not finding.holds and finding.failing is not None:
                    metadata["failing rows"] = first_rows(TABLES[table], finding.failing)
                yield dg.AssetCheckResult(
                    asset_key=asset_key(table, arm),
                    check_name=name,
                    passed=finding.holds,
                    severity=dg.AssetCheckSeverity.WARN if name in WARNINGS else dg.AssetCheckSeverity.ERROR,
                    metadata=metadata,
                )

    return check


def _description(table: str, name: str) -> str:
    if name == SHAPE:
        return f"{TABLES[table].name} has a result of its declared shape: no NaN, no value out of bounds, unique keys"
    return {
        "component_size": "no group that duplicates joined holds more than 0.5 % of the images",
        "expected_counts": "images and classes are as many as the card expects; a warning where not",
        "no_leakage": "no group, no equal pixels and no near-duplicate stands on both sides of a split",
        "converged": "every fitted probe reached the certified gap of the protocol",
    }[name]
