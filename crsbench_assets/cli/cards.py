"""Commands about cards.

What lives here: listing, showing, adding, retiring and checking cards. What stays out: what cards are (``config``).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import typer

from crsbench_assets.cli.display import console, say, say_json, show_rows
from crsbench_assets.config.cards import IMAGE_KINDS, PRIMARY, DatasetCard, EncoderCard
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.registry import CATALOG, catalog_ids, home_card_files, read_card
from crsbench_assets.storage.files import replace_bytes, storage_errors
from crsbench_assets.storage.layout import HomeLayout, require_home, resolve_home
from crsbench_assets.storage.project import Project, edit_settings, open_project

Kind = Literal["encoders", "datasets"]

MODELS: dict[str, Any] = {"encoders": EncoderCard, "datasets": DatasetCard}


def list_cards(home: Path | None, kind: Kind, *, as_json: bool) -> None:
    """List the catalogue and, where there is a home, its own cards and which are active."""
    layout = resolve_home(home)
    active: dict[str, Any] = {}
    retired: set[str] = set()
    if layout.settings.is_file():
        registry = open_project(layout.root).registry
        active, retired = dict(getattr(registry, kind)), set(registry.settings.retired)
    cards = {name: read_card(MODELS[kind], CATALOG / kind / f"{name}.yaml") for name in catalog_ids(kind)} | active
    rows = []
    for identifier, card in sorted(cards.items()):
        state = "retired" if identifier in retired else "active" if identifier in active else "available"
        what = card.kind if kind == "encoders" else card.task
        group = card.category if kind == "encoders" else card.modality
        rows.append({"id": identifier, "name": card.name, "kind": what, "group": group, "state": state})
    if as_json:
        say_json(rows)
    else:
        show_rows(("id", "name", "kind", "group", "state"), [list(row.values()) for row in rows])


def show_card(home: Path | None, kind: Kind, identifier: str) -> None:
    """Print the file of a card."""
    path = _find(home, kind, identifier)
    say(f"# {path}")
    console.file.write(path.read_text(encoding="utf-8"))


def add_card(home: Path | None, kind: Kind, card: str) -> None:
    """Activate a catalogue card, or copy a file or a demo panel's card into the home.

    The home is opened with it before it counts.
    """
    layout = resolve_home(home)
    require_home(layout)
    own = {path.stem for path in home_card_files(layout.root, kind)}
    if card in own or card in catalog_ids(kind):
        _activate(layout, kind, card, is_listed=card not in own)
        say(f"{card} is active.")
        return
    of_panels = {path.stem: path for path in sorted((CATALOG / "panels").glob(f"*/{kind}/*.yaml"))}
    source = of_panels.get(card, Path(card))
    if not source.is_file():
        known = ", ".join((*catalog_ids(kind), *of_panels))
        raise ConfigError(f"{card!r} is neither a card that comes with crsbench ({known}) nor a file.")
    identifier = read_card(MODELS[kind], source).id
    target = layout.root / kind / f"{identifier}.yaml"  # a home reads this suffix only
    is_new = not target.exists()
    if not is_new and target.read_bytes() != source.read_bytes():
        raise ConfigError(
            f"{target} exists with other content: an id keeps its content. Give the new card another id and file name."
        )
    if is_new:
        with storage_errors(target):
            shutil.copyfile(source, target)
    try:
        _activate(layout, kind, identifier, is_listed=False)
    except ConfigError:
        if is_new:
            target.unlink()
        raise
    say(f"{identifier} is active: {target}. Relative paths in it start at {target.parent}.")


def _activate(layout: HomeLayout, kind: Kind, identifier: str, *, is_listed: bool) -> None:
    """List a catalogue card and bring a retired encoder back; a home that refuses keeps the settings it had."""
    before = layout.settings.read_bytes()
    if is_listed:
        edit_settings(layout, kind, add=identifier)
    if kind == "encoders":
        edit_settings(layout, "retired", remove=identifier)
    try:
        open_project(layout.root)
    except ConfigError:
        replace_bytes(layout.settings, before)
        raise


def retire_encoder(home: Path | None, identifier: str) -> None:
    """Move an encoder to the retired ones."""
    project = open_project(home)
    project.registry.encoder(identifier)
    edit_settings(project.layout, "retired", add=identifier)
    say(f"{identifier} is retired: its results stay, and `crsbench encoders add {identifier}` brings it back.")


def check_encoder(home: Path | None, identifier: str) -> None:
    """Look at what an encoder owes: the contract of one that reads images, else every vector that its cells need.

    No result is written; the contract records the encoder's golden vector, and downloads weights that are not there.
    """
    from crsbench_assets.planning.stages import stage_named
    from crsbench_assets.worker.cell_stages import extract_cell
    from crsbench_assets.worker.context import StageContext

    project = open_project(home)
    card = project.registry.encoder(identifier)
    if card.kind in IMAGE_KINDS:
        from crsbench_assets.encoders.contract import contract

        checks = contract(card, project.registry.settings.device)
        show_rows(("check", "verdict", "found"), [(check.name, check.verdict, check.found) for check in checks])
        if any(check.verdict == "failed" for check in checks):
            raise typer.Exit(1)
        return
    has_failed = False
    for cell in project.grid:
        if cell.encoder_id != identifier:
            continue
        if not cell.is_applicable:
            say(f"{cell.dataset_id}: not applicable ({cell.reason})")
            continue
        context = StageContext(project, stage_named("extract"), (identifier, cell.dataset_id), inputs_hash="check")
        index, split = _index_and_split(project, cell.dataset_id)
        output = extract_cell(context, index["images"], split["splits"])
        has_failed |= output.reason is not None
        say(f"{cell.dataset_id}: {output.detail or _coverage(project, cell.dataset_id, output.frames)}")
    for dataset_id in sorted(set(card.vectors) - set(project.registry.datasets)):
        active = ", ".join(project.registry.datasets) or "none"
        say(f"{dataset_id}: the card names vectors for it, and no such dataset is active (active: {active})")
        has_failed = True
    if has_failed:
        raise typer.Exit(1)


def _coverage(project: Project, dataset_id: str, frames: dict[str, Any]) -> str:
    """Return how many vectors there are, and which conditions have none."""
    registry = project.registry
    opened = registry.datasets[dataset_id].open_sources(registry.settings.agreements)
    shift_id = next((source_id for source_id in opened if source_id != PRIMARY), None)
    wanted = registry.protocol.conditions(shift_id)
    vectors = [frames["embeddings"], frames["shift_embeddings"]]
    present = {name for frame in vectors for name in frame.get_column("condition_id").unique()}
    absent = [name for name in wanted if name not in present]
    text = f"{sum(frame.height for frame in vectors):,} vectors under {len(present)} of {len(wanted)} conditions"
    if not absent:
        return f"ok, {text}"
    return f"{text}; none for {', '.join(absent)}: their records are NULL, and without them there is no score"


def check_dataset(home: Path | None, identifier: str) -> None:
    """Read a cohort, decode its files and draw its splits; list all that is wrong in one run. Writes nothing.

    Where its tables have faults, its files are looked at and counted all the same, and no splits are drawn.
    """
    from crsbench_assets.data.cohort import closed_in_words, readable_cohorts
    from crsbench_assets.data.duplicates import components_in_words, oversized_components
    from crsbench_assets.data.splits import EXCLUDED, TRAIN
    from crsbench_assets.data.statistics import unexpected_counts
    from crsbench_assets.planning.stages import stage_named
    from crsbench_assets.worker.cohort_stages import look_at, notes_of, require_usable, split_cohort
    from crsbench_assets.worker.context import StageContext

    project = open_project(home)
    card, settings = project.registry.dataset(identifier), project.registry.settings
    cohorts, faults = readable_cohorts(card, settings.label_policy, settings.agreements)
    if not cohorts:
        raise ConfigError(" ".join(faults))
    for source_id in card.sources.keys() - card.open_sources(settings.agreements).keys():
        say(f"not read: shift target {source_id}: it {closed_in_words(card, source_id)}")
    for source_id, note in notes_of(cohorts):
        say(f"note: {source_id}: {note}")
    context = StageContext(project, stage_named("index"), (identifier,), inputs_hash="check")
    images, quarantine = look_at(context, cohorts)
    for row in quarantine.sort("source_id", "image_id").iter_rows(named=True):
        of_target = "" if row["source_id"] == PRIMARY else f" of {row['source_id']}"
        say(f"left out: {row['image_id']}{of_target}: {row['reason']} ({row['detail']})")
    for count in unexpected_counts(card, images, quarantine):
        say(f"count: {count}")
    components = components_in_words(oversized_components(images))
    for component in components:
        say(f"component: {component}")
    if faults:
        raise ConfigError(" ".join(faults))
    require_usable(card, images, cohorts, quarantine)
    split = split_cohort(context, images, quarantine, cohorts).frames
    splits, violations = split["splits"], split["leakage_violations"]
    counts = splits.group_by("seed", "split").len("n_images").sort("seed", "split")
    show_rows(counts.columns, counts.rows(), title=f"{identifier}: images per seed and split")
    unusable = quarantine.filter(quarantine["source_id"] == PRIMARY)["image_id"].to_list()
    not_split = splits.filter(splits["reason"].is_not_null()).unique(["image_id"]).sort("image_id")
    left_out = not_split.filter(~not_split["image_id"].is_in(unusable))
    n_beyond_cap = (left_out["reason"] == EXCLUDED).sum()
    if n_beyond_cap:
        say(f"in no split: {n_beyond_cap:,} image(s) beyond the cap of {settings.caps[identifier]:,}")
    for row in left_out.filter(left_out["reason"] != EXCLUDED).iter_rows(named=True):
        say(f"in no split: {row['image_id']}: {row['reason']}")
    for row in violations.iter_rows(named=True):
        say(
            f"leak: seed {row['seed']}, {row['split_a']} and {row['split_b']} share a {row['shares']} (group "
            f"{row['group_index']}): {row['image_id_a']} and {row['image_id_b']}"
        )
    say(f"{quarantine.height + left_out.height} image(s) left out, {violations.height} leak(s).")
    has_train = (splits["split"] == TRAIN).any()
    if not has_train:
        say("No image is left to train on: the test split holds all of them, so every record would be NULL.")
    if violations.height or components or not has_train:
        raise typer.Exit(1)


def _index_and_split(project: Project, dataset_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tables of a dataset's two stages, computed here and now."""
    from crsbench_assets.data.cohort import read_cohorts
    from crsbench_assets.planning.stages import stage_named
    from crsbench_assets.worker.cohort_stages import index, split_cohort
    from crsbench_assets.worker.context import StageContext

    card = project.registry.dataset(dataset_id)
    context = StageContext(project, stage_named("index"), (dataset_id,), inputs_hash="check")
    indexed = index(context).frames
    cohorts = read_cohorts(card, project.registry.settings.label_policy, project.registry.settings.agreements)
    split = split_cohort(context, indexed["images"], indexed["quarantine"], cohorts)
    return indexed, split.frames


def _find(home: Path | None, kind: Kind, identifier: str) -> Path:
    layout = resolve_home(home)
    found = {path.stem: path for path in home_card_files(layout.root, kind)}
    found |= {name: CATALOG / kind / f"{name}.yaml" for name in catalog_ids(kind)}
    if identifier not in found:
        raise ConfigError(f"There is no card {identifier!r} among the {kind}; known: {', '.join(sorted(found))}.")
    return found[identifier]
