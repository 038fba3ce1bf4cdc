"""Opening a home: what a filled home refuses, and that a home may be moved."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from crsbench_assets.config.errors import ConfigError, CrsbenchError, StorageError
from crsbench_assets.orchestration.resources import ProjectResource
from crsbench_assets.planning.plan import plan
from crsbench_assets.storage.files import read_json, replace_json
from crsbench_assets.storage.lake import Provenance
from crsbench_assets.storage.layout import HOME_VARIABLE, HomeLayout, resolve_home
from crsbench_assets.storage.project import (
    LAYOUT_VERSION,
    create_home,
    edit_settings,
    is_filled,
    open_project,
    read_snapshot,
    write_snapshot,
)
from crsbench_assets.storage.sql import query
from crsbench_assets.storage.warehouse import publish
from crsbench_assets.tables.registry import TABLES
from crsbench_assets_tests.fixtures import (
    PROTOCOL,
    dataset_card,
    encoder_card,
    file_bytes,
    write_card,
    write_protocol,
)


def refusal(layout: HomeLayout) -> str:
    """Return the one sentence with which a home refuses, after a look that nothing was touched."""
    before = file_bytes(layout.root)
    with pytest.raises(CrsbenchError) as raised:
        open_project(layout.root)
    assert file_bytes(layout.root) == before
    assert "\n" not in str(raised.value)
    return str(raised.value)


def change_probe(layout: HomeLayout) -> None:
    write_protocol(layout.root, probe=PROTOCOL["probe"] | {"c": 2.0})


def change_label_policy(layout: HomeLayout) -> None:
    text = layout.settings.read_text(encoding="utf-8")
    layout.settings.write_text(text.replace("u_zeros", "u_ones"), encoding="utf-8")


def test_another_protocol_in_a_filled_home(computed_home: HomeLayout) -> None:
    change_probe(computed_home)
    sentence = refusal(computed_home)
    assert "asks for another protocol than the 'tiny-1' that this home is filled with" in sentence
    assert "Put the protocol back, or make a new home with `crsbench init --home DIR`." in sentence
    write_protocol(computed_home.root)
    assert open_project(computed_home.root).registry.protocol.id == "tiny-1"


def test_another_label_policy_in_a_filled_home(computed_home: HomeLayout) -> None:
    change_label_policy(computed_home)
    sentence = refusal(computed_home)
    assert "another label_policy than the 'u_zeros'" in sentence and "Put the label_policy back" in sentence


def test_an_empty_home_changes_its_mind(tiny_home: HomeLayout) -> None:
    write_snapshot(open_project(tiny_home.root))
    assert not is_filled(tiny_home)
    change_probe(tiny_home)
    change_label_policy(tiny_home)
    project = open_project(tiny_home.root)
    write_snapshot(project)
    assert read_json(tiny_home.layout_file)["label_policy"] == "u_ones"


def test_a_description_of_the_protocol_may_change(computed_home: HomeLayout) -> None:
    write_protocol(computed_home.root, description="in other words")
    assert not any(task.is_due for task in plan(open_project(computed_home.root)).tasks)


@pytest.mark.parametrize(
    ("kind", "card", "name"),
    [
        ("encoders", encoder_card("alpha", role="control"), "encoder alpha"),
        ("encoders", encoder_card("alpha", embedding={"pooling": "cls", "dim": 8, "n_blocks": 1}), "encoder alpha"),
        ("datasets", dataset_card(classes=["positive", "negative"]), "dataset tiny"),
        ("datasets", dataset_card(task="ordinal"), "dataset tiny"),
    ],
)
def test_an_id_with_other_content(computed_home: HomeLayout, kind: str, card: dict[str, Any], name: str) -> None:
    path = computed_home.root / kind / f"{card['id']}.yaml"
    before = path.read_bytes()
    write_card(computed_home.root, kind, card)
    sentence = refusal(computed_home)
    assert f"The card of the {name!r} now describes other content" in sentence
    assert f"Give the new content a new id (another file in {kind}/)" in sentence
    path.write_bytes(before)
    assert not any(task.is_due for task in plan(open_project(computed_home.root)).tasks)


def test_an_id_keeps_its_content_also_after_its_card_was_away(computed_home: HomeLayout) -> None:
    path = computed_home.root / "encoders" / "alpha.yaml"
    path.unlink()
    write_snapshot(open_project(computed_home.root))
    write_card(computed_home.root, "encoders", encoder_card("alpha", role="control"))
    assert "The card of the 'encoder alpha' now describes other content" in refusal(computed_home)


def commit(layout: HomeLayout, table: str, key: tuple[str, ...], status: str) -> None:
    lake = open_project(layout.root).lake
    lake.commit(table, key, TABLES[table].empty(), Provenance("inputs", {}, 0.0), status=status, reason="tried")


@pytest.mark.parametrize(
    ("kind", "card", "result"),
    [
        ("datasets", dataset_card(classes=["negative", "positvie"]), ("quarantine", ("tiny",))),
        ("encoders", encoder_card("alpha", role="control"), ("embedding_failures", ("alpha", "tiny"))),
        ("datasets", dataset_card(task="ordinal"), ("embedding_failures", ("alpha", "tiny"))),
    ],
)
def test_an_id_without_results_may_be_corrected(
    tiny_home: HomeLayout, kind: str, card: dict[str, Any], result: tuple[str, tuple[str, ...]]
) -> None:
    right = (tiny_home.root / kind / f"{card['id']}.yaml").read_text(encoding="utf-8")
    path = write_card(tiny_home.root, kind, card)
    write_snapshot(open_project(tiny_home.root))
    commit(tiny_home, *result, "failed")  # as a wrong card ends
    path.write_text(right, encoding="utf-8")
    write_snapshot(open_project(tiny_home.root))
    commit(tiny_home, *result, "ok")
    open_project(tiny_home.root)  # what counts is the content that there are results for
    write_card(tiny_home.root, kind, card)
    assert "now describes other content than the one this home has results for" in refusal(tiny_home)


def test_a_result_that_came_while_a_card_was_corrected(tiny_home: HomeLayout) -> None:
    write_snapshot(open_project(tiny_home.root))
    write_card(tiny_home.root, "encoders", encoder_card("alpha", role="control"))
    corrected = open_project(tiny_home.root)
    before = read_json(tiny_home.identities)
    corrected.lake.commit(
        "embedding_failures", ("alpha", "tiny"), TABLES["embedding_failures"].empty(), Provenance("inputs", {}, 0.0)
    )
    with pytest.raises(ConfigError, match="now describes other content"):
        write_snapshot(corrected)
    assert read_json(tiny_home.identities) == before


def test_a_revision_recorded_later_is_no_other_content(tiny_home: HomeLayout) -> None:
    weights = {"loader": "timm", "hub_id": "a/b"}
    write_card(tiny_home.root, "encoders", encoder_card("alpha", weights=weights))
    write_snapshot(open_project(tiny_home.root))
    commit(tiny_home, "embedding_failures", ("alpha", "tiny"), "ok")
    for known in ({"revision": "c0ffee"}, {"revision": "c0ffee", "sha256": "12ab"}):
        write_card(tiny_home.root, "encoders", encoder_card("alpha", weights=weights | known))
        write_snapshot(open_project(tiny_home.root))
    for other in ({"revision": "decaf", "sha256": "12ab"}, {"revision": "c0ffee"}, known | {"hub_id": "a/c"}):
        write_card(tiny_home.root, "encoders", encoder_card("alpha", weights=weights | other))
        assert "The card of the 'encoder alpha' now describes other content" in refusal(tiny_home)


@pytest.mark.parametrize("text", ["{", "[]", '{"encoder alpha": "c0ffee"}'])
def test_identities_that_are_none(computed_home: HomeLayout, text: str) -> None:
    computed_home.identities.write_text(text, encoding="utf-8")
    assert "identities.json is damaged, so it is unknown what each id stood for" in refusal(computed_home)


def test_a_lake_newer_than_the_code(computed_home: HomeLayout) -> None:
    value = read_json(computed_home.layout_file)
    replace_json(computed_home.layout_file, value | {"layout": LAYOUT_VERSION + 1, "created_by": "9.9"})
    sentence = refusal(computed_home)
    assert f"has layout {LAYOUT_VERSION + 1}, this crsbench (" in sentence
    assert f"knows up to {LAYOUT_VERSION}: upgrade crsbench (the home was made by 9.9)." in sentence


@pytest.mark.parametrize("value", [None, [], {}, {"layout": "1", "home_id": "x"}, {"home_id": "x"}])
def test_a_layout_file_that_is_none(computed_home: HomeLayout, value: Any) -> None:
    computed_home.layout_file.write_text(json.dumps(value), encoding="utf-8")
    sentence = refusal(computed_home)
    assert "_layout.json is missing or damaged: restore it from a backup" in sentence


def test_a_layout_file_that_is_gone_or_no_json(computed_home: HomeLayout) -> None:
    computed_home.layout_file.write_text("{", encoding="utf-8")
    # removing it, the advice for other files, would make the home unusable
    assert "restore it from a backup" in refusal(computed_home)
    computed_home.layout_file.unlink()
    assert "restore it from a backup" in refusal(computed_home)


def test_no_home(tmp_path: Path) -> None:
    for root in (tmp_path, tmp_path / "absent"):
        with pytest.raises(StorageError, match=f"There is no crsbench home at {root}: make one with `crsbench init"):
            open_project(root)
    assert list(tmp_path.iterdir()) == []


def test_a_home_moved_elsewhere(computed_home: HomeLayout, tmp_path: Path) -> None:
    publish(open_project(computed_home.root), plan(open_project(computed_home.root)).cells)
    moved = HomeLayout(Path(shutil.move(computed_home.root, tmp_path / "moved")))
    project = open_project(moved.root)
    found = plan(project)
    assert [task for task in found.tasks if task.is_due] == []
    assert {cell.status for cell in found.cells} == {"ok"}
    answer = query(project, "SELECT count(*) AS n FROM run_records", cells=lambda: plan(project).cells)
    assert answer.table.to_pylist() == [{"n": 24}]
    assert answer.note is not None and "moved" in answer.note and "`crsbench publish`" in answer.note
    publish(project, found.cells)
    answer = query(project, "SELECT count(*) AS n FROM predictions", cells=lambda: plan(project).cells)
    assert (answer.note, answer.origin) == (None, "warehouse")


def test_where_a_home_is_looked_for(tiny_home: HomeLayout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_home().root == tmp_path / "crsbench_home"
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "elsewhere"))
    assert resolve_home().root == tmp_path / "crsbench_home"
    monkeypatch.setenv("DAGSTER_HOME", str(tiny_home.dagster))
    assert resolve_home().root == tiny_home.root
    monkeypatch.setenv(HOME_VARIABLE, "named")
    assert resolve_home().root == tmp_path / "named"
    assert resolve_home("~/given").root == Path.home() / "given"


def test_dagster_home_unset(tiny_home: HomeLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tiny_home.root))
    with pytest.raises(StorageError, match="DAGSTER_HOME is not set, so Dagster would forget everything") as raised:
        ProjectResource().open()
    assert f"crsbench ui --home {tiny_home.root}" in str(raised.value)
    assert f"DAGSTER_HOME={tiny_home.dagster}" in str(raised.value)


def test_dagster_home_of_another_home(tiny_home: HomeLayout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tiny_home.root))
    other = HomeLayout(tmp_path / "other")
    create_home(other, "")
    for foreign in (other.dagster, tmp_path):
        monkeypatch.setenv("DAGSTER_HOME", str(foreign))
        with pytest.raises(StorageError, match=f"DAGSTER_HOME={foreign} does not belong to the crsbench home"):
            ProjectResource().open()
    monkeypatch.setenv("DAGSTER_HOME", str(tiny_home.dagster))
    assert ProjectResource().open().layout == tiny_home


def test_a_run_works_from_its_snapshot(tiny_home: HomeLayout) -> None:
    project = open_project(tiny_home.root)
    registry_hash = write_snapshot(project)
    assert write_snapshot(project) == registry_hash
    (tiny_home.root / "encoders" / "beta.yaml").unlink()
    assert list(open_project(tiny_home.root).registry.encoders) == ["alpha"]
    run = open_project(tiny_home.root, registry_hash=registry_hash)
    assert list(run.registry.encoders) == ["alpha", "beta"]
    with pytest.raises(StorageError, match=r"The registry snapshot 0123 is not in .*: start the run again"):
        read_snapshot(tiny_home, "0123")


def test_a_new_home_is_as_the_contract_says(tmp_path: Path) -> None:
    layout = HomeLayout(tmp_path / "home")
    assert create_home(layout, "telemetry: {enabled: false}\n", workers=2)
    below = {str(path.relative_to(layout.root)) for path in layout.root.rglob("*")}
    assert {"crsbench.yaml", "encoders", "datasets", "lake/_layout.json", "lake/panels", "lake/registry"} <= below
    assert {"published", "reports", "dagster", "dagster/dagster.yaml"} <= below
    text = layout.settings.read_bytes()
    assert not create_home(layout, "", workers=9)
    assert layout.settings.read_bytes() == text
    salts = {open_project(layout.root).registry.settings.group_salt}
    create_home(HomeLayout(tmp_path / "second"), "")
    salts.add(open_project(tmp_path / "second").registry.settings.group_salt)
    assert len(salts) == 2 and min(map(len, salts)) >= 32


def test_two_that_make_one_home_make_one(tmp_path: Path) -> None:
    layout = HomeLayout(tmp_path / "home")
    barrier = threading.Barrier(4)
    made = []

    def make() -> None:
        barrier.wait()
        made.append(create_home(layout, ""))

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False, False, False, True]
    mark = (layout.dagster / "crsbench_home_id").read_text(encoding="utf-8")
    assert open_project(layout.root).home_id == mark


def test_what_a_killed_init_left_half_written_is_no_foreign_file(tmp_path: Path) -> None:
    layout = HomeLayout(tmp_path / "home")
    layout.lake.mkdir(parents=True)
    (layout.lake / "._layout.json.0123abcd.tmp").write_bytes(b"{")
    (layout.lake / ".lock").touch()
    foreign = layout.root / ".thesis.tex.0123abcd.tmp"
    foreign.touch()
    with pytest.raises(StorageError, match="is not empty and no crsbench home"):
        create_home(layout, "")
    foreign.unlink()
    assert create_home(layout, "")


def test_of_edits_at_once_none_is_lost(tiny_home: HomeLayout) -> None:
    names = [f"id{i}" for i in range(8)]
    threads = [
        threading.Thread(target=edit_settings, args=(tiny_home, "retired"), kwargs={"add": name}) for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(open_project(tiny_home.root).registry.settings.retired) == names
    edit_settings(tiny_home, "retired", remove="id3")
    assert "id3" not in open_project(tiny_home.root).registry.settings.retired
    assert "# the settings of a tiny home" in tiny_home.settings.read_text(encoding="utf-8")
    assert not list(tiny_home.root.glob(".*.tmp"))


def test_an_edit_of_no_settings_is_refused(tiny_home: HomeLayout) -> None:
    tiny_home.settings.write_text("encoders: [\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"crsbench\.yaml"):
        edit_settings(tiny_home, "encoders", add="alpha")
    assert tiny_home.settings.read_text(encoding="utf-8") == "encoders: [\n"
