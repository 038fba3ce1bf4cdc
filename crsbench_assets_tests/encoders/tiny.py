"""The 15 encoders of the catalogue, far smaller: random weights in the files that their authors publish.

Each has the names, prefixes, wrappers, classes and leftovers of the published file; only width and depth differ. The
network that the weights were taken from stays, so that its own feature call can be asked.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from safetensors.torch import save_file

from crsbench_assets.config.cards import EncoderCard, WeightsPlace
from crsbench_assets.config.registry import CATALOG
from crsbench_assets.config.yaml_files import read_yaml

VIT = {"embed_dim": 32, "depth": 4, "num_heads": 2}
RESNET = {"layers": (1, 1, 1, 1), "channels": (8, 16, 32, 64)}


@dataclass
class Tiny:
    """A card, the files of its weights in ``folder``, and the features of the network that they came from."""

    card: EncoderCard
    folder: Path
    features: Callable[[torch.Tensor], torch.Tensor]

    def changed(self, part: str, **fields: Any) -> EncoderCard:
        return self.card.model_copy(update={part: getattr(self.card, part).model_copy(update=fields)})

    def images(self, n: int = 3) -> np.ndarray:
        px = self.card.preprocessing.input_px
        return np.random.default_rng(0).standard_normal((n, 3, px, px)).astype(np.float32)


def catalogue_card(encoder_id: str) -> EncoderCard:
    return EncoderCard.model_validate(read_yaml(CATALOG / "encoders" / f"{encoder_id}.yaml"))


def tiny_card(encoder_id: str, folder: Path, *, px: int, dim: int, n_blocks: int, **weights: Any) -> EncoderCard:
    """Return the catalogue's card with other sizes, as a home at ``folder`` with the weights placed by hand has it."""
    card = catalogue_card(encoder_id)
    taps = tuple(-(-quarter * n_blocks // 4) for quarter in (1, 2, 3, 4))
    block = card.embedding.block and n_blocks - 1
    sizes = {"input_px": px, "resize_px": px}
    place = WeightsPlace(folder=str(folder), cache=str(folder.parent / f"{folder.name}_cache"))
    return card.model_copy(
        update={
            "weights": card.weights.model_copy(update={"sha256": None, "md5": None, **weights}),
            "preprocessing": card.preprocessing.model_copy(update=sizes),
            "embedding": card.embedding.model_copy(
                update={"dim": dim, "n_blocks": n_blocks, "depth_taps": taps, "block": block}
            ),
            "place": place,
        }
    )


def randomised(module: Any) -> Any:
    """Return a module in evaluation whose every number is random: an untrained norm or scale would hide mistakes."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if tensor.is_floating_point():
                spread = torch.randn(tensor.shape, generator=generator)
                tensor.copy_(0.01 + 0.1 * spread.abs() if "running_var" in name else 0.2 * spread)
    return module.eval()


def _timm(encoder_id: str, folder: Path, feature: str, **options: Any) -> Tiny:
    name = catalogue_card(encoder_id).weights.hub_id
    network = randomised(timm.create_model(name, pretrained=False, **options))
    save_file(network.state_dict(), folder / "model.safetensors")

    def features(images: torch.Tensor) -> torch.Tensor:
        tokens = network.forward_features(images)
        if feature == "pre_logits":
            return network.forward_head(tokens, pre_logits=True)
        return tokens[:, network.num_prefix_tokens :].mean(dim=1)

    stages = options.get("channels")
    dim, n_blocks = (stages[-1] * 4, 4) if stages else (options["embed_dim"], options["depth"])
    px = options.get("img_size", 64)
    kept = {key: value for key, value in options.items() if key != "num_classes"}
    card = tiny_card(encoder_id, folder, px=px, dim=dim, n_blocks=n_blocks, network_options=kept)
    return Tiny(card, folder, features)


def resnet50(folder: Path) -> Tiny:
    return _timm("resnet50", folder, "pre_logits", **RESNET)


def vit_b16_in21k(folder: Path) -> Tiny:
    return _timm("vit_b16_in21k", folder, "pre_logits", num_classes=50, img_size=64, **VIT)


def mae_vit_l16(folder: Path) -> Tiny:
    return _timm("mae_vit_l16", folder, "mean", img_size=64, **VIT)


def clip_vit_l14(folder: Path) -> Tiny:
    return _timm("clip_vit_l14", folder, "pre_logits", num_classes=24, img_size=56, **VIT)


def siglip_so400m(folder: Path) -> Tiny:
    return _timm("siglip_so400m", folder, "pre_logits", img_size=56, **VIT)


def dinov2_vit_l14(folder: Path) -> Tiny:
    return _timm("dinov2_vit_l14", folder, "pre_logits", img_size=56, **VIT)


def biomedclip(folder: Path) -> Tiny:
    trunk = randomised(timm.create_model("test_vit", num_classes=0))  # 160 px, width 64, 6 blocks
    state = {f"visual.trunk.{name}": tensor for name, tensor in trunk.state_dict().items()}
    state["visual.head.proj.weight"] = torch.randn(16, 64)
    state["text.transformer.embeddings.word_embeddings.weight"] = torch.randn(9, 8)
    state["text.proj.0.weight"] = torch.randn(4, 8)
    state["logit_scale"] = torch.tensor(1.0)
    torch.save(state, folder / "open_clip_pytorch_model.bin")
    vision = {"timm_model_name": "test_vit", "timm_model_pretrained": False, "timm_pool": "", "timm_proj": "linear"}
    config = {"model_cfg": {"embed_dim": 16, "vision_cfg": {**vision, "image_size": 160}, "text_cfg": {}}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    card = tiny_card("biomedclip", folder, px=160, dim=64, n_blocks=6)
    return Tiny(card, folder, lambda images: trunk.forward_head(trunk.forward_features(images), pre_logits=True))


SIGLIP = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2}
SIGLIP |= {"image_size": 56, "patch_size": 14}


def medsiglip(folder: Path) -> Tiny:
    from transformers import SiglipVisionConfig, SiglipVisionModel

    model = randomised(SiglipVisionModel(SiglipVisionConfig(**SIGLIP)))
    state = {f"vision_model.{name}": tensor for name, tensor in model.state_dict().items()}
    state["text_model.final_layer_norm.weight"] = torch.ones(8)
    state |= {"logit_scale": torch.ones(1), "logit_bias": torch.ones(1)}
    save_file(state, folder / "model.safetensors")
    config = {"model_type": "siglip", "vision_config": {"model_type": "siglip_vision_model", **SIGLIP}}
    (folder / "config.json").write_text(json.dumps(config))
    card = tiny_card("medsiglip", folder, px=56, dim=32, n_blocks=4)
    return Tiny(card, folder, lambda images: model(pixel_values=images).pooler_output)


def medgemma(folder: Path) -> Tiny:
    from transformers import SiglipVisionConfig, SiglipVisionModel

    model = randomised(SiglipVisionModel(SiglipVisionConfig(**SIGLIP, vision_use_head=False)))
    tower = {f"vision_tower.vision_model.{name}": tensor for name, tensor in model.state_dict().items()}
    names = sorted(tower)
    first = {name: tower[name] for name in names[:40]} | {"language_model.model.norm.weight": torch.ones(8)}
    second = {name: tower[name] for name in names[40:]} | {
        "multi_modal_projector.mm_soft_emb_norm.weight": torch.ones(8)
    }
    _sharded(folder, [first, second], elsewhere={"language_model.model.layers.0.mlp.up_proj.weight"})
    vision = {"model_type": "siglip_vision_model", "vision_use_head": False, **SIGLIP}
    config = {"model_type": "gemma3", "vision_config": vision, "text_config": {"model_type": "gemma3_text"}}
    (folder / "config.json").write_text(json.dumps(config))
    card = tiny_card("medgemma", folder, px=56, dim=32, n_blocks=4)
    return Tiny(card, folder, lambda images: model(pixel_values=images).last_hidden_state.mean(dim=1))


CLIP = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 2}
CLIP |= {"image_size": 56, "patch_size": 14}


def llava_med(folder: Path) -> Tiny:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    model = randomised(CLIPVisionModel(CLIPVisionConfig(**CLIP, hidden_act="quick_gelu")))
    prefix = "model.vision_tower.vision_tower.vision_model."
    state = {f"{prefix}{name}": tensor.bfloat16() for name, tensor in model.state_dict().items()}
    state[f"{prefix}embeddings.position_ids"] = torch.arange(17)[None]
    state["model.mm_projector.0.weight"] = torch.ones(4, 8)
    _sharded(folder, [state], elsewhere={"model.layers.0.mlp.up_proj.weight", "lm_head.weight"})
    rounded = {name: tensor.bfloat16().float() for name, tensor in model.state_dict().items()}
    model.load_state_dict(rounded)
    card = tiny_card("llava_med", folder, px=56, dim=32, n_blocks=4, network_options=CLIP)

    def features(images: torch.Tensor) -> torch.Tensor:
        return model(pixel_values=images, output_hidden_states=True).hidden_states[-2][:, 1:].mean(dim=1)

    return Tiny(card, folder, features)


def rad_dino(folder: Path) -> Tiny:
    from transformers import Dinov2Config, Dinov2Model

    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": 56, "patch_size": 14}
    model = randomised(Dinov2Model(Dinov2Config(**sizes)))
    older = {"q_proj": "attention.query", "k_proj": "attention.key", "v_proj": "attention.value"}
    older |= {"o_proj": "output.dense"}
    state = {}
    for name, tensor in model.state_dict().items():
        for now, then in older.items():
            name = name.replace(f".attention.{now}.", f".attention.{then}.")
        state[name] = tensor
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "dinov2", **sizes}))
    card = tiny_card("rad_dino", folder, px=56, dim=32, n_blocks=4)
    return Tiny(card, folder, lambda images: model(pixel_values=images).last_hidden_state[:, 0])


def retfound(folder: Path) -> Tiny:
    network = randomised(timm.create_model("vit_large_patch16_224", num_classes=0, img_size=64, **VIT))
    left = {"mask_token": torch.ones(1, 1, 8), "decoder_pos_embed": torch.ones(1, 17, 8)}
    left["decoder_blocks.0.norm1.weight"] = torch.ones(8)
    content = {"model": network.state_dict() | left, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}}}
    content |= {"epoch": 799, "args": argparse.Namespace(batch_size=64, model="mae_vit_large_patch16")}
    torch.save(content, folder / "RETFound_mae_natureCFP.pth")
    options = {**VIT, "img_size": 64}
    card = tiny_card("retfound", folder, px=64, dim=32, n_blocks=4, network_options=options)
    return Tiny(card, folder, lambda images: network.forward_features(images)[:, 1:].mean(dim=1))


def panderm(folder: Path) -> Tiny:
    from functools import partial

    from timm.models.beit import Beit

    network = randomised(
        Beit(
            img_size=64, patch_size=16, num_classes=0, qkv_bias=True, init_values=0.1, use_abs_pos_emb=True,
            use_rel_pos_bias=False, global_pool="token", norm_layer=partial(torch.nn.LayerNorm, eps=1e-6), **VIT
        )
    )  # fmt: skip
    state = {f"encoder.{name}": tensor for name, tensor in network.state_dict().items()}
    state |= {"mask_token": torch.ones(1, 1, 8), "encoder.rd_pos_embed": torch.ones(1, 16, 8)}
    state |= {"decoder.norm.weight": torch.ones(8), "regresser.norm.weight": torch.ones(8)}
    torch.save({"model": state}, folder / "panderm_ll_data6_checkpoint-499.pth")
    options = {**VIT, "img_size": 64}
    card = tiny_card("panderm", folder, px=64, dim=32, n_blocks=4, network_options=options)
    return Tiny(card, folder, lambda images: network.forward_features(images)[:, 0])


def biovil(folder: Path) -> Tiny:
    network = randomised(timm.create_model("resnet50", **RESNET))
    state = {f"encoder.encoder.{name}": tensor for name, tensor in network.state_dict().items()}
    state |= {
        "projector.model.0.weight": torch.ones(8, 256, 1, 1),
        "projector.model.1.num_batches_tracked": torch.tensor(3),
    }
    torch.save(state, folder / "biovil_image_resnet50_proj_size_128.pt")
    card = tiny_card("biovil", folder, px=64, dim=256, n_blocks=4, network_options=RESNET)
    return Tiny(card, folder, lambda images: network.forward_features(images).mean(dim=(2, 3)))


def chexzero(folder: Path) -> Tiny:
    from open_clip.transformer import QuickGELU, VisionTransformer

    sizes = {"image_size": 64, "patch_size": 32, "width": 32, "layers": 4, "heads": 2, "mlp_ratio": 4.0}
    visual = randomised(VisionTransformer(**sizes, output_dim=16, act_layer=QuickGELU))
    state = {f"visual.{name}": tensor for name, tensor in visual.state_dict().items()}
    state |= {"positional_embedding": torch.ones(7, 8), "text_projection": torch.ones(8, 16)}
    state |= {"transformer.resblocks.0.ln_1.weight": torch.ones(8), "token_embedding.weight": torch.ones(9, 8)}
    state |= {"ln_final.weight": torch.ones(8), "ln_final.bias": torch.ones(8), "logit_scale": torch.tensor(1.0)}
    torch.save(state, folder / "best_64_5e-05_original_22000_0.864.pt")
    options = {**VIT, "img_size": 64}
    card = tiny_card("chexzero", folder, px=64, dim=32, n_blocks=4, network_options=options)

    def features(images: torch.Tensor) -> torch.Tensor:
        tokens = visual.transformer(visual._embeds(images))
        return visual.ln_post(tokens)[:, 0]

    return Tiny(card, folder, features)


def _sharded(folder: Path, shards: list[dict[str, torch.Tensor]], elsewhere: set[str]) -> None:
    """Write shards and their index; the last shard, of the language model alone, is named and not there."""
    count = len(shards) + 1
    names = [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    index = dict.fromkeys(elsewhere, names[-1])
    for name, shard in zip(names, shards, strict=False):
        save_file(shard, folder / name)
        index |= dict.fromkeys(shard, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


MAKERS = {
    maker.__name__: maker
    for maker in (
        resnet50, vit_b16_in21k, mae_vit_l16, clip_vit_l14, siglip_so400m, dinov2_vit_l14, biomedclip, medsiglip,
        medgemma, llava_med, panderm, retfound, rad_dino, biovil, chexzero,
    )
}  # fmt: skip
