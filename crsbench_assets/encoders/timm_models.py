"""Networks built by timm, with weights that are ours to name.

What lives here: building a network, loading its weights strictly, and reading one vector per image. What stays out:
formats of checkpoints (``checkpoints``), pooling (``pooling``), the untrained control's weights (``baselines``).
Source: Wightman, PyTorch Image Models, doi:10.5281/zenodo.4414861.

timm's own download is never used: the card names the file and its hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import timm
import torch
from timm.layers.norm_act import BatchNormAct2d
from timm.models.efficientnet import EfficientNet
from torch.nn.utils.fusion import fuse_conv_bn_eval

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.machine import torch_device
from crsbench_assets.encoders.checkpoints import packaged_checkpoint
from crsbench_assets.encoders.checkpoints.efficientnet_lite import BLOCKS_PER_STAGE, read_checkpoint, timm_state_dict
from crsbench_assets.encoders.pooling import pooled_features

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crsbench_assets.config.cards import Embedding, EncoderCard

SLICE = 8
"""Images of one pass on a processor. Measured on EfficientNet-Lite at 96 px and one thread, 8 is the fastest size, and
up to 8 every size gives the same bits; from 16 on oneDNN takes other kernels. So the caller's batch changes nothing."""


class TimmEncoder:
    """A network of timm and the output of it that is the image's vector.

    Args:
        network: with its weights, on the processor.
        embedding: which block is read, and how it is pooled.
        device: where the network runs.
    """

    def __init__(self, network: Any, embedding: Embedding, device: torch.device) -> None:
        self.dim = embedding.dim
        self.is_on_processor = device.type == "cpu"
        # on a processor, both together make convolutions nearly twice as fast; the vectors differ by rounding
        folded = with_folded_norms(network.eval().requires_grad_(False))
        self._network = folded.to(device, memory_format=torch.channels_last)
        self._embedding = embedding
        self._device = device

    def encode(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """See :class:`crsbench_assets.encoders.networks.ImageEncoder`."""
        n, step = len(batch), SLICE if self.is_on_processor else max(1, len(batch))
        parts = [self._encode(batch[start : start + step]) for start in range(0, n, step)]
        return np.concatenate(parts) if parts else np.zeros((0, self.dim), dtype=np.float32)

    def _encode(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        # TF32 keeps 10 bits of the mantissa, and a benchmarked algorithm may differ from one run to the next.
        if self.is_on_processor:
            torch.set_num_threads(1)  # with more, sums are made in another order: cores are used by several passes
        exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
        with torch.inference_mode(), exact:
            output = self._output(torch.tensor(np.ascontiguousarray(batch), device=self._device))
            n_prefix_tokens = getattr(self._network, "num_prefix_tokens", 0)
            pooled = pooled_features(output, self._embedding.pooling, n_prefix_tokens)
        vectors: NDArray[np.float32] = pooled.float().cpu().numpy()
        return vectors

    def _output(self, images: torch.Tensor) -> torch.Tensor:
        """Return the last feature map or tokens (normed as trained), or the feature map of the card's block."""
        block = self._embedding.block
        if block is None:
            last: torch.Tensor = self._network.forward_features(images)
            return last
        # Counted from the end, so that a stem that timm lists as the first intermediate does not shift the count.
        index = block - self._embedding.n_blocks - 1
        # timm lists only the last stage of each resolution of an EfficientNet unless it is asked for all seven.
        every_stage = {"extra_blocks": True} if isinstance(self._network, EfficientNet) else {}
        outputs: list[torch.Tensor] = self._network.forward_intermediates(
            images, indices=[index], stop_early=True, intermediates_only=True, **every_stage
        )
        return outputs[0]


def timm_encoder(card: EncoderCard, device: str) -> TimmEncoder:
    """Return the encoder of a card of kind ``timm``.

    Args:
        card: with ``weights``, ``preprocessing`` and ``embedding``.
        device: see :func:`crsbench_assets.config.machine.torch_device`.

    Raises:
        ConfigError: the loader or network is not available in this version, or the weights are not there.
    """
    assert card.weights is not None  # load_encoder looked
    loader, name = card.weights.loader, card.weights.hub_id
    if loader != "checkpoints.efficientnet_lite":
        raise ConfigError(
            f"encoder {card.id!r}: this version cannot load weights by loader {loader!r} yet; kind timm has "
            "'checkpoints.efficientnet_lite'."
        )
    if name not in BLOCKS_PER_STAGE:
        raise ConfigError(
            f"encoder {card.id!r}: weights.hub_id is {name!r}, and loader {loader!r} knows "
            f"{', '.join(BLOCKS_PER_STAGE)}: name one of them."
        )
    chosen = torch_device(device)
    weights = timm_state_dict(read_checkpoint(packaged_checkpoint(card)), name)
    return network_encoder(card, untrained_network(name), weights, chosen)


def network_encoder(
    card: EncoderCard, network: Any, weights: Mapping[str, torch.Tensor], device: torch.device
) -> TimmEncoder:
    """Return the encoder of a network after its weights are loaded, every one of them by name.

    Raises:
        ConfigError: the card counts other blocks than the network has, or reads one that is not there.
    """
    assert card.embedding is not None  # load_encoder looked
    n_blocks, block = len(network.blocks), card.embedding.block
    if card.embedding.n_blocks != n_blocks or (block is not None and block > n_blocks):
        raise ConfigError(
            f"encoder {card.id!r}: its network has {n_blocks} blocks, and its card has embedding.n_blocks "
            f"{card.embedding.n_blocks} and embedding.block {block}: correct the card."
        )
    try:
        network.load_state_dict(weights, strict=True)
    except RuntimeError as error:
        assert card.weights is not None  # load_encoder looked
        raise ConfigError(
            f"encoder {card.id!r}: the weights in {card.weights.file} are not those of {card.weights.hub_id} "
            f"({len(str(error).splitlines()) - 1} kind(s) of difference in names or shapes): correct weights.hub_id or "
            "weights.file."
        ) from None
    return TimmEncoder(network, card.embedding, device)


def untrained_network(name: str, **options: Any) -> Any:
    """Return a network of timm without classifier, whose weights are to be replaced.

    timm initialises it from torch's generator, which is set back.
    """
    with torch.random.fork_rng(devices=[]):
        return timm.create_model(name, pretrained=False, num_classes=0, **options)


def with_folded_norms(network: Any) -> Any:
    """Return a network in evaluation whose batch norms are part of the convolutions before them.

    A batch norm that is not trained is a scale and a shift per channel, which the convolution's weights can carry. The
    network is changed in place; one without such pairs stays as it is.
    """
    for module in list(network.modules()):
        before: tuple[str, Any] | None = None
        for name, child in list(module.named_children()):
            if isinstance(child, BatchNormAct2d) and before is not None and isinstance(before[1], torch.nn.Conv2d):
                setattr(module, before[0], fuse_conv_bn_eval(before[1], child))
                setattr(module, name, torch.nn.Sequential(child.drop, child.act))
            before = (name, child)
    return network
