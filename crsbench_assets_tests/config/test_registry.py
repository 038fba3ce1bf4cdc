"""Which cards count, and that a snapshot says the same as the files it was made of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.registry import (
    CATALOG,
    catalog_ids,
    load_registry,
    registry_from_snapshot,
    without_retired,
)
from crsbench_assets.config.settings import edit_list
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets_tests.fixtures import dataset_card, encoder_card, write_card


def test_cards_are_active_by_lying_there_or_by_being_listed(tiny_home: HomeLayout) -> None:
    registry = load_registry(tiny_home.root)
    assert (list(registry.encoders), list(registry.datasets)) == (["alpha", "beta"], ["tiny"])
    edit_list(tiny_home.settings, "encoders", add="resnet50")
    edit_list(tiny_home.settings, "datasets", add="isic2019")
    registry = load_registry(tiny_home.root)
    assert list(registry.encoders) == ["alpha", "beta", "resnet50"]
    assert list(registry.datasets) == ["isic2019", "tiny"]


def test_a_home_card_listed_too_counts_once(tiny_home: HomeLayout) -> None:
    edit_list(tiny_home.settings, "encoders", add="alpha")
    assert list(load_registry(tiny_home.root).encoders) == ["alpha", "beta"]


def test_a_listed_id_that_nobody_knows(tiny_home: HomeLayout) -> None:
    edit_list(tiny_home.settings, "encoders", add="resnet5O")
    with pytest.raises(ConfigError, match="encoders lists 'resnet5O', which is neither a catalogue card") as raised:
        load_registry(tiny_home.root)
    assert "resnet50" in str(raised.value) and str(tiny_home.root / "encoders") in str(raised.value)


@pytest.mark.parametrize(("kind", "card"), [("encoders", "resnet50"), ("datasets", "isic2019")])
def test_a_home_card_cannot_take_the_id_of_a_catalogue_card(tiny_home: HomeLayout, kind: str, card: str) -> None:
    shutil.copyfile(CATALOG / kind / f"{card}.yaml", tiny_home.root / kind / f"{card}.yaml")
    with pytest.raises(ConfigError, match=f"reuses the id '{card}' of a catalogue card"):
        load_registry(tiny_home.root)


def test_paths_start_at_the_folder_of_the_card(tiny_home: HomeLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    registry = load_registry(tiny_home.root)
    assert registry.datasets["tiny"].source.manifest == str(tiny_home.root / "files" / "labels.csv")
    assert registry.encoders["alpha"].vectors["tiny"] == (str(tiny_home.root / "files" / "alpha.parquet"),)


def test_roots_of_the_settings_win_over_the_card(tiny_home: HomeLayout) -> None:
    source = {"layout": "isic2019", "root": "relative"}
    shift = {"id": "elsewhere", "name": "Elsewhere", "source": source}
    write_card(tiny_home.root, "datasets", dataset_card(id="own", source=source, shift=shift))
    settings = tiny_home.settings.read_text(encoding="utf-8")
    tiny_home.settings.write_text(f"{settings}roots: {{elsewhere: /data/elsewhere}}\n", encoding="utf-8")
    card = load_registry(tiny_home.root).datasets["own"]
    assert card.source.root == str(tiny_home.root / "datasets" / "relative")
    assert card.shift is not None and card.shift.source.root == "/data/elsewhere"


@pytest.mark.parametrize("part", ["protocol", "settings"])
def test_a_snapshot_of_another_release_is_refused_in_one_sentence(tiny_home: HomeLayout, part: str) -> None:
    snapshot = json.loads(json.dumps(load_registry(tiny_home.root).snapshot))
    expected = "does not fit this crsbench, so another release wrote it: start the run again"
    with pytest.raises(ConfigError, match=expected) as refused:
        registry_from_snapshot({**snapshot, part: {**snapshot[part], "colour": "red"}})
    assert "\n" not in str(refused.value)
    with pytest.raises(ConfigError, match=expected):
        registry_from_snapshot({name: value for name, value in snapshot.items() if name != part})


def test_a_snapshot_gives_an_equal_registry(tiny_home: HomeLayout) -> None:
    edit_list(tiny_home.settings, "encoders", add="chexzero")
    edit_list(tiny_home.settings, "datasets", add="chexpert")
    registry = load_registry(tiny_home.root)
    copy = registry_from_snapshot(json.loads(json.dumps(registry.snapshot)))
    assert copy.hash == registry.hash
    assert copy.protocol.hash == registry.protocol.hash
    assert (copy.settings, copy.encoders, copy.datasets) == (registry.settings, registry.encoders, registry.datasets)


def test_the_hash_of_a_registry_moves_with_every_card(tiny_home: HomeLayout) -> None:
    before = load_registry(tiny_home.root).hash
    write_card(tiny_home.root, "encoders", encoder_card("alpha", description="new"))
    assert load_registry(tiny_home.root).hash != before


def test_an_id_without_a_card_is_named_with_both_remedies(tiny_home: HomeLayout) -> None:
    registry = load_registry(tiny_home.root)
    for find, kind in ((registry.encoder, "encoder"), (registry.dataset, "dataset")):
        with pytest.raises(ConfigError, match=f"No active card describes the {kind} 'nobody'") as raised:
            find("nobody")
        assert f"crsbench {kind}s add nobody" in str(raised.value)
        assert "--remove-unknown-keys" in str(raised.value)


def test_retired_encoders_are_set_apart(tiny_home: HomeLayout) -> None:
    edit_list(tiny_home.settings, "retired", add="alpha")
    registry = load_registry(tiny_home.root)
    assert list(registry.encoders) == ["alpha", "beta"]
    assert list(without_retired(registry).encoders) == ["beta"]


def test_catalogue_cards_are_found_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(catalog_ids("encoders")) == 15
    assert catalog_ids("datasets") == ["aptos2019", "chexpert", "isic2019"]
