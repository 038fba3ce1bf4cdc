"""Encoders that are not in the catalogue: by a card alone, whatever the library."""

from __future__ import annotations

import json
import sys

import numpy as np
import open_clip
import pytest
import timm
import torch
from safetensors.torch import save_file

from crsbench_assets.config.cards import EncoderCard
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.encoders.networks import load_encoder
from crsbench_assets_tests.encoders.tiny import CLIP, SIGLIP, randomised


def card(folder, kind, weights, embedding, px):
    return EncoderCard.model_validate(
        {
            "id": "mine",
            "name": "Mine",
            "kind": kind,
            "category": "generalist",
            "weights": weights,
            "place": {"named": str(folder), "folder": str(folder / "none"), "cache": str(folder / "cache")},
            "preprocessing": {
                "input_px": px,
                "resize_px": px,
                "resize_mode": "squash",
                "crop": "none",
                "interpolation": "bicubic",
                "antialias": True,
                "mean": (0.5, 0.5, 0.5),
                "std": (0.5, 0.5, 0.5),
            },
            "embedding": embedding,
        }
    )


def images(px, n=3):
    return np.random.default_rng(1).standard_normal((n, 3, px, px)).astype(np.float32)


def compare(found, batch, expected):
    with torch.inference_mode():
        own = expected(torch.from_numpy(batch)).numpy()
    vectors = found.encode(batch)
    assert vectors.shape == own.shape
    np.testing.assert_allclose(vectors, own, rtol=0, atol=1e-5 * max(1.0, np.abs(own).max()))
    assert np.abs(own[0] - own[1]).max() > 1e-3


@pytest.mark.parametrize(
    ("name", "pooling", "dim", "n_blocks"),
    [
        ("test_vit", "cls", 64, 6),
        ("test_vit2", "mean_patches", 64, 8),
        ("test_convnext", "gap", 64, 4),
        ("test_resnet", "gap", 96, 4),
        ("test_efficientnet", "gap", 256, 5),
    ],
)
def test_networks_of_timm(tmp_path, name, pooling, dim, n_blocks):
    network = randomised(timm.create_model(name, num_classes=0))
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    embedding = {"pooling": pooling, "dim": dim, "n_blocks": n_blocks, "depth_taps": (1, 2, n_blocks - 1, n_blocks)}
    mine = card(tmp_path, "timm", {"loader": "timm", "hub_id": f"timm/{name}.r160_in1k"}, embedding, 160)
    encoder = load_encoder(mine)

    def own(batch):
        output = network.forward_features(batch)
        if output.ndim == 4:
            return output.mean(dim=(2, 3))
        return output[:, 0] if pooling == "cls" else output[:, network.num_prefix_tokens :].mean(dim=1)

    batch = images(160)
    compare(encoder, batch, own)
    vectors, *depths = encoder.encode_depths(batch)
    np.testing.assert_allclose(vectors, encoder.encode(batch), rtol=0, atol=1e-5 * max(1.0, np.abs(vectors).max()))
    with torch.inference_mode():
        assert [d.shape[0] for d in depths] == [3] * 4


def test_the_projection_of_a_network_of_timm(tmp_path):
    options = {"embed_dim": 32, "depth": 2, "num_heads": 2, "img_size": 64}
    network = randomised(timm.create_model("vit_base_patch32_clip_224", num_classes=24, **options))
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    weights = {"loader": "timm", "hub_id": "vit_base_patch32_clip_224.openai", "network_options": options}
    compare(load_encoder(card(tmp_path, "timm", weights, {"pooling": "projected", "dim": 24, "n_blocks": 2}, 64)),
            images(64), network)  # fmt: skip


def test_another_input_than_the_weights_have_resamples_positions_as_timm_does(tmp_path):
    network = randomised(timm.create_model("test_vit", num_classes=0))
    save_file(network.state_dict(), tmp_path / "model.safetensors")
    mine = card(
        tmp_path, "timm", {"loader": "timm", "hub_id": "test_vit"}, {"pooling": "cls", "dim": 64, "n_blocks": 6}, 96
    )
    network.set_input_size(img_size=(96, 96))
    compare(load_encoder(mine), images(96), lambda batch: network.forward_features(batch)[:, 0])


VISION = {"image_size": 64, "layers": 3, "width": 32, "head_width": 16, "patch_size": 32}
TEXT = {"context_length": 7, "vocab_size": 50, "width": 16, "heads": 2, "layers": 1}


@pytest.mark.parametrize(("pooling", "dim"), [("cls", 32), ("mean_patches", 32), ("projected", 24)])
def test_a_repository_of_open_clip(tmp_path, pooling, dim):
    config = {"embed_dim": 24, "quick_gelu": True, "vision_cfg": VISION, "text_cfg": TEXT}
    model = randomised(open_clip.CLIP(24, VISION, TEXT, quick_gelu=True))
    save_file(model.state_dict(), tmp_path / "open_clip_model.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    weights = {"loader": "open_clip", "hub_id": "me/mine", "file": "open_clip_model.safetensors"}
    embedding = {"pooling": pooling, "dim": dim, "n_blocks": 3, "depth_taps": (1, 2, 3, 3)}
    encoder = load_encoder(card(tmp_path, "open_clip", weights, embedding, 64))

    def own(batch):
        if pooling == "projected":
            return model.encode_image(batch)
        tokens = model.visual.ln_post(model.visual.transformer(model.visual._embeds(batch)))
        return tokens[:, 0] if pooling == "cls" else tokens[:, 1:].mean(dim=1)

    compare(encoder, images(64), own)
    vectors, *depths = encoder.encode_depths(images(64))
    if pooling != "projected":
        np.testing.assert_allclose(depths[-1], vectors, rtol=0, atol=1e-5)


def test_a_trunk_of_timm_with_the_projection_of_open_clip(tmp_path):
    vision = {"timm_model_name": "test_vit", "timm_pool": "", "timm_proj": "linear", "image_size": 160}
    model = randomised(open_clip.CLIP(24, vision, TEXT))
    save_file(model.state_dict(), tmp_path / "open_clip_model.safetensors")
    config = {"embed_dim": 24, "vision_cfg": vision, "text_cfg": TEXT}
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    weights = {"loader": "open_clip", "hub_id": "me/mine", "file": "open_clip_model.safetensors"}
    embedding = {"pooling": "projected", "dim": 24, "n_blocks": 6}
    compare(load_encoder(card(tmp_path, "open_clip", weights, embedding, 160)), images(160), model.encode_image)


def test_a_network_that_open_clip_knows_and_one_that_it_does_not(tmp_path):
    (tmp_path / "open_clip_model.safetensors").write_bytes(b"")
    weights = {"loader": "open_clip", "network": "ViT-nothing", "file": "open_clip_model.safetensors"}
    with pytest.raises(ConfigError, match=r"has no image tower ViT-nothing: correct weights\.network"):
        load_encoder(card(tmp_path, "open_clip", weights, {"pooling": "cls", "dim": 8, "n_blocks": 1}, 64))
    with pytest.raises(ConfigError, match=r"towers of open_clip's ModifiedResNet cannot be read"):
        load_encoder(card(tmp_path, "open_clip", {**weights, "network": "RN50"},
                          {"pooling": "cls", "dim": 8, "n_blocks": 1}, 64))  # fmt: skip


@pytest.mark.parametrize("name", ["vit", "clip_vision_model", "dinov2_with_registers", "siglip_vision_model"])
def test_vision_models_of_transformers(tmp_path, name):
    from transformers import AutoConfig

    from crsbench_assets.encoders.transformer_models import model_class

    sizes = {"vit": CLIP, "clip_vision_model": CLIP, "siglip_vision_model": SIGLIP}.get(name, CLIP | {"mlp_ratio": 2})
    config = AutoConfig.for_model(name, **sizes)
    made = model_class(config)
    model = randomised(made(config, add_pooling_layer=False) if name == "vit" else made(config))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": name, **sizes}))
    pooling = "map" if name.startswith("siglip") else "cls"
    embedding = {"pooling": pooling, "dim": 32, "n_blocks": 4, "depth_taps": (1, 2, 3, 4)}
    encoder = load_encoder(card(tmp_path, "transformers", {"loader": "transformers", "hub_id": "a/b"}, embedding, 56))

    def own(batch):
        output = model(pixel_values=batch)
        return output.last_hidden_state[:, 0] if name == "vit" else output.pooler_output

    compare(encoder, images(56), own)
    n_prefix = {"siglip_vision_model": 0, "dinov2_with_registers": 5}.get(name, 1)
    mean = card(tmp_path, "transformers", {"loader": "transformers", "hub_id": "a/b"},
                {**embedding, "pooling": "mean_patches"}, 56)  # fmt: skip

    def patches(batch):
        tokens = model(pixel_values=batch).last_hidden_state[:, n_prefix:]
        return (model.post_layernorm(tokens) if name == "clip_vision_model" else tokens).mean(dim=1)

    compare(load_encoder(mean), images(56), patches)


def test_a_class_of_an_installed_package(tmp_path, monkeypatch):
    (tmp_path / "my_encoders.py").write_text(
        "import numpy as np\n"
        "class Mean:\n"
        "    dim, is_on_processor = 3, True\n"
        "    def __init__(self, card, device):\n"
        "        self.card = card\n"
        "    def encode(self, batch):\n"
        "        return batch.mean(axis=(2, 3))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    embedding = {"pooling": "gap", "dim": 3, "n_blocks": 1}
    mine = card(tmp_path, "module", {"loader": "my_encoders:Mean"}, embedding, 32)
    assert mine.weights.is_loadable
    compare(load_encoder(mine), images(32), lambda batch: batch.mean(dim=(2, 3)))
    with pytest.raises(ConfigError, match=r"the module my_encoders has no Median: correct weights\.loader"):
        load_encoder(card(tmp_path, "module", {"loader": "my_encoders:Median"}, embedding, 32))
    with pytest.raises(ConfigError, match="needs the package nowhere_installed"):
        load_encoder(card(tmp_path, "module", {"loader": "nowhere_installed:X"}, embedding, 32))
    monkeypatch.delitem(sys.modules, "my_encoders")


def test_fields_that_were_added_later_leave_the_recorded_content_of_an_id_alone(tmp_path):
    plain = card(
        tmp_path, "timm", {"loader": "timm", "hub_id": "test_vit"}, {"pooling": "cls", "dim": 64, "n_blocks": 6}, 96
    )
    later = {"prefix", "ignored", "network", "network_options", "repository", "allowed_globals", "differs_from"}
    assert not later & plain.identity["weights"].keys()
    assert "then_interpolation" not in plain.identity["preprocessing"]
    assert "place" not in plain.identity
    named = plain.model_copy(update={"weights": plain.weights.model_copy(update={"prefix": "encoder."})})
    assert named.identity["weights"]["prefix"] == "encoder."
    assert EncoderCard.model_validate(json.loads(json.dumps(named.model_dump(mode="json")))) == named
