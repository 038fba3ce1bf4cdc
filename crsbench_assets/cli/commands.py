"""What the commands do: open the home, call one function, show the result.

What lives here: the glue between options and functions. What stays out: the functions.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from crsbench_assets.cli.display import STATUS_MARK, console, duration, number, say, say_json, show_rows, size
from crsbench_assets.config.errors import ConfigError, CrsbenchError
from crsbench_assets.planning.plan import CURRENT, FAILED, Plan, plan
from crsbench_assets.planning.stages import stages_of
from crsbench_assets.storage.layout import MAIN_ARM, require_home, resolve_home
from crsbench_assets.storage.project import Project, open_project
from crsbench_assets.tables.reasons import REASONS

if TYPE_CHECKING:
    from crsbench_assets.cli.materialize import Selection

LEADERBOARD = """
    SELECT rank, rank_lo, rank_hi, tie_group, encoder_id, category, role, crs, pareto, balance, worst,
           x_discrimination, x_calibration, x_label_efficiency, x_robustness, n_datasets, panel_id, status, reason
    FROM leaderboard
"""


def init(home: Path | None) -> None:
    """See ``crsbench init``."""
    from crsbench_assets.operations.homes import init_home

    layout = resolve_home(home)
    is_new = init_home(layout)
    say(f"{'Made' if is_new else 'There is already'} a crsbench home at {layout.root}.")
    if is_new:
        say(
            f"Next, each with `--home {layout.root}`: `crsbench encoders list`, `crsbench datasets list`, then "
            "`crsbench materialize`."
        )


def demo(home: Path | None, panel: str) -> None:
    """See ``crsbench demo``."""
    from crsbench_assets.cli.materialize import Selection
    from crsbench_assets.operations.homes import (
        demo_panels,
        init_home,
        install_panel,
        require_installed,
        write_cohorts,
    )

    if panel not in demo_panels():
        raise ConfigError(f"There is no demo panel {panel!r}; known: {', '.join(demo_panels())}.")
    require_installed(panel)
    layout = resolve_home(home)
    init_home(layout)
    install_panel(layout, panel)
    write_cohorts(layout, panel, say)
    project = open_project(layout.root)
    frozen: list[str] = []
    # frozen between cells and scores, which are then computed once
    has_failed = _materialize(project, Selection(), lambda: frozen.append(_freeze_panel(project, panel)))
    if frozen:
        show_leaderboard(project)
    else:
        has_failed |= _freeze(layout.root, panel)
    say("Everything here is synthetic: it shows how crsbench works and says nothing about any real encoder.")
    say(f"Home: {layout.root}")
    say(f"Warehouse: {layout.warehouse}")
    say(f"Dagster UI: crsbench ui --home {layout.root}")
    if has_failed:
        raise typer.Exit(1)


def show_plan(home: Path | None, *, as_json: bool) -> None:
    """See ``crsbench plan``."""
    from crsbench_assets.planning.status import blocked_sentences, plan_json

    project = open_project(home)
    found = plan(project)
    value = plan_json(project, found)
    if as_json:
        say_json(value)
        return
    counts, due = value["counts"], value["due"]
    say(
        f"{counts['n_applicable']} of {counts['n_cells']} cells are applicable: {counts['n_fits']:,} probe fits, "
        f"{counts['n_records']:,} run records, {counts['n_aggregates']:,} aggregate rows."
    )
    tasks = [task for task in value["tasks"] if task["state"] != "blocked"]
    if not value["counts"]["n_cells"]:
        say("There are no cells yet: add cards to encoders/ and datasets/ of the home.")
    if not tasks:
        say("Nothing is missing or stale.")
    else:
        rows = [(task["state"], " x ".join(task["partition"]) or "all", task["stage"], task["why"]) for task in tasks]
        show_rows(("state", "partition", "stage", "why"), rows)
        say(
            f"Due: {due['n_cells']} cell(s), {number(due['n_images'])} images, {number(due['n_passes'])} passes "
            f"through encoders, {due['n_fits']:,} fits; time: {duration(due['seconds'])}; disk: {size(due['n_bytes'])}."
        )
    for sentence in blocked_sentences(found):
        say(f"cannot be computed: {sentence}")


def show_status(home: Path | None, *, as_json: bool) -> None:
    """See ``crsbench status``."""
    from crsbench_assets.planning.status import status_json

    project = open_project(home)
    found = _plan_and_reap(project)
    value = status_json(project, found) | {"refused_panels": _refused_panels(project)}
    if as_json:
        say_json(value)
        return
    _show_grid(value["cells"])
    say(", ".join(f"{n} {status}" for status, n in value["statuses"].items()) or "no cells: add encoders and datasets")
    for cell in value["cells"]:
        if cell["status"] in ("failed", "stale"):
            say(f"{cell['status']}: {cell['encoder_id']} x {cell['dataset_id']}: {cell['reason']}")
    for panel_id, differing in value["refused_panels"].items():
        say(
            f"refused: panel {panel_id}, frozen under another {', '.join(differing)}: nothing is scored against it. Go "
            "back to what it was frozen under, or freeze a new panel with `crsbench panel freeze NAME`."
        )


def _refused_panels(project: Project) -> dict[str, list[str]]:
    if not any(project.layout.panels.glob("*.json")):
        return {}  # without the scores' libraries
    from crsbench_assets.operations.panels import refused_panels

    return refused_panels(project)


def _show_grid(cells: Sequence[dict[str, Any]]) -> None:
    from rich.table import Table

    datasets = sorted({cell["dataset_id"] for cell in cells})
    by_encoder: dict[str, dict[str, str]] = {}
    for cell in cells:
        by_encoder.setdefault(cell["encoder_id"], {})[cell["dataset_id"]] = cell["status"]
    table = Table()
    for name in ("encoder", *datasets):
        table.add_column(name)
    for encoder_id, statuses in sorted(by_encoder.items()):
        table.add_row(encoder_id, *[STATUS_MARK.get(statuses.get(name, ""), "") for name in datasets])
    console.print(table)


def materialize_command(
    home: Path | None, encoders: list[str], datasets: list[str], tables: list[str], arm: str, *, force: bool
) -> None:
    """See ``crsbench materialize``."""
    from crsbench_assets.cli.materialize import Selection

    if arm != MAIN_ARM:
        raise ConfigError(f"There is no arm {arm!r} in this version; known: {MAIN_ARM}.")
    selection = Selection(frozenset(encoders), frozenset(datasets), frozenset(tables), force)
    outcome_failed = _materialize(open_project(home), selection)
    if outcome_failed:
        raise typer.Exit(1)


def _materialize(project: Project, selection: Selection, before_scores: Callable[[], None] = lambda: None) -> bool:
    """Compute and report; return whether anything failed. ``before_scores`` is called once all cells are computed."""
    from crsbench_assets.cli.materialize import check_selection, materialize, nothing_due, report_blocked
    from crsbench_assets.storage.warehouse import is_published

    check_selection(project, selection)
    before = _plan_and_reap(project)
    report_blocked(before)
    if not before.grid:
        say("There are no cells yet: add cards to encoders/ and datasets/ of the home.")
    if nothing_due(before, selection) and is_published(project, before.cells):
        n_current = sum(task.state == CURRENT for task in before.tasks)
        n_failed = sum(task.state == FAILED and selection.has(task.stage.grain, task.key) for task in before.tasks)
        say(f"Nothing to do: {n_current} partitions are current{f', {n_failed} failed' if n_failed else ''}.")
        return n_failed > 0
    outcome = materialize(project, selection, before_scores)
    say(f"Computed {len(outcome.finished)} partition(s), {len(outcome.failed)} failed.")
    for label, sentence in outcome.failed:
        say(f"failed: {label}: {sentence}")
    return bool(outcome.failed)


def run_sql(home: Path | None, query: str, *, live: bool, form: str) -> None:
    """See ``crsbench sql``."""
    from crsbench_assets.storage.sql import query as run_query
    from crsbench_assets.storage.sql import query_published

    try:
        project = open_project(home)
        result = run_query(project, query, cells=lambda: plan(project).cells, live=live)
    except ConfigError as error:
        layout = resolve_home(home)
        if live or not layout.warehouse.exists():
            raise
        # what was published needs no card, so a faulty one must not keep anybody from it
        sys.stderr.write(f"crsbench: {error} The last publication answers all the same.\n")
        result = query_published(layout, query)
    if result.note:
        sys.stderr.write(f"crsbench: {result.note}\n")
    names = result.table.column_names
    if form == "json":
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ConfigError(
                f"JSON cannot hold two columns of one name ({', '.join(repeated)}): rename one with AS, or use "
                "--format csv."
            )
        say_json(result.table.to_pylist())
        return
    rows = list(zip(*(column.to_pylist() for column in result.table.columns), strict=True))
    if form == "csv":
        writer = csv.writer(console.file)
        writer.writerow(names)
        writer.writerows(rows)
    else:
        show_rows(names, rows)


def publish_command(home: Path | None) -> None:
    """See ``crsbench publish``."""
    from crsbench_assets.storage.warehouse import publish

    project = open_project(home)
    publication = publish(project, plan(project).cells)
    say(f"Published {publication.path} ({publication.n_rows:,} rows, {publication.seconds:.1f} s).")


def report_command(home: Path | None, *, open_it: bool) -> None:
    """See ``crsbench report``."""
    from crsbench_assets.report.html import write_report

    layout = resolve_home(home)
    require_home(layout)
    path = write_report(layout)
    say(f"Wrote {path}")
    if open_it:
        import webbrowser

        if not webbrowser.open(path.as_uri()):
            say("No browser could be started here: open the file yourself.")


def export_command(home: Path | None, target: Path) -> None:
    """See ``crsbench export``."""
    from crsbench_assets.operations.bundles import export_bundle

    bundle = export_bundle(resolve_home(home), target.absolute())
    say(f"Wrote {bundle.path}: {bundle.n_tables} tables, {bundle.n_rows:,} rows, {size(bundle.n_bytes)}.")
    if bundle.n_outdated:
        say(
            f"Not in it: {bundle.n_outdated} partition(s) of an older version of crsbench. Run `crsbench materialize`, "
            "which computes them again, then export again."
        )


def reconcile_command(home: Path | None, *, remove_unknown_keys: bool) -> None:
    """See ``crsbench reconcile``."""
    from crsbench_assets.cli.materialize import workers
    from crsbench_assets.operations.homes import restore_dagster_folder

    project = open_project(home)
    restore_dagster_folder(project)
    with workers(project.layout, 1) as pool:
        for sentence in pool.ask_one({"do": "reap"})["sentences"]:
            say(f"reaped: {sentence}")
        if remove_unknown_keys:
            removed = pool.ask_one({"do": "remove_unknown_keys"})["removed"]
            say(f"Removed partition keys without a card: {', '.join(removed) or 'none'}.")
        with console.status("telling Dagster what the lake holds"):
            n_reported = pool.ask_one({"do": "reconcile"})["n_reported"]
    say(f"Reported {n_reported} partition(s) that Dagster did not know; nothing was computed.")


def doctor_command(home: Path | None, *, as_json: bool) -> None:
    """See ``crsbench doctor``."""
    from dataclasses import asdict

    from crsbench_assets.operations.doctor import examine

    layout = resolve_home(home)
    findings = examine(layout)
    if as_json:
        say_json([asdict(finding) for finding in findings])
    else:
        rows = [(finding.verdict, finding.check, finding.found, finding.remedy) for finding in findings]
        show_rows(("", "check", "found", "remedy"), rows)
    if any(finding.verdict == "blocker" for finding in findings):
        raise typer.Exit(1)


def serve_ui(home: Path | None, port: int) -> None:
    """See ``crsbench ui``."""
    from crsbench_assets.cli.ui import serve
    from crsbench_assets.operations.homes import restore_dagster_folder

    project = open_project(home)
    restore_dagster_folder(project)
    _plan_and_reap(project)
    raise typer.Exit(serve(project, port))


def freeze(home: Path | None, name: str) -> None:
    """See ``crsbench panel freeze``."""
    if _freeze(home, name):
        raise typer.Exit(1)


def _freeze(home: Path | None, name: str) -> bool:
    """Freeze a panel, score against it and show the leaderboard; return whether anything failed."""
    from crsbench_assets.cli.materialize import Selection

    project = open_project(home)
    _freeze_panel(project, name)
    pooled = frozenset(table for stage in stages_of("whole") for table in stage.tables)
    has_failed = _materialize(project, Selection(tables=pooled))
    show_leaderboard(project)
    return has_failed


def _freeze_panel(project: Project, name: str) -> str:
    """Freeze a panel, say who is in it, and return its id."""
    from crsbench_assets.operations.panels import freeze_panel

    frozen = freeze_panel(project, name)
    say(
        f"{'Froze' if frozen.is_new else 'Already frozen:'} panel {frozen.panel.panel_id} with "
        f"{len(frozen.panel.members)} members on {', '.join(frozen.panel.datasets)}."
    )
    for encoder_id in frozen.incomplete:
        say(
            f"left out, because a cell of it has no result or lacks an axis: {encoder_id} (see `SELECT dataset_id, "
            f"axis, reason FROM cell_axes WHERE encoder_id = '{encoder_id}' AND variant = 'primary' AND value IS NULL`)"
        )
    return str(frozen.panel.panel_id)


def show_leaderboard(project: Project) -> None:
    """Print the leaderboard of the published warehouse."""
    from crsbench_assets.storage.sql import query as run_query

    table = run_query(project, LEADERBOARD, cells=lambda: plan(project).cells).table
    panels = sorted({row["panel_id"] for row in table.to_pylist()})
    names = [name for name in table.column_names if name not in ("panel_id", "reason")]
    rows = [[row[name] for name in names] for row in table.to_pylist()]
    show_rows(names, rows, title=f"Leaderboard against panel {', '.join(panels)}")
    for reason in sorted({r["reason"] for r in table.to_pylist() if r["rank"] is not None} - {None}):
        say(f"Ranks without an interval: {REASONS[reason]}.")


def list_panels(home: Path | None, *, as_json: bool) -> None:
    """See ``crsbench panel list``."""
    from crsbench_assets.operations.panels import refused_panels
    from crsbench_assets.worker.pooled_stages import read_panels

    project = open_project(home)
    refused = refused_panels(project)
    rows = [
        {
            "panel_id": panel.panel_id,
            "n_members": len(panel.members),
            "datasets": ", ".join(panel.datasets),
            "protocol_id": panel.conditions.protocol_id,
            "robustness_variant": panel.conditions.robustness_variant,
            "refused_for": ", ".join(refused.get(panel.panel_id, [])) or None,
        }
        for panel in read_panels(project)
    ]
    if as_json:
        say_json(rows)
    elif rows:
        show_rows(list(rows[0]), [list(row.values()) for row in rows])
    else:
        say("No panel is frozen; scores use the provisional cohort. `crsbench panel freeze NAME` makes one.")


def show_panel(home: Path | None, panel_id: str) -> None:
    """See ``crsbench panel show``."""
    from crsbench_assets.operations.panels import find_panel

    console.file.write(find_panel(open_project(home), panel_id).to_json())


def diff_panels(home: Path | None, first: str, second: str) -> None:
    """See ``crsbench panel diff``."""
    from crsbench_assets.operations.panels import find_panel
    from crsbench_assets.scores.panel import diff

    project = open_project(home)
    frame = diff(find_panel(project, first), find_panel(project, second))
    if frame.is_empty():
        say("The panels are the same.")
    else:
        show_rows(frame.columns, frame.rows())


def bench(name: str, **options: Any) -> None:
    """See ``crsbench bench``."""
    import importlib

    import crsbench_assets

    root = Path(crsbench_assets.__file__).parent.parent
    if not (root / "benchmarks" / f"{name}.py").is_file():
        raise CrsbenchError("`crsbench bench` runs in a clone of the repository, where the folder benchmarks/ lies.")
    sys.path.insert(0, str(root))
    raise typer.Exit(importlib.import_module(f"benchmarks.{name}").run(**options))


def _plan_and_reap(project: Project) -> Plan:
    """Return the plan; where something seems to have died, start the reaper first and say what did."""
    from crsbench_assets.operations.unfinished import needs_reaping

    found = plan(project)
    if not needs_reaping(project.layout, found):
        return found
    from crsbench_assets.cli.materialize import workers

    try:
        with workers(project.layout, 1) as pool:
            sentences = pool.ask_one({"do": "reap"})["sentences"]
    except CrsbenchError as error:
        sys.stderr.write(f"crsbench: dead runs could not be reaped: {error}\n")
        return found
    for sentence in sentences:
        sys.stderr.write(f"crsbench: {sentence}\n")
    return plan(project)
