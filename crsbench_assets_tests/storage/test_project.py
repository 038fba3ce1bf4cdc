"""Opening a home: what a filled home refuses, and that a home may be moved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from crsbench_assets.config.errors import CrsbenchError, StorageError
from crsbench_assets.orchestration.resources import ProjectResource
from crsbench_assets.planning.plan import CURRENT, plan
from crsbench_assets.storage.files import read_json, replace_json
from crsbench_assets.storage.layout import HOME_VARIABLE, HomeLayout, resolve_home
from crsbench_assets.storage.project import (
    LAYOUT_VERSION,
    create_home,
    is_filled,
    open_project,
    read_snapshot,
    write_snapshot,
)
from crsbench_assets.storage.warehouse import publish, query
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
    assert all(task.state == CURRENT for task in plan(open_project(computed_home.root)).tasks)


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
    assert all(task.state == CURRENT for task in plan(open_project(computed_home.root)).tasks)


def test_an_id_keeps_its_content_also_after_its_card_was_away(computed_home: HomeLayout) -> None:
    path = computed_home.root / "encoders" / "alpha.yaml"
    path.unlink()
    write_snapshot(open_project(computed_home.root))
    write_card(computed_home.root, "encoders", encoder_card("alpha", role="control"))
    assert "The card of the 'encoder alpha' now describes other content" in refusal(computed_home)


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
    assert [task for task in found.tasks if task.state != CURRENT] == []
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
