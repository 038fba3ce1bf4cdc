"""EfficientNet-Lite weights in the names of the efficientnet_pytorch package.

What lives here: how the tensors of such a checkpoint are called in timm's network. What stays out: where the file
lies (``checkpoints``) and the network (``timm_models``).
Source: Tan and Le (2019), "EfficientNet: rethinking model scaling for convolutional neural networks", table 1, in the
Lite form of Google's reference code (``models/official/efficientnet/lite`` of tensorflow/tpu): no squeeze-and-excite,
ReLU6, stem, head, first and last stage not scaled. The files are conversions of Google's ImageNet weights.

A checkpoint numbers all blocks in one row (``_blocks.8``); timm numbers stages, and blocks within a stage
(``blocks.4.0``). Both count batch norms within a block from its first one, 0 there and 1 here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

BLOCKS_PER_STAGE = {
    "tf_efficientnet_lite0": (1, 2, 2, 3, 3, 4, 1),
    "tf_efficientnet_lite1": (1, 3, 3, 4, 4, 5, 1),
    "tf_efficientnet_lite2": (1, 3, 3, 4, 4, 5, 1),
}
"""Blocks of the seven stages: ceil(depth coefficient x repeats of EfficientNet-B0), except in the first and last."""

_AROUND_BLOCKS = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}

_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
"""The first block does not expand, so it has no ``_bn0``."""

_OTHER_BLOCKS = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}

_CLASSIFIER = ("_fc.weight", "_fc.bias")
"""Dropped: the embedding is what the classifier reads."""


def timm_names(blocks_per_stage: Sequence[int]) -> dict[str, str]:
    """Return timm's name of every module that holds tensors, by its name in the checkpoint.

    Args:
        blocks_per_stage: blocks of each stage, from the stem to the head.

    Returns:
        Checkpoint module -> timm module, one to one.

    Example:
        >>> names = timm_names((1, 2))
        >>> names["_conv_stem"], names["_blocks.0._bn1"], names["_blocks.2._bn1"]
        ('conv_stem', 'blocks.0.0.bn1', 'blocks.1.1.bn2')
    """
    names = dict(_AROUND_BLOCKS)
    places = [(stage, i) for stage, count in enumerate(blocks_per_stage) for i in range(count)]
    for number, (stage, i) in enumerate(places):
        parts = _FIRST_BLOCK if number == 0 else _OTHER_BLOCKS
        names |= {f"_blocks.{number}.{theirs}": f"blocks.{stage}.{i}.{ours}" for theirs, ours in parts.items()}
    return names


def timm_state_dict(checkpoint: Mapping[str, torch.Tensor], model_name: str) -> dict[str, torch.Tensor]:
    """Return a checkpoint's tensors under timm's names, without the classifier.

    Args:
        checkpoint: tensors by the checkpoint's names.
        model_name: timm's name of the network, a key of :data:`BLOCKS_PER_STAGE`.

    Raises:
        KeyError: a tensor whose module is not one of such a network.
    """
    names = timm_names(BLOCKS_PER_STAGE[model_name])
    renamed = {}
    for key, tensor in checkpoint.items():
        if key not in _CLASSIFIER:
            module, _, tensor_name = key.rpartition(".")
            renamed[f"{names[module]}.{tensor_name}"] = tensor
    return renamed


def read_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a checkpoint by its own names; no code of the file runs."""
    import torch

    tensors: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return tensors
