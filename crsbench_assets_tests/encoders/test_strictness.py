"""Files that are not what the card means: each is one sentence that says what was found and what to do."""

from __future__ import annotations

import argparse
import json
import pickle

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.encoders.checkpoints.timm_layouts import beit_names, sine_cosine_positions
from crsbench_assets.encoders.networks import load_encoder
from crsbench_assets_tests.encoders.tiny import MAKERS


def sentence(card):
    with pytest.raises(ConfigError) as caught:
        load_encoder(card)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def checkpoint(tiny):
    """Return the one file of an encoder, its tensors by name, and a function that writes other ones."""
    (path,) = (path for path in tiny.folder.iterdir() if path.suffix in (".safetensors", ".pth", ".pt", ".bin"))
    if path.suffix == ".safetensors":
        return load_file(path), lambda tensors: save_file(tensors, path)
    content = torch.load(path, weights_only=False)
    is_wrapped = "model" in content
    tensors = content["model"] if is_wrapped else content
    return tensors, lambda tensors: torch.save({**content, "model": tensors} if is_wrapped else tensors, path)


ONE_FILE = [name for name in MAKERS if name not in ("medgemma", "llava_med")]


@pytest.mark.parametrize("encoder_id", ONE_FILE)
def test_a_tensor_that_is_missing_left_over_or_of_another_shape(encoder_id, tmp_path):
    tiny = MAKERS[encoder_id](tmp_path)
    prefix = tiny.card.weights.prefix or ("visual.trunk." if encoder_id == "biomedclip" else "")
    tensors, write = checkpoint(tiny)
    norms = ("norm1.weight", "bn1.weight", "ln_1.weight")
    gone = next(name for name in tensors if name.startswith(prefix) and name.endswith(norms))
    write({name: tensor for name, tensor in tensors.items() if name != gone})
    assert "1 tensor(s) missing" in sentence(tiny.card)
    write({**tensors, f"{prefix}surprise.weight": torch.ones(3)})
    assert "surprise.weight" in sentence(tiny.card)
    write({**tensors, gone: torch.ones(tensors[gone].numel() + 1)})
    assert "1 tensor(s) of another shape" in sentence(tiny.card)
    write({**tensors, "unheard.of": torch.ones(3)})
    assert "unheard.of" in sentence(tiny.card)
    write(tensors)
    assert load_encoder(tiny.card).dim == tiny.card.embedding.dim


@pytest.mark.parametrize("encoder_id", [name for name in MAKERS if name not in ("biomedclip", "medgemma", "llava_med")])
def test_a_prefix_that_matches_nothing(encoder_id, tmp_path):
    tiny = MAKERS[encoder_id](tmp_path)
    message = sentence(tiny.changed("weights", prefix="teacher."))
    assert "begins with 'teacher.', so nothing would be loaded: correct weights.prefix" in message


@pytest.mark.parametrize("encoder_id", ["medgemma", "llava_med"])
def test_shards(encoder_id, tmp_path):
    tiny = MAKERS[encoder_id](tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    assert "names no tensor that begins with 'teacher.'" in sentence(tiny.changed("weights", prefix="teacher."))
    shard = next(path for path in sorted(tmp_path.glob("model-0*")))
    tensors = load_file(shard)
    gone = next(name for name in tensors if name.endswith("layer_norm1.weight"))
    save_file({name: tensor for name, tensor in tensors.items() if name != gone}, shard)
    assert "1 tensor(s) missing (encoder.layers" in sentence(tiny.card)
    save_file({**tensors, "adapter.weight": torch.ones(2)}, shard)
    assert "adapter.weight" in sentence(tiny.card)
    shard.unlink()
    assert f"holds no {shard.name}, which model.safetensors.index.json names" in sentence(tiny.card)
    index.write_text("[]")
    assert "is no index of tensors: get it again" in sentence(tiny.card)


def test_names_of_two_releases(tmp_path):
    tiny = MAKERS["medgemma"](tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    expected = load_encoder(tiny.card).encode(tiny.images(1))
    files = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": {f"model.{name}": file for name, file in files.items()}}))
    for path in tmp_path.glob("model-0*"):
        save_file({f"model.{name}": tensor for name, tensor in load_file(path).items()}, path)
    (tmp_path.parent / f"{tmp_path.name}_cache" / "first_load.json").unlink()
    assert np.array_equal(load_encoder(tiny.card).encode(tiny.images(1)), expected)
    mixed = next(tmp_path.glob("model-0*"))
    save_file(load_file(mixed) | {"vision_tower.vision_model.post_layernorm.weight": torch.ones(32)}, mixed)
    (tmp_path.parent / f"{tmp_path.name}_cache" / "first_load.json").unlink()
    assert "neither begin with 'vision_tower.' nor are ignored (model.vision_tower" in sentence(tiny.card)


def test_a_namespace_is_read_where_the_card_allows_it_and_nothing_else_is(tmp_path):
    (tmp_path / "other").mkdir()
    tiny = MAKERS["retfound"](tmp_path)
    message = sentence(tiny.changed("weights", allowed_globals=()))
    assert "names the class argparse.Namespace, and reading it could run code" in message
    assert load_encoder(tiny.card).dim == 32
    tiny = MAKERS["retfound"](tmp_path / "other")
    path = tmp_path / "other" / tiny.card.weights.file
    content = torch.load(path, weights_only=False)
    content["args"] = argparse.Namespace(where=tmp_path)
    torch.save(content, path)
    assert "names the class pathlib" in sentence(tiny.card)


def test_a_file_that_would_run_code_runs_none(tmp_path):
    tiny = MAKERS["chexzero"](tmp_path)
    trace = tmp_path / "it_ran"

    class Trap:
        def __reduce__(self):
            return (trace.touch, ())

    torch.save({"model": Trap()}, tmp_path / tiny.card.weights.file)
    assert "reading it could run code" in sentence(tiny.card)
    (tmp_path / tiny.card.weights.file).write_bytes(pickle.dumps(Trap()))
    assert tiny.card.weights.file in sentence(tiny.card)
    assert not trace.exists()


def test_damaged_files(tmp_path):
    for encoder_id in ("vit_b16_in21k", "panderm"):
        folder = tmp_path / encoder_id
        folder.mkdir()
        tiny = MAKERS[encoder_id](folder)
        (path,) = folder.iterdir()
        path.write_bytes(path.read_bytes()[:1000])
        assert "get it again" in sentence(tiny.card) or "get a file of tensors alone" in sentence(tiny.card)
        torch.save([torch.ones(2)], folder / "other.pt")
        named = tiny.card.place.model_copy(update={"named": str(folder / "other.pt")})
        assert "no mapping of names to tensors" in sentence(tiny.card.model_copy(update={"place": named}))


def test_the_mask_token_of_a_masked_autoencoder_is_named_in_the_card(tmp_path):
    tiny = MAKERS["retfound"](tmp_path)
    message = sentence(tiny.changed("weights", ignored={"decoder_*": "decoder"}))
    assert "1 tensor(s) left over (mask_token)" in message


def test_a_pickled_file_is_converted_once_and_both_hashes_are_kept(tmp_path):
    folder = tmp_path / "weights"
    folder.mkdir()
    tiny = MAKERS["panderm"](folder)
    images = tiny.images()
    first = load_encoder(tiny.card).encode(images)
    cache = tmp_path / "weights_cache"
    (converted,) = cache.glob("*.safetensors")
    record = json.loads(converted.with_suffix(".json").read_text())
    assert record["source"] == tiny.card.weights.file
    assert {len(record[name]) for name in ("source_sha256", "sha256")} == {64}
    stamp = converted.stat().st_mtime_ns
    assert np.array_equal(load_encoder(tiny.card).encode(images), first)
    assert converted.stat().st_mtime_ns == stamp
    converted.write_bytes(b"broken")
    assert np.array_equal(load_encoder(tiny.card).encode(images), first)
    assert converted.stat().st_size > 1000


def test_beit_biases_become_one(tmp_path):
    tiny = MAKERS["panderm"](tmp_path)
    tensors, write = checkpoint(tiny)
    ours = beit_names({name.removeprefix("encoder."): tensor for name, tensor in tensors.items()})
    bias = ours["blocks.2.attn.qkv.bias"]
    assert torch.equal(bias[:32], tensors["encoder.blocks.2.attn.q_bias"])
    assert torch.equal(bias[64:], tensors["encoder.blocks.2.attn.v_bias"])
    assert not bias[32:64].any()
    assert torch.equal(ours["blocks.1.ls2.gamma"], tensors["encoder.blocks.1.gamma_2"])
    half = {name: tensor for name, tensor in tensors.items() if name != "encoder.blocks.2.attn.v_bias"}
    write(half)
    assert "blocks.2.attn.q_bias" in sentence(tiny.card)


def test_positions_by_their_formula():
    # Token (i, j) of a side of 3 at width 8: sin i, sin i/100, cos i, cos i/100, sin j, sin j/100, cos j, cos j/100.
    table = sine_cosine_positions(3, 8)
    assert table.shape == (1, 10, 8)
    assert not table[0, 0].any()
    i, j = 2.0, 1.0
    expected = [f(x * w) for x in (i, j) for f in (np.sin, np.cos) for w in (1.0, 0.01)]
    np.testing.assert_allclose(table[0, 1 + 2 * 3 + 1].numpy(), expected, rtol=0, atol=1e-6)
    like = {"patch_embed.proj.weight": torch.ones(8, 3, 16, 16)}
    assert beit_names(like)["pos_embed"].shape == (1, 1 + 14 * 14, 8)


def test_an_untouched_tower_is_refused(tmp_path):
    folder, stock = tmp_path / "llava_med", tmp_path / "llava_med_stock"
    folder.mkdir()
    stock.mkdir()
    tiny = MAKERS["llava_med"](folder)
    prefix = "model.vision_tower.vision_tower."
    (shard,) = folder.glob("*.safetensors")
    tower = {n.removeprefix(prefix): t for n, t in load_file(shard).items() if n.startswith(prefix)}
    # The stock file has both towers, in 32 bits.
    others = {"text_model.final_layer_norm.weight": torch.ones(8), "visual_projection.weight": torch.ones(8, 8)}
    float_tower = {name: t.float() if t.is_floating_point() else t for name, t in tower.items()}
    save_file(float_tower | others | {"logit_scale": torch.tensor(1.0)}, stock / "model.safetensors")
    message = sentence(tiny.card)
    assert "its tower equals that of openai/clip-vit-large-patch14-336, number by number" in message
    name = "vision_model.encoder.layers.0.mlp.fc1.bias"
    tuned = float_tower | {name: float_tower[name] + 0.5}
    save_file(tuned | others | {"logit_scale": torch.tensor(1.0)}, stock / "model.safetensors")
    assert load_encoder(tiny.card).dim == 32


def test_networks_and_configurations_that_libraries_do_not_know(tmp_path):
    tiny = MAKERS["vit_b16_in21k"](tmp_path)
    assert "builds no network 'vit_none'" in sentence(tiny.changed("weights", hub_id="vit_none"))
    options = {**tiny.card.weights.network_options, "wings": 2}
    assert "weights.network_options" in sentence(tiny.changed("weights", network_options=options))
    assert "4 blocks" in sentence(tiny.changed("embedding", n_blocks=12))
    assert "4 blocks" in sentence(tiny.changed("embedding", depth_taps=(1, 2, 3, 5)))
    assert "pooling map does not exist" in sentence(tiny.changed("embedding", pooling="map"))
    folder = tmp_path / "hf"
    folder.mkdir()
    tiny = MAKERS["rad_dino"](folder)
    (folder / "config.json").write_text('{"model_type": "nothing_like_it"}')
    assert "does not know the model of" in sentence(tiny.card)
    (folder / "config.json").unlink()
    assert "holds no config.json" in sentence(tiny.card)
