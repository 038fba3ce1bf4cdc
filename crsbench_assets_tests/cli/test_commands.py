"""The commands on a tiny home: what they print, and that a user's mistake is one sentence and exit code 1."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import typer.main

from crsbench_assets.cli import commands
from crsbench_assets.cli.app import app
from crsbench_assets.cli.display import show_rows
from crsbench_assets.config.registry import CATALOG
from crsbench_assets.config.settings import edit_list, read_settings
from crsbench_assets.operations.homes import init_home
from crsbench_assets.operations.panels import freeze_panel
from crsbench_assets.planning.plan import plan
from crsbench_assets.planning.stages import stage_named
from crsbench_assets.storage.files import read_json, replace_json
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.leases import ATTEMPT_FILE, Attempt
from crsbench_assets.storage.processes import this_process
from crsbench_assets.storage.project import open_project
from crsbench_assets.storage.warehouse import publish
from crsbench_assets_tests.cli.conftest import Command, Done
from crsbench_assets_tests.fixtures import (
    DATASET,
    PROTOCOL,
    Disk,
    can_mount,
    compute,
    dataset_card,
    encoder_card,
    file_bytes,
    vectors,
    write_card,
    write_protocol,
)

Arguments = tuple[str, ...]


def sentence(done: Done) -> str:
    """Return the one line that a refused command says."""
    assert done.code == 1
    assert done.err.startswith("crsbench: ") and done.err.endswith("\n")
    assert done.err.count("\n") == 1, done.err
    assert "Traceback" not in done.err + done.out
    return done.err.removeprefix("crsbench: ").strip()


def leaves(group: typer.Typer) -> list[Arguments]:
    """Return every command by the words that name it."""

    def walk(command: object, words: Arguments) -> list[Arguments]:
        below = getattr(command, "commands", None)
        if below is None:
            return [words]
        return [words, *(found for name, inner in below.items() for found in walk(inner, (*words, name)))]

    return walk(typer.main.get_command(group), ())


# --- bad input, a home at a time --------------------------------------------------------------------------------------


def unknown_field(home: HomeLayout) -> str:
    write_card(home.root, "encoders", encoder_card("alpha", vektors={}))
    return r"alpha\.yaml: unknown field 'vektors' \(known fields: "


def bad_id(home: HomeLayout) -> str:
    write_card(home.root, "encoders", encoder_card("Gamma"))
    return r"Gamma\.yaml: id: an id starts with a lower-case letter .*, found 'Gamma'"


def duplicate_id(home: HomeLayout) -> str:
    shutil.copyfile(home.root / "encoders" / "alpha.yaml", home.root / "encoders" / "gamma.yaml")
    return r"gamma\.yaml holds the id 'alpha': a card's file is named after its id"


def id_of_the_catalogue(home: HomeLayout) -> str:
    shutil.copyfile(CATALOG / "encoders" / "resnet50.yaml", home.root / "encoders" / "resnet50.yaml")
    return r"reuses the id 'resnet50' of a catalogue card.*Give your card another id and file name"


def key_written_twice(home: HomeLayout) -> str:
    path = home.root / "encoders" / "alpha.yaml"
    path.write_text(path.read_text(encoding="utf-8") + "id: alpha\n", encoding="utf-8")
    return r"alpha\.yaml is not valid YAML: the key 'id' is written twice"


def reused_id(home: HomeLayout) -> str:
    write_card(home.root, "encoders", encoder_card("alpha", role="control"))
    return r"The card of the 'encoder alpha' now describes other content .* Give the new content a new id"


def changed_protocol(home: HomeLayout) -> str:
    write_protocol(home.root, probe=PROTOCOL["probe"] | {"c": 2.0})
    return r"asks for another protocol than the 'tiny-1' .* Put the protocol back, or make a new home"


def changed_label_policy(home: HomeLayout) -> str:
    text = home.settings.read_text(encoding="utf-8")
    home.settings.write_text(text.replace("u_zeros", "u_ones"), encoding="utf-8")
    return r"asks for another label_policy"


def newer_lake(home: HomeLayout) -> str:
    replace_json(home.layout_file, read_json(home.layout_file) | {"layout": 99})
    return r"has layout 99, this crsbench .* knows up to \d+: upgrade crsbench"


def unknown_listed_id(home: HomeLayout) -> str:
    edit_list(home.settings, "encoders", add="nobody")
    return r"encoders lists 'nobody', which is neither a catalogue card"


def unknown_setting(home: HomeLayout) -> str:
    home.settings.write_text(home.settings.read_text(encoding="utf-8") + "colour: red\n", encoding="utf-8")
    return r"crsbench\.yaml: unknown field 'colour'"


def settings_no_yaml(home: HomeLayout) -> str:
    home.settings.write_text("encoders: [\n", encoding="utf-8")
    return r"crsbench\.yaml is not valid YAML"


BAD_HOMES = (
    unknown_field,
    bad_id,
    duplicate_id,
    id_of_the_catalogue,
    key_written_twice,
    reused_id,
    changed_protocol,
    changed_label_policy,
    newer_lake,
    unknown_listed_id,
    unknown_setting,
    settings_no_yaml,
)


@pytest.mark.parametrize("spoil", BAD_HOMES, ids=lambda spoil: spoil.__name__)
def test_bad_input_is_one_sentence_and_nothing_is_lost(
    crsbench: Command, computed_home: HomeLayout, spoil: Callable[[HomeLayout], str]
) -> None:
    expected = spoil(computed_home)
    lake = file_bytes(computed_home.lake)
    for command in (("status",), ("plan",), ("materialize",), ("sql", "SELECT 1"), ("publish",), ("ui",)):
        said = sentence(crsbench(*command, home=computed_home))
        assert re.search(expected, said), said
    done = crsbench("doctor", "--format", "json", home=computed_home)
    assert done.code == 1 and "Traceback" not in done.err
    assert [f["check"] for f in json.loads(done.out) if f["verdict"] == "blocker"] == ["home"]
    assert file_bytes(computed_home.lake) == lake


@pytest.mark.parametrize(
    "arguments",
    [("status",), ("plan",), ("materialize",), ("sql", "SELECT 1"), ("encoders", "retire", "x"), ("panel", "list")],
    ids=" ".join,
)
def test_without_a_home(crsbench: Command, tmp_path: Path, arguments: Arguments) -> None:
    nowhere = HomeLayout(tmp_path / "nowhere")
    said = sentence(crsbench(*arguments, home=nowhere))
    assert f"There is no crsbench home at {nowhere.root}: make one with `crsbench init --home" in said
    assert not nowhere.root.exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("materialize", "-e", "nobody"), r"No active card describes the encoder 'nobody': add encoders/nobody\.yaml"),
        (("materialize", "-d", "nothing"), r"No active card describes the dataset 'nothing'"),
        (("materialize", "-t", "nonsense"), r"No stage computes a table 'nonsense'; `crsbench sql 'SHOW TABLES'`"),
        (("materialize", "-t", "crs_score"), r"No stage computes a table 'crs_score'; did you mean crs_scores"),
        (("materialize", "--arm", "lora"), r"There is no arm 'lora' in this version; known: main"),
        (("sql", "DROP TABLE run_records"), r"Expected exactly one SELECT .*, found DROP"),
        (("sql", "SELECT 1; SELECT 2"), r"Expected exactly one SELECT"),
        (("sql", ""), r"Expected exactly one SELECT"),
        (("sql", "SELEKT 1"), r"The query cannot be parsed"),
        (("sql", "SELECT * FROM nonsense"), r"The query failed: .*nonsense"),
        (("sql", "SELECT * FROM read_csv('/etc/passwd')"), r"The query failed"),
        (("encoders", "show", "nobody"), r"There is no card 'nobody' among the encoders; known: alpha, beta, "),
        (("datasets", "show", "nothing"), r"There is no card 'nothing' among the datasets; known: aptos2019, "),
        (
            ("encoders", "add", "nobody"),
            r"'nobody' is neither a card that comes with crsbench \(biomedclip, .*lite0, .*\) nor",
        ),
        (("encoders", "retire", "nobody"), r"No active card describes the encoder 'nobody'"),
        (("encoders", "check", "nobody"), r"No active card describes the encoder 'nobody'"),
        (("datasets", "check", "nothing"), r"No active card describes the dataset 'nothing'"),
        (("panel", "show", "p"), r"No panel 'p'; frozen panels: none; freeze one with `crsbench panel freeze NAME`"),
        (("panel", "diff", "p", "q"), r"No panel 'p'"),
        (("panel", "freeze", "Best"), r"panel id 'Best' is not valid: an id starts with a lower-case letter"),
        (("panel", "freeze", "provisional"), r"A panel cannot be named 'provisional'"),
        (("panel", "freeze", "p" * 40), r"A panel cannot be named .*: expected at most 35 characters"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_mistake_is_one_sentence(
    crsbench: Command, computed_home: HomeLayout, arguments: Arguments, expected: str
) -> None:
    lake = file_bytes(computed_home.root)
    said = sentence(crsbench(*arguments, home=computed_home))
    assert re.search(expected, said), said
    assert file_bytes(computed_home.root) == lake


def test_a_panel_without_a_complete_candidate(crsbench: Command, tiny_home: HomeLayout) -> None:
    said = sentence(crsbench("panel", "freeze", "first", home=tiny_home))
    assert "No candidate is complete" in said and "incomplete: alpha, beta" in said


def test_an_unknown_demo_panel_makes_no_home(crsbench: Command, tmp_path: Path) -> None:
    done = crsbench("demo", "--panel", "nothing", home=HomeLayout(tmp_path / "home"))
    assert "There is no demo panel 'nothing'; known: " in sentence(done)
    assert not (tmp_path / "home").exists()


def test_a_demo_among_other_cards_is_refused(crsbench: Command, tiny_home: HomeLayout) -> None:
    before = file_bytes(tiny_home.root)
    said = sentence(crsbench("demo", home=tiny_home))
    assert said == (
        f"{tiny_home.root} has datasets that are not the demo panel's (tiny): give the demo a home of its own with "
        "--home."
    )
    assert file_bytes(tiny_home.root) == before


def test_a_failed_partition_is_the_end_of_demo_and_freeze(
    crsbench: Command, computed_home: HomeLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_materialize", lambda *_: True)
    done = crsbench("panel", "freeze", "base", home=computed_home)
    assert done.code == 1 and "Leaderboard against panel" in done.out
    monkeypatch.setattr(commands, "_freeze", lambda *_: False)  # nothing was frozen on the way either
    assert crsbench("demo", "--home", tmp_path / "demo").code == 1


def test_a_folder_of_somebody_else_is_no_home(crsbench: Command, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("ten years", encoding="utf-8")
    assert "is not empty and no crsbench home" in sentence(crsbench("init", home=HomeLayout(tmp_path)))


def test_a_wrong_option_is_the_usage(crsbench: Command) -> None:
    done = crsbench("status", "--colour", "red")
    assert done.code == 2 and "No such option" in done.err and "Traceback" not in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("materialize", "--force"),
        ("publish",),
        ("panel", "freeze", "first"),
        ("encoders", "add", "resnet50"),
        ("encoders", "retire", "alpha"),
        ("ui",),
        ("reconcile",),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("state", ["read-only", "full"])
def test_a_disk_that_refuses_is_one_sentence(crsbench: Command, disk: Disk, arguments: Arguments, state: str) -> None:
    if not can_mount():
        pytest.skip("needs a disk of its own: run as root on Linux")
    {"read-only": disk.make_read_only, "full": disk.fill}[state]()
    before = file_bytes(disk.layout.lake)
    expected = "cannot be written: Read-only file system" if state == "read-only" else "The disk is full"
    assert expected in sentence(crsbench(*arguments, home=disk.layout))
    assert file_bytes(disk.layout.lake) == before
    for looking in (("status",), ("plan",), ("panel", "list"), ("encoders", "list")):
        assert (crsbench(*looking, home=disk.layout)).code == 0
    rows = crsbench("sql", "SELECT count(*) AS n FROM run_records", "--format", "csv", home=disk.layout)
    assert rows.out.split() == ["n", "24"]


def test_an_executor_that_is_none(crsbench: Command, computed_home: HomeLayout) -> None:
    settings = computed_home.settings.read_text(encoding="utf-8")
    computed_home.settings.write_text(f"{settings}executor: nonsense\n", encoding="utf-8")
    said = sentence(crsbench("materialize", "--force", home=computed_home))
    assert "crsbench.yaml: executor 'nonsense' cannot be loaded" in said


def test_the_installed_command_ends_with_the_same_code(tmp_path: Path) -> None:
    done = subprocess.run(
        [Path(sys.executable).parent / "crsbench", "status", "--home", tmp_path / "nowhere"],
        capture_output=True,
        text=True,
        check=False,
    )
    said = sentence(Done(done.returncode, done.stdout, done.stderr))
    assert said.startswith("There is no crsbench home at ")


# --- what the commands say --------------------------------------------------------------------------------------------


def test_help_is_quick() -> None:
    # the interfaces page promises half a second; the best of five leaves out what else the machine does
    command = [sys.executable, "-m", "crsbench_assets.cli", "--help"]
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - started)
        assert "Usage: " in done.stdout
    assert min(seconds) < 0.5


@pytest.mark.parametrize("words", leaves(app), ids=lambda words: " ".join(words) or "crsbench")
def test_every_command_explains_itself(crsbench: Command, words: Arguments) -> None:
    done = crsbench(*words, "--help")
    assert done.code == 0 and "Usage: " in done.out
    lines = [line.strip() for line in done.out.splitlines() if line.strip()]
    assert not lines[1].startswith("--"), "a sentence stands below the usage"


@pytest.mark.parametrize("command", ["status", "plan"])
def test_looking_imports_nothing_heavy(computed_once: Path, command: str) -> None:
    code = (
        "import sys\n"
        "from crsbench_assets.cli.app import app\n"
        f"app([{command!r}, '--home', {str(computed_once)!r}], standalone_mode=False)\n"
        "heavy = {'dagster', 'torch', 'polars', 'pyarrow', 'duckdb', 'numpy', 'scipy', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(f'imported: {sorted(heavy)}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "alpha" in done.stdout or command == "plan"


def test_init_makes_a_home_once(crsbench: Command, tmp_path: Path) -> None:
    home = HomeLayout(tmp_path / "home")
    assert crsbench("init", home=home).out.startswith(f"Made a crsbench home at {home.root}.")
    before = file_bytes(home.root)
    again = crsbench("init", home=home)
    assert again.code == 0 and again.out == f"There is already a crsbench home at {home.root}.\n"
    assert file_bytes(home.root) == before


def test_an_empty_home_has_a_status(crsbench: Command, tmp_path: Path) -> None:
    home = HomeLayout(tmp_path / "home")
    init_home(home)
    done = crsbench("status", home=home)
    assert done.code == 0 and "no cells: add encoders and datasets" in done.out
    assert json.loads(crsbench("status", "--format", "json", home=home).out)["cells"] == []
    assert crsbench("plan", home=home).code == 0


def test_status_shows_the_grid(crsbench: Command, computed_home: HomeLayout) -> None:
    vectors("alpha")[1:].write_parquet(computed_home.root / "files" / "alpha.parquet")
    compute(open_project(computed_home.root))
    done = crsbench("status", home=computed_home)
    assert done.code == 0
    assert "1 failed, 1 ok" in done.out
    assert "failed: alpha x tiny: extract: incomplete_support" in done.out
    value = json.loads(crsbench("status", "--format", "json", home=computed_home).out)
    assert {cell["encoder_id"]: cell["status"] for cell in value["cells"]} == {"alpha": "failed", "beta": "ok"}


def test_plan_says_what_and_why(crsbench: Command, computed_home: HomeLayout) -> None:
    assert "Nothing is missing or stale." in crsbench("plan", home=computed_home).out
    (computed_home.root / "files" / "alpha.parquet").unlink()
    assert "cannot be computed: vectors of encoder 'alpha'" in crsbench("plan", home=computed_home).out


def test_plan_of_a_new_home(crsbench: Command, tiny_home: HomeLayout) -> None:
    done = crsbench("plan", home=tiny_home)
    assert "2 of 2 cells are applicable: 8 probe fits, 24 run records, 12 aggregate rows." in done.out
    assert "never computed" in done.out
    assert "unknown until the first cell is done" in done.out
    assert json.loads(crsbench("plan", "--format", "json", home=tiny_home).out)["due"]["n_fits"] == 8


def test_a_home_that_cannot_be_reaped_is_still_shown(crsbench: Command, computed_home: HomeLayout) -> None:
    # somebody died, and the folder of the logs cannot be made: looking at the home works all the same
    project = open_project(computed_home.root)
    me = this_process()
    dead = Attempt("t", "running", "probe", None, me.host, me.pid, me.started - 3600, 0.0)
    folder = project.lake.folder(stage_named("probe").lease_table, ("alpha", DATASET))
    replace_json(folder / ATTEMPT_FILE, asdict(dead))
    (computed_home.dagster / "logs").write_text("a file", encoding="utf-8")
    done = crsbench("status", home=computed_home)
    assert done.code == 0 and "alpha" in done.out
    assert done.err.startswith("crsbench: dead runs could not be reaped: ") and done.err.count("\n") == 1


def test_nothing_to_do(crsbench: Command, computed_home: HomeLayout) -> None:
    project = open_project(computed_home.root)
    publish(project, plan(project).cells)
    done = crsbench("materialize", home=computed_home)
    assert (done.code, done.err) == (0, "")
    assert done.out == "Nothing to do: 41 partitions are current.\n"


@pytest.fixture
def published_home(computed_home: HomeLayout) -> HomeLayout:
    project = open_project(computed_home.root)
    publish(project, plan(project).cells)
    return computed_home


QUERY = "SELECT encoder_id, condition_id, seed, macro_auroc, qwk FROM run_records ORDER BY ALL LIMIT 2"


def test_sql_formats(crsbench: Command, published_home: HomeLayout) -> None:
    as_json = crsbench("sql", QUERY, "--format", "json", home=published_home)
    rows = json.loads(as_json.out)
    assert (as_json.code, as_json.err, len(rows)) == (0, "", 2)
    assert list(rows[0]) == ["encoder_id", "condition_id", "seed", "macro_auroc", "qwk"]
    assert rows[0]["qwk"] is None and rows[0]["encoder_id"] == "alpha"
    as_csv = crsbench("sql", QUERY, "--format", "csv", home=published_home)
    parsed = list(csv.DictReader(io.StringIO(as_csv.out)))
    assert [(row["encoder_id"], float(row["macro_auroc"]), row["qwk"]) for row in parsed] == [
        (row["encoder_id"], row["macro_auroc"], "") for row in rows
    ]
    as_table = crsbench("sql", QUERY, home=published_home)
    assert f"{rows[0]['macro_auroc']:.4f}" in as_table.out and "macro_auroc" in as_table.out


def test_sql_of_no_rows(crsbench: Command, published_home: HomeLayout) -> None:
    query = "SELECT encoder_id FROM run_records WHERE seed = 99"
    assert json.loads(crsbench("sql", query, "--format", "json", home=published_home).out) == []
    assert crsbench("sql", query, "--format", "csv", home=published_home).out.strip() == "encoder_id"
    assert "encoder_id" in crsbench("sql", query, home=published_home).out


def test_sql_keeps_columns_of_one_name(crsbench: Command, published_home: HomeLayout) -> None:
    query = "SELECT 1 AS n, 2 AS n"
    assert crsbench("sql", query, "--format", "csv", home=published_home).out.split() == ["n,n", "1,2"]
    assert re.search(r"1\W+2", crsbench("sql", query, home=published_home).out)
    said = sentence(crsbench("sql", query, "--format", "json", home=published_home))
    assert said == "JSON cannot hold two columns of one name (n): rename one with AS, or use --format csv."


def test_sql_says_when_the_lake_answers(crsbench: Command, computed_home: HomeLayout) -> None:
    query = "SELECT count(*) AS n FROM run_records"
    before = crsbench("sql", query, "--format", "json", home=computed_home)
    assert (before.code, json.loads(before.out)) == (0, [{"n": 24}])
    assert before.err.startswith("crsbench: ") and "The lake answers; `crsbench publish`" in before.err
    live = crsbench("sql", query, "--live", "--format", "json", home=computed_home)
    assert (live.err, json.loads(live.out)) == ("", [{"n": 24}])


def test_lists(crsbench: Command, computed_home: HomeLayout) -> None:
    edit_list(computed_home.settings, "retired", add="beta")
    rows = json.loads(crsbench("encoders", "list", "--format", "json", home=computed_home).out)
    states = {row["id"]: row["state"] for row in rows}
    assert len(states) == 17
    assert (states["alpha"], states["beta"], states["resnet50"]) == ("active", "retired", "available")
    rows = json.loads(crsbench("datasets", "list", "--format", "json", home=computed_home).out)
    assert {row["id"]: row["state"] for row in rows}[DATASET] == "active"
    assert "resnet50" in crsbench("encoders", "list", home=computed_home).out


def test_lists_need_no_home(crsbench: Command, tmp_path: Path) -> None:
    rows = json.loads(crsbench("datasets", "list", "--format", "json", home=HomeLayout(tmp_path / "none")).out)
    assert [row["id"] for row in rows] == ["aptos2019", "chexpert", "isic2019"]


def test_show_prints_the_file(crsbench: Command, tiny_home: HomeLayout) -> None:
    path = tiny_home.root / "encoders" / "alpha.yaml"
    done = crsbench("encoders", "show", "alpha", home=tiny_home)
    assert done.out == f"# {path}\n{path.read_text(encoding='utf-8')}"
    assert "id: isic2019" in crsbench("datasets", "show", "isic2019", home=tiny_home).out


def test_add_by_id_and_retire_and_back(crsbench: Command, tiny_home: HomeLayout) -> None:
    text = tiny_home.settings.read_text(encoding="utf-8")
    assert crsbench("encoders", "add", "resnet50", home=tiny_home).out == "resnet50 is active.\n"
    assert read_settings(tiny_home.settings).encoders == ("resnet50",)
    assert "# nothing of the catalogue" in tiny_home.settings.read_text(encoding="utf-8")
    assert "is retired: its results stay" in crsbench("encoders", "retire", "resnet50", home=tiny_home).out
    assert read_settings(tiny_home.settings).retired == ("resnet50",)
    crsbench("encoders", "add", "resnet50", home=tiny_home)
    assert read_settings(tiny_home.settings).retired == ()
    assert text.splitlines()[0] == tiny_home.settings.read_text(encoding="utf-8").splitlines()[0]


def test_a_retired_card_of_the_home_comes_back(crsbench: Command, tiny_home: HomeLayout, tmp_path: Path) -> None:
    crsbench("encoders", "retire", "alpha", home=tiny_home)
    assert crsbench("encoders", "add", "alpha", home=tiny_home).out == "alpha is active.\n"
    settings = read_settings(tiny_home.settings)
    assert (settings.retired, settings.encoders) == ((), ())
    crsbench("encoders", "retire", "alpha", home=tiny_home)
    card = tiny_home.root / "encoders" / "alpha.yaml"
    copied = Path(shutil.copy(card, tmp_path / "alpha.yaml"))
    assert crsbench("encoders", "add", copied, home=tiny_home).out.startswith("alpha is active: ")
    assert read_settings(tiny_home.settings).retired == ()


def test_add_an_encoder_of_a_demo_panel(crsbench: Command, tiny_home: HomeLayout) -> None:
    done = crsbench("encoders", "add", "efficientnet_lite0", home=tiny_home)
    assert done.code == 0 and done.out.startswith("efficientnet_lite0 is active: "), done.out + done.err
    copied = tiny_home.root / "encoders" / "efficientnet_lite0.yaml"
    assert copied.read_bytes() == (CATALOG / "panels" / "demo" / "encoders" / copied.name).read_bytes()


def test_a_demo_without_its_packages_names_them_and_makes_no_home(
    crsbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in ("torch", "timm") else object())
    said = sentence(crsbench("demo", home=HomeLayout(tmp_path / "home")))
    assert "not installed (timm, torch)" in said and "pip install 'crsbench[encoders,demo]'" in said
    assert not (tmp_path / "home").exists()


def test_add_a_file(crsbench: Command, tiny_home: HomeLayout, tmp_path: Path) -> None:
    (tmp_path / "encoders").mkdir()
    path = write_card(tmp_path, "encoders", encoder_card("gamma"))
    done = crsbench("encoders", "add", path, home=tiny_home)
    assert (done.code, done.out.startswith("gamma is active: ")) == (0, True)
    assert list(open_project(tiny_home.root).registry.encoders) == ["alpha", "beta", "gamma"]
    other = write_card(tmp_path, "encoders", encoder_card("gamma", name="Another"))
    said = sentence(crsbench("encoders", "add", other, home=tiny_home))
    assert "gamma.yaml exists with other content: an id keeps its content" in said


def test_a_file_of_the_other_suffix_is_active_too(crsbench: Command, tiny_home: HomeLayout, tmp_path: Path) -> None:
    (tmp_path / "encoders").mkdir()
    path = write_card(tmp_path, "encoders", encoder_card("gamma"))
    assert crsbench("encoders", "add", path.rename(path.with_suffix(".yml")), home=tiny_home).code == 0
    assert "gamma" in open_project(tiny_home.root).registry.encoders


def test_a_card_that_the_home_refuses_is_not_added(
    crsbench: Command, computed_home: HomeLayout, tmp_path: Path
) -> None:
    (tmp_path / "encoders").mkdir()
    before = file_bytes(computed_home.root)
    taken = write_card(tmp_path, "encoders", encoder_card("resnet50"))
    assert "of a catalogue card" in sentence(crsbench("encoders", "add", taken, home=computed_home))
    bad = write_card(tmp_path, "encoders", encoder_card("gamma", vektors={}))
    assert "unknown field 'vektors'" in sentence(crsbench("encoders", "add", bad, home=computed_home))
    wrong = write_card(tmp_path, "encoders", dataset_card(id="gamma"))
    assert "unknown field" in sentence(crsbench("encoders", "add", wrong, home=computed_home))
    assert file_bytes(computed_home.root) == before


def test_adding_to_a_home_that_is_broken_elsewhere_changes_nothing(
    crsbench: Command, computed_home: HomeLayout, tmp_path: Path
) -> None:
    copy = Path(shutil.copy(computed_home.root / "encoders" / "alpha.yaml", tmp_path))
    write_card(computed_home.root, "encoders", encoder_card("beta", vektors={}))
    before = file_bytes(computed_home.root)
    for card in (copy, "resnet50"):
        assert "unknown field 'vektors'" in sentence(crsbench("encoders", "add", card, home=computed_home))
        assert file_bytes(computed_home.root) == before


def test_check_an_encoder(crsbench: Command, computed_home: HomeLayout) -> None:
    done = crsbench("encoders", "check", "alpha", home=computed_home)
    # 120 clean, and 30 test images under each of 2 corruptions
    assert (done.code, done.out) == (0, "tiny: ok, 180 vectors under 3 of 3 conditions\n")
    vectors("alpha")[1:].write_parquet(computed_home.root / "files" / "alpha.parquet")
    done = crsbench("encoders", "check", "alpha", home=computed_home)
    assert done.code == 1 and "1 vector(s) of the support are missing" in done.out and "'image000'" in done.out


def test_check_a_dataset(crsbench: Command, tiny_home: HomeLayout) -> None:
    done = crsbench("datasets", "check", DATASET, home=tiny_home)
    assert done.code == 0 and done.out.endswith("0 image(s) left out, 0 leak(s).\n")
    path = tiny_home.root / "files" / "labels.csv"
    path.write_text(path.read_text(encoding="utf-8").replace("image007,negative", "image007,"), encoding="utf-8")
    done = crsbench("datasets", "check", DATASET, home=tiny_home)
    assert "left out: image007: blank_class" in done.out and "1 image(s) left out" in done.out
    settings = tiny_home.settings.read_text(encoding="utf-8")
    tiny_home.settings.write_text(f"{settings}\ncaps: {{{DATASET}: 100}}\n", encoding="utf-8")
    done = crsbench("datasets", "check", DATASET, home=tiny_home)
    assert "in no split: 19 image(s) beyond the cap of 100" in done.out and done.out.count("in no split") == 1
    path.write_text(path.read_text(encoding="utf-8").replace("image008,", "image009,"), encoding="utf-8")
    said = sentence(crsbench("datasets", "check", DATASET, home=tiny_home))
    assert "1 image id(s) stand more than once, such as 'image009'" in said


def test_panels(crsbench: Command, computed_home: HomeLayout) -> None:
    assert "No panel is frozen" in crsbench("panel", "list", home=computed_home).out
    project = open_project(computed_home.root)
    first = freeze_panel(project, "first").panel
    assert not freeze_panel(project, "first").is_new
    second = freeze_panel(project, "second").panel
    rows = json.loads(crsbench("panel", "list", "--format", "json", home=computed_home).out)
    assert [row["panel_id"] for row in rows] == [first.panel_id, second.panel_id]
    shown = json.loads(crsbench("panel", "show", "first", home=computed_home).out)
    assert (shown["panel_id"], shown["members"]) == (first.panel_id, ["alpha", "beta"])
    assert "The panels are the same." in crsbench("panel", "diff", "first", first.panel_id, home=computed_home).out
    done = crsbench("panel", "diff", "first", "second", home=computed_home)
    assert done.code == 0 and '"second"' in done.out
    path = computed_home.panels / f"{first.panel_id}.json"
    path.write_text(path.read_text(encoding="utf-8").replace("beta", "gamma"), encoding="utf-8")
    assert "was changed after it was frozen" in sentence(crsbench("panel", "list", home=computed_home))


def test_a_panel_of_other_conditions_is_named(
    crsbench: Command, computed_home: HomeLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel_id = freeze_panel(open_project(computed_home.root), "first").panel.panel_id
    assert "refused" not in crsbench("status", home=computed_home).out
    monkeypatch.setattr("crsbench_assets.worker.pooled_stages.CANONICAL_PX", 1)
    assert (
        f"refused: panel {panel_id}, frozen under another canonical_px:" in crsbench("status", home=computed_home).out
    )
    status = json.loads(crsbench("status", "--format", "json", home=computed_home).out)
    assert status["refused_panels"] == {panel_id: ["canonical_px"]}
    (row,) = json.loads(crsbench("panel", "list", "--format", "json", home=computed_home).out)
    assert row["refused_for"] == "canonical_px"
    shutil.rmtree(computed_home.lake / "main")  # nothing is split, so nothing is known to differ
    assert json.loads(crsbench("status", "--format", "json", home=computed_home).out)["refused_panels"] == {}


def test_a_name_stands_for_one_panel(crsbench: Command, computed_home: HomeLayout) -> None:
    project = open_project(computed_home.root)
    freeze_panel(project, "first")
    edit_list(computed_home.settings, "retired", add="beta")
    said = sentence(crsbench("panel", "freeze", "first", home=computed_home))
    assert "A panel 'first' is frozen already" in said and "Choose another name, such as first-2" in said


def test_a_faulty_card_keeps_nobody_from_what_was_published(crsbench: Command, published_home: HomeLayout) -> None:
    (published_home.root / "encoders" / "bad.yaml").write_text("id: Bad\n", encoding="utf-8")
    done = crsbench("sql", "SELECT count(*) AS n FROM crs_scores", "--format", "json", home=published_home)
    assert (done.code, json.loads(done.out)) == (0, [{"n": 2}])
    assert "bad.yaml" in done.err and "The last publication answers all the same." in done.err
    assert crsbench("sql", "--live", "SELECT 1", home=published_home).code == 1


def test_a_folder_inside_a_home_is_no_home(crsbench: Command, computed_home: HomeLayout) -> None:
    done = crsbench("status", "--home", str(computed_home.root / "encoders"))
    assert done.code == 1 and f"did you mean --home {computed_home.root}?" in done.err


def test_encoders_check_names_what_is_absent(crsbench: Command, tiny_home: HomeLayout) -> None:
    vectors("alpha", ("clean", "blur-s1")).write_parquet(tiny_home.root / "files" / "alpha.parquet")
    done = crsbench("encoders", "check", "alpha", home=tiny_home)
    assert done.code == 0 and "under 2 of 3 conditions; none for blur-s3" in done.out
    card = encoder_card("alpha")
    card["vectors"] = {"tniy": "../files/alpha.parquet"}
    write_card(tiny_home.root, "encoders", card)
    done = crsbench("encoders", "check", "alpha", home=tiny_home)
    assert (
        done.code == 1
        and "tniy: the card names vectors for it, and no such dataset is active (active: tiny)" in done.out
    )


def test_a_table_too_wide_for_the_terminal_is_one_line_per_value(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"column_{i}" for i in range(40)]
    show_rows(names, [list(range(40)), [None] * 40])
    out = capsys.readouterr().out
    assert "-- 1 of 2" in out and "column_39  39" in out


def test_what_was_asked_for_by_name_joins_what_is_published(crsbench: Command, published_home: HomeLayout) -> None:
    done = crsbench("materialize", "-t", "estimator_axes", "-e", "alpha", home=published_home)
    assert done.code == 0, done.out + done.err
    found = crsbench("sql", "SELECT DISTINCT encoder_id FROM estimator_axes", "--format", "csv", home=published_home)
    assert found.out.splitlines() == ["encoder_id", "alpha"]


def test_a_table_before_the_first_scores(crsbench: Command, tiny_home: HomeLayout) -> None:
    done = crsbench("materialize", "-t", "embeddings", "-e", "alpha", home=tiny_home)
    assert (done.code, done.err) == (0, ""), done.out
    assert not tiny_home.warehouse.exists()
    done = crsbench("materialize", "-t", "datasets", home=tiny_home)
    assert (done.code, done.err) == (0, ""), done.out
    assert (
        json.loads(crsbench("sql", "--format", "json", "FROM datasets", home=tiny_home).out)[0]["dataset_id"] == DATASET
    )
