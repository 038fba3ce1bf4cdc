"""Published checkpoints whose network is one of timm's, under other names.

What lives here: per checkpoint the network and how its tensors are called there. What stays out: which tensors of a
file are the network's (its card: ``weights.prefix`` and ``weights.ignored``) and reading them (``tensors``).
Sources: RETFound, Zhou et al. (2023), doi:10.1038/s41586-023-06555-x, a masked autoencoder of He et al. (2022), whose
names timm shares; PanDerm, Yan et al. (2025), doi:10.1038/s41591-025-03747-y, with the attention biases of BEiT (Bao et
al., 2022); CheXzero, Tiu et al. (2022), doi:10.1038/s41551-022-00936-9, in the names of CLIP (Radford et al., 2021);
BioViL, Boecking et al. (2022), doi:10.1007/978-3-031-20059-5_1, in torchvision's names, which timm shares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

POSITION_TEMPERATURE = 10_000.0
"""Longest wavelength of the fixed position embedding, over 2 pi (Vaswani et al., 2017, section 3.5)."""

_CLIP_NAMES = (
    (r"^class_embedding$", "cls_token"),
    (r"^positional_embedding$", "pos_embed"),
    (r"^conv1\.", "patch_embed.proj."),
    (r"^ln_pre\.", "norm_pre."),
    (r"^ln_post\.", "norm."),
    (r"^transformer\.resblocks\.", "blocks."),
    (r"\.ln_(\d)\.", r".norm\1."),
    (r"\.in_proj_", ".qkv."),
    (r"\.out_proj\.", ".proj."),
    (r"\.c_fc\.", ".fc1."),
    (r"\.c_proj\.", ".fc2."),
)

Tensors = dict[str, "torch.Tensor"]


def openai_clip_names(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return the image tower of a checkpoint of OpenAI's CLIP under the names of timm's vision transformer."""
    renamed: Tensors = {}
    for name, tensor in tensors.items():
        for pattern, replacement in _CLIP_NAMES:
            name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    return renamed


def beit_names(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return a vision transformer with BEiT's attention biases and layer scales as timm's plain one.

    BEiT has a bias on queries and values and none on keys; the plain network has one tensor of all three, whose middle
    is 0. ``gamma_1`` and ``gamma_2`` are its layer scales. A file without the fixed position embedding gets it.
    """
    import torch

    renamed: Tensors = {}
    for name, tensor in tensors.items():
        if name.endswith(".attn.q_bias"):
            values = tensors.get(name.replace("q_bias", "v_bias"))
            if values is None:
                renamed[name] = tensor  # half a bias: left over
                continue
            renamed[name.replace("q_bias", "qkv.bias")] = torch.cat([tensor, torch.zeros_like(tensor), values])
        elif not (name.endswith(".attn.v_bias") and name.replace("v_bias", "q_bias") in tensors):
            renamed[re.sub(r"\.gamma_([12])$", r".ls\1.gamma", name)] = tensor
    if "pos_embed" not in renamed and "patch_embed.proj.weight" in renamed:
        width, _, px, _ = renamed["patch_embed.proj.weight"].shape
        renamed["pos_embed"] = sine_cosine_positions(PANDERM_PX // px, width)
    return renamed


def sine_cosine_positions(side: int, width: int) -> torch.Tensor:
    """Return the fixed position embedding of a square of patches, after a row of zeros for the class token.

    A quarter of the width each for sine and cosine of the slow index of a patch, then of the fast one; wavelengths
    from 2 pi to 2 pi times 10,000 (Chen, Xie and He, 2021, "An empirical study of training self-supervised vision
    transformers", section 5).

    Args:
        side: patches of a side.
        width: of a token, a multiple of 4.

    Returns:
        float32 (1, 1 + side^2, width).

    Example:
        >>> sine_cosine_positions(2, 4)[0, :2].tolist()
        [[0.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 1.0]]
    """
    import torch

    steps = torch.arange(side, dtype=torch.float32)
    first, second = torch.meshgrid(steps, steps, indexing="ij")
    omega = 1.0 / POSITION_TEMPERATURE ** (torch.arange(width // 4, dtype=torch.float32) / (width // 4))
    angles = [torch.outer(grid.flatten(), omega) for grid in (first, second)]
    table = torch.cat([part for angle in angles for part in (torch.sin(angle), torch.cos(angle))], dim=1)
    return torch.cat([torch.zeros(1, width), table])[None]


def same_names(tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Return the tensors as they are: the format has timm's names."""
    return dict(tensors)


PANDERM_PX = 224
"""Input of the network whose positions :func:`beit_names` fills in."""


@dataclass(frozen=True)
class TimmLayout:
    """One published format.

    Args:
        network: timm's name of the network.
        names: from the file's tensors to timm's.
        options: arguments of the network that differ from those of its name.
    """

    network: str
    names: Callable[[Mapping[str, torch.Tensor]], Tensors]
    options: Mapping[str, float] = field(default_factory=dict)


TIMM_LAYOUTS = {
    "checkpoints.retfound": TimmLayout("vit_large_patch16_224", same_names),
    "checkpoints.panderm": TimmLayout("vit_large_patch16_224", beit_names, {"init_values": 1.0}),
    "checkpoints.biovil": TimmLayout("resnet50", same_names),
    "checkpoints.chexzero": TimmLayout("vit_base_patch32_clip_quickgelu_224", openai_clip_names),
}
"""Loader of a card -> format."""
