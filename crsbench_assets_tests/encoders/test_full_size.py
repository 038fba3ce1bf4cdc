"""The networks at full size, on the meta device: exactly the tensors of the published architecture, and their number.

The expected names and shapes are written out from the architecture (width, depth, patch, input), apart from the
libraries; for ResNet-50 they are torchvision's. The numbers of parameters are those of the image towers.
"""

from __future__ import annotations

import json
from math import prod

import pytest
import timm
import torch
import torchvision

from crsbench_assets.encoders.checkpoints.timm_layouts import beit_names, openai_clip_names
from crsbench_assets.encoders.open_clip_models import open_clip_tower
from crsbench_assets.encoders.timm_models import timm_network
from crsbench_assets.encoders.transformer_models import model_class, vision_config
from crsbench_assets.encoders.weights import hub_repository
from crsbench_assets_tests.encoders.tiny import catalogue_card

N_PARAMETERS = {
    "resnet50": 23_508_032,
    "vit_b16_in21k": 85_798_656,
    "mae_vit_l16": 303_301_632,
    "clip_vit_l14": 303_179_776,
    "siglip_so400m": 428_225_600,
    "dinov2_vit_l14": 304_367_616,
    "biomedclip": 85_798_656 + 768 * 512,
    "medsiglip": 428_225_600 + (32**2 - 27**2) * 1152,  # 1,024 positions at 448 px instead of 729 at 384
    "medgemma": 428_225_600 + (64**2 - 27**2) * 1152 - 15_238_352,  # 4,096 positions, no attention pooling
    "llava_med": 303_507_456,
    "panderm": 303_350_784,
    "retfound": 303_301_632,
    "rad_dino": 86_580_480,  # with the mask token, which no output passes
    "biovil": 23_508_032,
    "chexzero": 87_456_000,
}


def linear(name, n_out, n_in, *, has_bias=True):
    return {f"{name}.weight": (n_out, n_in)} | ({f"{name}.bias": (n_out,)} if has_bias else {})


def norm(name, width):
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def timm_vit(width, depth, hidden, px, patch, *, has_class=True, has_pre_norm=False, has_scale=False):
    """Return the tensors of timm's vision transformer without classifier."""
    n_tokens = (px // patch) ** 2 + has_class
    shapes = {"pos_embed": (1, n_tokens, width), "patch_embed.proj.weight": (width, 3, patch, patch)}
    if has_class:
        shapes["cls_token"] = (1, 1, width)
    if not has_pre_norm:  # a norm after the patches takes the place of their bias
        shapes["patch_embed.proj.bias"] = (width,)
    shapes |= norm("norm_pre", width) if has_pre_norm else {}
    for i in range(depth):
        block = f"blocks.{i}"
        shapes |= norm(f"{block}.norm1", width) | norm(f"{block}.norm2", width)
        shapes |= linear(f"{block}.attn.qkv", 3 * width, width) | linear(f"{block}.attn.proj", width, width)
        shapes |= linear(f"{block}.mlp.fc1", hidden, width) | linear(f"{block}.mlp.fc2", width, hidden)
        shapes |= {f"{block}.ls{j}.gamma": (width,) for j in (1, 2)} if has_scale else {}
    return shapes | norm("norm", width)


def timm_map_head(width, hidden):
    shapes = {"attn_pool.latent": (1, 1, width)} | linear("attn_pool.q", width, width)
    shapes |= linear("attn_pool.kv", 2 * width, width) | linear("attn_pool.proj", width, width)
    shapes |= norm("attn_pool.norm", width)
    return shapes | linear("attn_pool.mlp.fc1", hidden, width) | linear("attn_pool.mlp.fc2", width, hidden)


def transformers_siglip(px, *, has_head):
    width, hidden, depth = 1152, 4304, 27
    shapes = {"embeddings.patch_embedding.weight": (width, 3, 14, 14), "embeddings.patch_embedding.bias": (width,)}
    shapes["embeddings.position_embedding.weight"] = ((px // 14) ** 2, width)
    shapes |= transformers_blocks(width, depth, hidden) | norm("post_layernorm", width)
    if has_head:
        shapes |= {"head.probe": (1, 1, width), "head.attention.in_proj_weight": (3 * width, width)}
        shapes |= {"head.attention.in_proj_bias": (3 * width,)} | linear("head.attention.out_proj", width, width)
        shapes |= norm("head.layernorm", width)
        shapes |= linear("head.mlp.fc1", hidden, width) | linear("head.mlp.fc2", width, hidden)
    return shapes


def transformers_clip():
    width = 1024
    shapes = {"embeddings.class_embedding": (width,), "embeddings.patch_embedding.weight": (width, 3, 14, 14)}
    shapes["embeddings.position_embedding.weight"] = (24**2 + 1, width)
    shapes |= norm("pre_layrnorm", width) | norm("post_layernorm", width)
    return shapes | transformers_blocks(width, 24, 4096)


def transformers_blocks(width, depth, hidden):
    shapes = {}
    for i in range(depth):
        block = f"encoder.layers.{i}"
        shapes |= norm(f"{block}.layer_norm1", width) | norm(f"{block}.layer_norm2", width)
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= linear(f"{block}.self_attn.{name}", width, width)
        shapes |= linear(f"{block}.mlp.fc1", hidden, width) | linear(f"{block}.mlp.fc2", width, hidden)
    return shapes


def transformers_dinov2(width, depth, px):
    shapes = {"embeddings.cls_token": (1, 1, width), "embeddings.mask_token": (1, width)}
    shapes["embeddings.position_embeddings"] = (1, (px // 14) ** 2 + 1, width)
    shapes["embeddings.patch_embeddings.projection.weight"] = (width, 3, 14, 14)
    shapes["embeddings.patch_embeddings.projection.bias"] = (width,)
    for i in range(depth):
        block = f"encoder.layer.{i}"
        shapes |= norm(f"{block}.norm1", width) | norm(f"{block}.norm2", width)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            shapes |= linear(f"{block}.attention.{name}", width, width)
        shapes |= linear(f"{block}.mlp.fc1", 4 * width, width) | linear(f"{block}.mlp.fc2", width, 4 * width)
        shapes |= {f"{block}.layer_scale{j}.lambda1": (width,) for j in (1, 2)}
    return shapes | norm("layernorm", width)


def resnet():
    with torch.device("meta"):
        state = torchvision.models.resnet50().state_dict()
    return {name: tuple(tensor.shape) for name, tensor in state.items() if not name.startswith("fc.")}


EXPECTED = {
    "resnet50": resnet,
    "biovil": resnet,
    "vit_b16_in21k": lambda: timm_vit(768, 12, 3072, 224, 16),
    "mae_vit_l16": lambda: timm_vit(1024, 24, 4096, 224, 16),
    "retfound": lambda: timm_vit(1024, 24, 4096, 224, 16),
    "panderm": lambda: timm_vit(1024, 24, 4096, 224, 16, has_scale=True),
    "clip_vit_l14": lambda: timm_vit(1024, 24, 4096, 224, 14, has_pre_norm=True),
    "chexzero": lambda: timm_vit(768, 12, 3072, 224, 32, has_pre_norm=True),
    "dinov2_vit_l14": lambda: timm_vit(1024, 24, 4096, 518, 14, has_scale=True),
    "siglip_so400m": lambda: timm_vit(1152, 27, 4304, 384, 14, has_class=False) | timm_map_head(1152, 4304),
    "biomedclip": lambda: (
        {f"trunk.{name}": shape for name, shape in timm_vit(768, 12, 3072, 224, 16).items()}
        | linear("head.proj", 512, 768, has_bias=False)
    ),
    "medsiglip": lambda: transformers_siglip(448, has_head=True),
    "medgemma": lambda: transformers_siglip(896, has_head=False),
    "llava_med": transformers_clip,
    "rad_dino": lambda: transformers_dinov2(768, 12, 518),
}

SO400M = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
SO400M |= {"patch_size": 14, "model_type": "siglip_vision_model"}
BIOMEDCLIP = {"timm_model_name": "vit_base_patch16_224", "timm_pool": "", "timm_proj": "linear", "image_size": 224}
CONFIGS = {
    "biomedclip": {"model_cfg": {"embed_dim": 512, "vision_cfg": BIOMEDCLIP, "text_cfg": {}}},
    "medsiglip": {"model_type": "siglip", "vision_config": {**SO400M, "image_size": 448}},
    "medgemma": {"model_type": "gemma3", "vision_config": {**SO400M, "image_size": 896, "vision_use_head": False}},
    "rad_dino": {"model_type": "dinov2", "hidden_size": 768, "image_size": 518, "patch_size": 14},
}
"""What the repositories' own configurations say of the image tower."""


def network(encoder_id, tmp_path):
    card = catalogue_card(encoder_id)
    config = None
    if encoder_id in CONFIGS:
        config = tmp_path / "config.json"
        config.write_text(json.dumps(CONFIGS[encoder_id]))
    with torch.device("meta"):
        if card.weights.loader == "open_clip":
            return open_clip_tower(card, config)
        if card.weights.loader in ("transformers", "checkpoints.llava_med"):
            found = vision_config(card, config)
            return model_class(found)(found)
        return timm_network(card)


@pytest.mark.parametrize("encoder_id", N_PARAMETERS)
def test_tensors_of_the_published_architecture(encoder_id, tmp_path):
    found = network(encoder_id, tmp_path)
    shapes = {name: tuple(tensor.shape) for name, tensor in found.state_dict().items()}
    assert shapes == EXPECTED[encoder_id]()
    assert all(tensor.is_meta for tensor in found.state_dict().values())
    assert sum(parameter.numel() for parameter in found.parameters()) == N_PARAMETERS[encoder_id]


POOLINGS = {"token": "cls", "map": "map", "avg": "gap"}

OURS = {
    ("mae_vit_l16", "pooling"): "a masked autoencoder's class token is a weak linear feature",
    ("siglip_so400m", "resize_px"): "the authors squash; timm's configuration crops a tenth away",
    ("clip_vit_l14", "licence"): "timm states its default; OpenAI's repository is under MIT",
}
"""Where a card says something else than timm, and why."""


@pytest.mark.parametrize(
    "encoder_id", ["resnet50", "vit_b16_in21k", "mae_vit_l16", "clip_vit_l14", "siglip_so400m", "dinov2_vit_l14"]
)
def test_a_card_says_what_timm_says_of_its_weights(encoder_id, tmp_path):
    card, said = catalogue_card(encoder_id), timm.get_pretrained_cfg(catalogue_card(encoder_id).weights.hub_id)
    found = network(encoder_id, tmp_path)
    given = card.preprocessing
    ours = {
        "repository": hub_repository(card.weights),
        "input_px": given.input_px,
        "resize_px": given.resize_px,
        "interpolation": given.interpolation,
        "mean": given.mean,
        "std": given.std,
        "licence": card.licence,
        "dim": card.embedding.dim,
        "pooling": card.embedding.pooling,
        "has_classifier": any(pattern.startswith(("head", "fc")) for pattern in card.weights.ignored),
    }
    theirs = {
        "repository": said.hf_hub_id,
        "input_px": said.input_size[-1],
        "resize_px": int(said.input_size[-1] / said.crop_pct),
        "interpolation": said.interpolation,
        "mean": said.mean,
        "std": said.std,
        "licence": said.license,
        "dim": found.num_features,
        "pooling": POOLINGS[found.global_pool if hasattr(found, "blocks") else "avg"],
        "has_classifier": said.num_classes > 0,
    }
    assert said.hf_hub_filename is None, "then the file has the usual name"
    assert {name for name in ours if ours[name] != theirs[name]} == {key for card_id, key in OURS if card_id == card.id}


def test_the_pooling_head_of_so400m():
    # Probe 1152; q, k, v and out each 1152 x 1152 + 1152; norm 2 x 1152; MLP 1152 x 4304 twice with 4304 + 1152.
    shapes = timm_map_head(1152, 4304)
    by_hand = 1152 + 4 * (1152**2 + 1152) + 2 * 1152 + 2 * 1152 * 4304 + 4304 + 1152
    assert sum(prod(shape) for shape in shapes.values()) == by_hand == 15_238_352


def test_published_names_become_the_networks_one_to_one():
    width, depth = 1024, 24
    beit = {"cls_token": (1, 1, width), "pos_embed": (1, 197, width), "patch_embed.proj.weight": (width, 3, 16, 16)}
    beit |= {"patch_embed.proj.bias": (width,)} | norm("norm", width)
    for i in range(depth):
        block = f"blocks.{i}"
        beit |= norm(f"{block}.norm1", width) | norm(f"{block}.norm2", width)
        beit |= {f"{block}.attn.qkv.weight": (3 * width, width), f"{block}.gamma_1": (width,)}
        beit |= {f"{block}.gamma_2": (width,), f"{block}.attn.q_bias": (width,), f"{block}.attn.v_bias": (width,)}
        beit |= linear(f"{block}.attn.proj", width, width)
        beit |= linear(f"{block}.mlp.fc1", 4096, width) | linear(f"{block}.mlp.fc2", width, 4096)
    assert len(beit) == 366
    renamed = beit_names({name: torch.empty(shape, device="meta") for name, shape in beit.items()})
    assert {name: tuple(tensor.shape) for name, tensor in renamed.items()} == EXPECTED["panderm"]()
    assert len(renamed) == 342

    width = 768
    clip = {"class_embedding": (width,), "positional_embedding": (50, width), "conv1.weight": (width, 3, 32, 32)}
    clip |= norm("ln_pre", width) | norm("ln_post", width)
    for i in range(12):
        block = f"transformer.resblocks.{i}"
        clip |= norm(f"{block}.ln_1", width) | norm(f"{block}.ln_2", width)
        clip |= {f"{block}.attn.in_proj_weight": (3 * width, width), f"{block}.attn.in_proj_bias": (3 * width,)}
        clip |= linear(f"{block}.attn.out_proj", width, width)
        clip |= linear(f"{block}.mlp.c_fc", 3072, width) | linear(f"{block}.mlp.c_proj", width, 3072)
    renamed = openai_clip_names({name: torch.empty(shape, device="meta") for name, shape in clip.items()})
    expected = EXPECTED["chexzero"]()
    assert {name: tensor.numel() for name, tensor in renamed.items()} == {n: prod(s) for n, s in expected.items()}
