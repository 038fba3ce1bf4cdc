"""Files, configurations, cards and code that nobody meant: each ends in one sentence, none in a traceback."""

from __future__ import annotations

import json
import os

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from crsbench_assets.config.cards import EncoderCard
from crsbench_assets.config.errors import ConfigError, reason_of
from crsbench_assets.encoders.networks import load_encoder
from crsbench_assets.encoders.weights import weights_state
from crsbench_assets_tests.encoders.test_any_encoder import card
from crsbench_assets_tests.encoders.tiny import MAKERS

VIT = {"pooling": "cls", "dim": 64, "n_blocks": 6}
THREE = {"pooling": "gap", "dim": 3, "n_blocks": 1}


def sentence(of):
    """Return what is said instead of loading."""
    with pytest.raises(ConfigError) as caught:
        load_encoder(of)
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".")
    assert len(message) < 700
    return message


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """Return a folder with the weights of a small network of timm."""
    folder = tmp_path_factory.mktemp("vit")
    save_file(timm.create_model("test_vit", num_classes=0).state_dict(), folder / "model.safetensors")
    return folder


def named(tiny, path):
    return tiny.card.model_copy(update={"place": tiny.card.place.model_copy(update={"named": str(path)})})


# --- numbers


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("encoder_id", ["vit_b16_in21k", "panderm", "rad_dino", "biomedclip"])
def test_other_precisions_become_float32(encoder_id, dtype, tmp_path):
    tiny = MAKERS[encoder_id](tmp_path)
    (path,) = (path for path in tmp_path.iterdir() if path.suffix in (".safetensors", ".pth", ".bin"))
    if path.suffix == ".safetensors":
        save_file({name: t.to(dtype) for name, t in load_file(path).items()}, path)
    else:
        content = torch.load(path, weights_only=True)
        is_wrapped = "model" in content
        tensors = {name: t.to(dtype) for name, t in (content["model"] if is_wrapped else content).items()}
        torch.save({"model": tensors} if is_wrapped else tensors, path)
    images = tiny.images(1)
    vectors = load_encoder(tiny.card).encode(images)
    with torch.inference_mode():
        own = tiny.features(torch.from_numpy(images)).numpy()
    assert vectors.dtype == "float32"
    assert abs(vectors - own).max() <= (1e-5 if dtype == torch.float64 else 0.1) * max(1.0, abs(own).max())


def test_codes_of_a_quantised_file_and_numbers_that_are_none(tmp_path, vit):
    state = load_file(vit / "model.safetensors")
    mine = card(tmp_path, "timm", {"loader": "timm", "hub_id": "test_vit"}, VIT, 160)
    save_file({name: (100 * t).to(torch.int8) for name, t in state.items()}, tmp_path / "model.safetensors")
    assert "78 tensor(s) are 8-bit codes of a quantised file" in sentence(mine)
    state["norm.weight"][3] = float("nan")
    save_file(state, tmp_path / "model.safetensors")
    assert "1 tensor(s) hold NaN or infinity (norm.weight): get the file again" in sentence(mine)


# --- files


def sharded(folder, tensors):
    """Write a checkpoint in two files with their index, and return the index."""
    names = sorted(tensors)
    files = {"model-00001-of-00002.safetensors": names[:10], "model-00002-of-00002.safetensors": names[10:]}
    for file, held in files.items():
        save_file({name: tensors[name] for name in held}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: file for file, held in files.items() for name in held}}))
    return index


def test_shards_of_any_network(tmp_path, vit):
    state = load_file(vit / "model.safetensors")
    index = sharded(tmp_path, state)
    mine = card(tmp_path, "timm", {"loader": "timm", "hub_id": "test_vit"}, VIT, 160)
    assert load_encoder(mine).dim == 64
    known = json.loads(index.read_text())["weight_map"]
    first, *_, last = known
    for other in ("../../etc/passwd", "/etc/passwd", "model.bin", 5):
        index.write_text(json.dumps({"weight_map": known | {first: other}}))
        assert f"{index} is no index of tensors: get it again" in sentence(mine)
    index.write_text(json.dumps({"weight_map": known}))
    (tmp_path / "cache" / "first_load.json").unlink()
    second = tmp_path / known[last]
    save_file(load_file(second) | {first: state[first] + 1}, second)
    assert f"1 tensor(s) of {second.name} stand in another file as well ({first})" in sentence(mine)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 64,
        b"<!DOCTYPE html><html>Virus scan warning</html>",
        b"version https://git-lfs.github.com/spec/v1\n",
    ],
)
@pytest.mark.parametrize("encoder_id", ["vit_b16_in21k", "panderm", "chexzero", "biomedclip"])
def test_files_that_hold_something_else(encoder_id, content, tmp_path):
    tiny = MAKERS[encoder_id](tmp_path)
    (path,) = (path for path in tmp_path.iterdir() if path.suffix in (".safetensors", ".pth", ".pt", ".bin"))
    path.write_bytes(content)
    message = sentence(tiny.card)
    assert f"{path} is damaged" in message or f"{path} names the class" in message


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("encoder_id", ["rad_dino", "medgemma", "retfound", "biovil"])
def test_files_that_were_cut_off(encoder_id, share, tmp_path):
    tiny = MAKERS[encoder_id](tmp_path)
    path = next(path for path in tmp_path.iterdir() if path.suffix in (".safetensors", ".pth", ".pt"))
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert f"{path} is damaged" in sentence(tiny.card)


def test_links_to_the_file_and_to_nothing(tmp_path):
    (tmp_path / "weights").mkdir()
    tiny = MAKERS["vit_b16_in21k"](tmp_path / "weights")
    (path,) = tiny.folder.iterdir()
    blob = path.rename(tmp_path / "blob")  # as the hub's cache keeps files
    path.symlink_to(blob)
    assert load_encoder(tiny.card).dim == 32
    blob.unlink()
    assert "holds no model.safetensors" in sentence(tiny.card)
    path.unlink()
    path.symlink_to(path)
    assert "holds no model.safetensors" in sentence(tiny.card)
    path.unlink()
    path.mkdir()
    assert "holds no model.safetensors" in sentence(tiny.card)
    assert "names /dev/null for its weights, which is not there" in sentence(named(tiny, "/dev/null"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody without rights")
def test_files_that_one_may_not_read(tmp_path):
    tiny = MAKERS["vit_b16_in21k"](tmp_path)
    (path,) = tmp_path.iterdir()
    outside = [folder for folder in tmp_path.parents if folder.stat().st_mode & 0o055 != 0o055]
    modes = {folder: folder.stat().st_mode for folder in (*outside, tmp_path, path)}
    try:
        for folder in outside:
            folder.chmod(0o755)
        for mode, said in ((0o700, str(tmp_path)), (0o755, str(path))):
            tmp_path.chmod(mode)
            path.chmod(0o600)
            os.seteuid(65534)
            try:
                message = sentence(tiny.card)
                assert said in message and "cannot be read (" in message
            finally:
                os.seteuid(0)
    finally:
        for folder, mode in modes.items():
            folder.chmod(mode & 0o7777)


# --- configurations


@pytest.mark.parametrize("text", ["", "[]", "null", "not json", '"text"'])
@pytest.mark.parametrize("encoder_id", ["rad_dino", "biomedclip"])
def test_a_configuration_that_is_none(encoder_id, text, tmp_path):
    tiny = MAKERS[encoder_id](tmp_path)
    (path,) = tmp_path.glob("*config.json")
    path.write_text(text)
    assert f"{path} is no configuration of a network: get the file again" in sentence(tiny.card)
    assert weights_state(tiny.card).state == "corrupt"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "does not know the model of"),
        ({"model_type": 5}, "does not know the model of"),
        ({"model_type": "dinov2", "hidden_size": "wide"}, "does not know the model of"),
        ({"model_type": "dinov2", "hidden_size": 31, "num_attention_heads": 2}, "the weights are not those of"),
        ({"model_type": "bert"}, "the weights are not those of"),
        ({"model_type": "resnet"}, "the weights are not those of"),
        ({"model_type": "clip"}, "the weights are not those of"),
    ],
)
def test_a_configuration_of_another_network_of_transformers(config, said, tmp_path):
    tiny = MAKERS["rad_dino"](tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert said in sentence(tiny.card)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "has no image tower"),
        ({"model_cfg": {"vision_cfg": {}}}, "has no image tower"),
        ({"model_cfg": {"embed_dim": 16, "vision_cfg": 5}}, "cannot build the image tower of"),
        ({"model_cfg": {"embed_dim": 16, "vision_cfg": {"wings": 2}}}, "cannot build the image tower of"),
        (
            {"model_cfg": {"embed_dim": 16, "vision_cfg": {"timm_model_name": "none"}}},
            "cannot build the image tower of",
        ),
        ({"model_cfg": {"embed_dim": "x", "vision_cfg": {"layers": 1}}}, "cannot build the image tower of"),
    ],
)
def test_a_configuration_of_another_network_of_open_clip(config, said, tmp_path):
    tiny = MAKERS["biomedclip"](tmp_path)
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    assert said in sentence(tiny.card)


# --- cards


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ({"hub_id": "vit_none"}, "builds no network 'vit_none' (Unknown model (vit_none))"),
        ({"hub_id": "test_vit.no_such_tag"}, "Invalid pretrained tag (no_such_tag) for test_vit"),
        ({}, "builds no network ''"),
        ({"hub_id": "somebody/test_vit"}, "builds no network 'somebody/test_vit'"),
        ({"network_options": {"num_heads": 7}}, "dim should be divisible by num_heads"),
        ({"network_options": {"patch_size": 0}}, "builds no network"),
        ({"network_options": {"global_pool": "avg"}}, "2 tensor(s) missing (fc_norm.bias, fc_norm.weight)"),
        # by these timm itself would read or download weights
        ({"hub_id": "hf-hub:timm/test_vit"}, "timm would look for weights itself"),
        ({"hub_id": "local-dir:/tmp"}, "timm would look for weights itself"),
        ({"network_options": {"pretrained": True}}, "timm would look for weights itself"),
        ({"network_options": {"checkpoint_path": "/etc/passwd"}}, "timm would look for weights itself"),
    ],
)
def test_networks_that_timm_does_not_have_or_that_fetch_their_own_weights(weights, said, vit):
    whole = {"loader": "timm", **({} if weights == {} else {"hub_id": "test_vit"}), **weights}
    assert said in sentence(card(vit, "timm", whole, VIT, 160))


@pytest.mark.parametrize(
    ("embedding", "px", "said"),
    [
        ({"pooling": "gap"}, 160, "pooling gap does not exist for a sequence with 1 prefix tokens; correct embedding"),
        ({"pooling": "map"}, 160, "without attention pooling; correct embedding.pooling in its card"),
        ({"pooling": "projected"}, 160, "2 tensor(s) missing (head.bias, head.weight)"),
        ({"dim": 65}, 160, "its vectors are 64 wide, and its card says embedding.dim 65"),
        ({"block": 7}, 160, "its network has 6 blocks"),
        ({}, 8, "its network takes no images of 8 px"),
        ({}, 161, "Input height (161) should be divisible by patch size (16)"),
    ],
)
def test_embeddings_and_inputs_that_the_network_does_not_have(embedding, px, said, vit):
    assert said in sentence(card(vit, "timm", {"loader": "timm", "hub_id": "test_vit"}, VIT | embedding, px))


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ("ViT-nothing", "has no image tower ViT-nothing: correct weights.network"),
        ("ViT-B-32::laion2b_s34b_b79k", "has no image tower ViT-B-32::laion2b_s34b_b79k"),
        ("ViT-B-32", "the weights are not those of ViT-B-32"),  # whatever tag of weights is meant: files decide
    ],
)
def test_networks_that_open_clip_does_not_have(network, said, vit):
    weights = {"loader": "open_clip", "file": "model.safetensors", "network": network}
    assert said in sentence(card(vit, "open_clip", weights, {**VIT, "dim": 768, "n_blocks": 12}, 224))


@pytest.mark.parametrize("taps", [(4, 3, 2, 1), (0, 1, 2, 3), (1, 2, 3)])
def test_depths_go_from_shallow_to_deep(taps, vit):
    with pytest.raises(ValueError, match="depth_taps"):
        card(vit, "timm", {"loader": "timm", "hub_id": "test_vit"}, {**VIT, "depth_taps": taps}, 160)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kind", "tensorflow"),
        ("embedding", {**VIT, "pooling": "median"}),
        ("wings", 2),
        ("category", None),
        ("id", "A"),
    ],
)
def test_cards_with_fields_that_do_not_exist(field, value, vit):
    fields = card(vit, "timm", {"loader": "timm", "hub_id": "test_vit"}, VIT, 160).model_dump(mode="json")
    with pytest.raises(ValueError, match=field if field != "id" else "an id starts with"):
        EncoderCard.model_validate({**fields, field: value})


# --- code of somebody else

HEAD = "import numpy as np\nclass X:\n    dim, is_on_processor = 3, True\n    def __init__(self, card, device): pass\n"
CODE = {
    "raises_on_import": ("raise RuntimeError('first line\\nsecond line')", "(RuntimeError: first line)"),
    "no_python": ("def x(:", "(SyntaxError: invalid syntax"),
    "ends": ("import sys\nsys.exit(3)", "(SystemExit: 3)"),
    "needs_another": ("import nothing_like_it", "needs the package nothing_like_it"),
    "no_class": ("X = 5", "(TypeError: 'int' object is not callable)"),
    "no_arguments": ("class X: pass", "(TypeError: X() takes no arguments)"),
    "no_contract": ("def X(card, device): return 5", "a int without dim, is_on_processor, encode is no image encoder"),
    "raises_at_start": (HEAD.replace("pass", "raise KeyError('weights')"), "(KeyError: 'weights')"),
    "raises_later": (HEAD + "    def encode(self, b): return 1 / 0", "(ZeroDivisionError: division by zero)"),
    "list": (HEAD + "    def encode(self, b): return [[1, 2, 3]]", "encode of one image gives list"),
    "row": (
        HEAD + "    def encode(self, b): return np.zeros(3)",
        "gives float64 (3,), expected NumPy's float32 (1, d)",
    ),
    "double": (HEAD + "    def encode(self, b): return np.zeros((len(b), 3))", "gives float64 (1, 3)"),
    "wide": (HEAD + "    def encode(self, b): return np.zeros((len(b), 4), np.float32)", "its vectors are 4 wide"),
}


@pytest.mark.parametrize("name", CODE)
def test_a_class_that_is_no_encoder(name, tmp_path, monkeypatch):
    code, said = CODE[name]
    (tmp_path / f"theirs_{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert said in sentence(card(tmp_path, "module", {"loader": f"theirs_{name}:X"}, THREE, 32))


@pytest.mark.parametrize(
    "loader", [":", ":X", "os:", "os:nothing", "..:X", "nowhere:X", "builtins:len", "os.path:join"]
)
def test_a_name_of_no_class(loader, tmp_path):
    assert "weights.loader" in sentence(card(tmp_path, "module", {"loader": loader}, THREE, 32))


def test_what_a_library_says_is_one_line():
    assert reason_of(ValueError("a" * 500)) == "a" * 200 + "..."
    assert reason_of(KeyError()) == "KeyError"
