"""The commands of ``crsbench``.

What lives here: names, options and help of the commands; each calls one function. What stays out: what they do. Heavy
libraries are imported inside the commands that need them, so `--help` is quick and `status` knows no Dagster.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crsbench_assets.cli.options import Format, Home, RowFormat, TableFormat

app = typer.Typer(
    name="crsbench",
    help="The reliability benchmark for medical image encoders.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _group(name: str, text: str) -> typer.Typer:
    group = typer.Typer(help=text, no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name=name)
    return group


encoders_app = _group("encoders", "Cards of encoders.")
weights_app = _group("weights", "Weights of encoders.")
datasets_app = _group("datasets", "Cards of datasets.")
panel_app = _group("panel", "Frozen reference panels.")
bench_app = _group("bench", "Our figure and the peer's in one run; needs a clone of the repository.")

Ids = Annotated[list[str] | None, typer.Option(show_default=False)]


@app.command()
def init(home: Home = None) -> None:
    """Make an empty home: settings, folders and the Dagster instance's file, which are yours from then on."""
    from crsbench_assets.cli import commands

    commands.init(home)


@app.command()
def demo(
    home: Home = None,
    panel: Annotated[
        str, typer.Option(help="Which demo panel: demo (drawn images), synthetic15 (no images).")
    ] = "demo",
) -> None:
    """Make a home with a demo panel, compute everything, freeze the panel and show the leaderboard."""
    from crsbench_assets.cli import commands

    commands.demo(home, panel)


@app.command()
def plan(home: Home = None, output: Format = TableFormat.table) -> None:
    """Say what is missing or stale and why, and how much work it is."""
    from crsbench_assets.cli import commands

    commands.show_plan(home, as_json=output is TableFormat.json)


@app.command()
def status(home: Home = None, output: Format = TableFormat.table) -> None:
    """Show the grid of cells."""
    from crsbench_assets.cli import commands

    commands.show_status(home, as_json=output is TableFormat.json)


@app.command()
def materialize(
    home: Home = None,
    encoder: Annotated[list[str] | None, typer.Option("--encoder", "-e", help="Only this encoder; repeatable.")] = None,
    dataset: Annotated[list[str] | None, typer.Option("--dataset", "-d", help="Only this dataset; repeatable.")] = None,
    table: Annotated[list[str] | None, typer.Option("--table", "-t", help="Only up to this table; repeatable.")] = None,
    arm: Annotated[str, typer.Option(help="The arm; this version has the frozen arm, main.")] = "main",
    force: Annotated[bool, typer.Option("--force", help="Also what is current or failed.")] = False,
) -> None:
    """Compute what is missing or stale, then score and publish."""
    from crsbench_assets.cli import commands

    commands.materialize_command(home, encoder or [], dataset or [], table or [], arm, force=force)


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="One SELECT.")],
    home: Home = None,
    live: Annotated[
        bool, typer.Option("--live", help="On the lake as it is now, not on the last publication.")
    ] = False,
    output: Annotated[RowFormat, typer.Option("--format")] = RowFormat.table,
) -> None:
    """Run a SELECT on the published warehouse."""
    from crsbench_assets.cli import commands

    commands.run_sql(home, query, live=live, form=output.value)


@app.command()
def publish(home: Home = None) -> None:
    """Publish a new snapshot of the warehouse."""
    from crsbench_assets.cli import commands

    commands.publish_command(home)


@app.command()
def report(
    home: Home = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write the report of the published warehouse: one HTML file, readable offline."""
    from crsbench_assets.cli import commands

    commands.report_command(home, open_it=open_it)


@app.command()
def export(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE.zip", help="A new file.")],
    home: Home = None,
) -> None:
    """Write the published results into one file: no row of a single image, nothing that names a patient."""
    from crsbench_assets.cli import commands

    commands.export_command(home, bundle)


@app.command()
def reconcile(
    home: Home = None,
    remove_unknown_keys: Annotated[
        bool, typer.Option("--remove-unknown-keys", help="Remove partition keys that no active card describes.")
    ] = False,
) -> None:
    """Tell Dagster what the lake holds, without computing anything; reap dead runs."""
    from crsbench_assets.cli import commands

    commands.reconcile_command(home, remove_unknown_keys=remove_unknown_keys)


@app.command()
def doctor(home: Home = None, output: Format = TableFormat.table) -> None:
    """Look for what may go wrong: disk, device, data, agreements, versions. Exit code 1 on a blocker."""
    from crsbench_assets.cli import commands

    commands.doctor_command(home, as_json=output is TableFormat.json)


@app.command()
def ui(home: Home = None, port: Annotated[int, typer.Option(help="Port on localhost.")] = 3000) -> None:
    """Open the Dagster UI of the home on localhost; Ctrl-C ends it with all its children."""
    from crsbench_assets.cli import commands

    commands.serve_ui(home, port)


@encoders_app.command("list")
def encoders_list(home: Home = None, output: Format = TableFormat.table) -> None:
    """List available encoders and which are active."""
    from crsbench_assets.cli import cards

    cards.list_cards(home, "encoders", as_json=output is TableFormat.json)


@encoders_app.command("show")
def encoders_show(identifier: Annotated[str, typer.Argument(metavar="ID")], home: Home = None) -> None:
    """Show one card."""
    from crsbench_assets.cli import cards

    cards.show_card(home, "encoders", identifier)


@encoders_app.command("add")
def encoders_add(card: Annotated[str, typer.Argument(metavar="ID|FILE")], home: Home = None) -> None:
    """Activate a catalogue card or bring back a retired one by id, or copy a card file into the home."""
    from crsbench_assets.cli import cards

    cards.add_card(home, "encoders", card)


@encoders_app.command("check")
def encoders_check(identifier: Annotated[str, typer.Argument(metavar="ID")], home: Home = None) -> None:
    """Check what an encoder owes: its contract where it reads images, else every vector that its cells need."""
    from crsbench_assets.cli import cards

    cards.check_encoder(home, identifier)


@encoders_app.command("retire")
def encoders_retire(identifier: Annotated[str, typer.Argument(metavar="ID")], home: Home = None) -> None:
    """Keep an encoder's results, but neither compute nor rank it any more."""
    from crsbench_assets.cli import cards

    cards.retire_encoder(home, identifier)


@weights_app.command("status")
def weights_status(home: Home = None, output: Format = TableFormat.table) -> None:
    """Show which weights are on disk, missing, corrupt or gated, and how to get them; asks no network."""
    from crsbench_assets.cli import weights

    weights.show_weights(home, as_json=output is TableFormat.json)


@datasets_app.command("list")
def datasets_list(home: Home = None, output: Format = TableFormat.table) -> None:
    """List available datasets and which are active."""
    from crsbench_assets.cli import cards

    cards.list_cards(home, "datasets", as_json=output is TableFormat.json)


@datasets_app.command("show")
def datasets_show(identifier: Annotated[str, typer.Argument(metavar="ID")], home: Home = None) -> None:
    """Show one card."""
    from crsbench_assets.cli import cards

    cards.show_card(home, "datasets", identifier)


@datasets_app.command("add")
def datasets_add(card: Annotated[str, typer.Argument(metavar="ID|FILE")], home: Home = None) -> None:
    """Activate a catalogue card by id, or copy a card file into the home."""
    from crsbench_assets.cli import cards

    cards.add_card(home, "datasets", card)


@datasets_app.command("check")
def datasets_check(identifier: Annotated[str, typer.Argument(metavar="ID")], home: Home = None) -> None:
    """Read a cohort and decode its files, compare its counts, draw its splits and look for leaks; write nothing."""
    from crsbench_assets.cli import cards

    cards.check_dataset(home, identifier)


@panel_app.command("freeze")
def panel_freeze(name: str, home: Home = None) -> None:
    """Freeze the complete candidates as a reference panel and score everybody against it."""
    from crsbench_assets.cli import commands

    commands.freeze(home, name)


@panel_app.command("list")
def panel_list(home: Home = None, output: Format = TableFormat.table) -> None:
    """List the frozen panels."""
    from crsbench_assets.cli import commands

    commands.list_panels(home, as_json=output is TableFormat.json)


@panel_app.command("show")
def panel_show(panel_id: Annotated[str, typer.Argument(metavar="ID")], home: Home = None) -> None:
    """Show the members, anchors and conditions of a panel."""
    from crsbench_assets.cli import commands

    commands.show_panel(home, panel_id)


@panel_app.command("diff")
def panel_diff(first: str, second: str, home: Home = None) -> None:
    """Show the fields in which two panels differ."""
    from crsbench_assets.cli import commands

    commands.diff_panels(home, first, second)


@bench_app.command("warehouse")
def bench_warehouse(
    seconds: Annotated[float, typer.Option(help="Duration of the lake's part.")] = 60.0,
) -> None:
    """8 writers and 4 readers: the lake against one shared DuckDB file."""
    from crsbench_assets.cli import commands

    commands.bench("warehouse", seconds=seconds)


@bench_app.command("corruptions")
def bench_corruptions() -> None:
    """Fifteen corrupted variants of one decoded image against plain tools."""
    from crsbench_assets.cli import commands

    commands.bench("corruptions")


@bench_app.command("images")
def bench_images() -> None:
    """Decode and hashes of 5,000 small images against a bare decode."""
    from crsbench_assets.cli import commands

    commands.bench("images")


@bench_app.command("metrics")
def bench_metrics() -> None:
    """AUROC, ECE, Brier score and bootstrap against scikit-learn and torchmetrics."""
    from crsbench_assets.cli import commands

    commands.bench("metrics")


@bench_app.command("probe")
def bench_probe(
    quick: Annotated[bool, typer.Option("--quick", help="Without 80,000 images, and one seed of the grids.")] = False,
) -> None:
    """The batched solver against scikit-learn: labels, softmax grids, memory, real vectors."""
    from crsbench_assets.cli import commands

    commands.bench("probe", quick=quick)


@bench_app.command("scale")
def bench_scale(work: Annotated[Path | None, typer.Option(help="Folder for the fabricated homes.")] = None) -> None:
    """Status, sensor tick, publication and scores on 150 and 1,500 fabricated cells; the analyses of 15 encoders."""
    from crsbench_assets.cli import commands

    commands.bench("scale", work=work)


@bench_app.command("validity")
def bench_validity(
    quick: Annotated[bool, typer.Option("--quick", help="4 panels of each kind, to see that it runs.")] = False,
) -> None:
    """Equal encoders stay unseparated, intervals cover what is true, planted gaps are found; a quarter of an hour."""
    from crsbench_assets.cli import commands

    commands.bench("validity", quick=quick)
