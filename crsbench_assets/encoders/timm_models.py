"""Networks built by timm, with weights that are ours to name.

What lives here: building a network, loading its weights strictly, and reading its outputs. What stays out: where the
files lie (``weights``), what they hold (``checkpoints``), the pass and its poolings (``forward``), the untrained
control's weights (``baselines``).
Source: Wightman, PyTorch Image Models, doi:10.5281/zenodo.4414861.

timm's own download is never used: files are found first, and every tensor is loaded by name.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import timm
import torch
from timm.layers.norm_act import BatchNormAct2d
from timm.models.efficientnet import EfficientNet
from torch.nn.utils.fusion import fuse_conv_bn_eval

from crsbench_assets.config.errors import ConfigError, reason_of
from crsbench_assets.config.machine import torch_device
from crsbench_assets.encoders.checkpoints.efficientnet_lite import BLOCKS_PER_STAGE, read_checkpoint, timm_state_dict
from crsbench_assets.encoders.checkpoints.tensors import load_strictly, network_tensors
from crsbench_assets.encoders.checkpoints.timm_layouts import TIMM_LAYOUTS
from crsbench_assets.encoders.forward import NetworkEncoder
from crsbench_assets.encoders.pooling import PoolingError
from crsbench_assets.encoders.weights import local_weights

if TYPE_CHECKING:
    from crsbench_assets.config.cards import EncoderCard, WeightsSource

OWN_WEIGHTS = {"cache_dir", "checkpoint_path", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"}
"""Arguments by which timm reads or downloads weights."""


class TimmTower:
    """A network of timm; see :class:`crsbench_assets.encoders.forward.Tower`.

    Args:
        network: on the processor, in evaluation or not.
    """

    def __init__(self, network: Any) -> None:
        # on a processor, a third of the time of convolutions goes into norms; the vectors differ by rounding
        self.module = with_folded_norms(network.eval())
        self.n_prefix_tokens = int(getattr(network, "num_prefix_tokens", 0))
        self.has_tokens = "return_prefix_tokens" in inspect.signature(network.forward_intermediates).parameters
        blocks = getattr(network, "blocks", None)
        self.n_blocks = len(blocks) if blocks is not None else len(network.feature_info)
        if blocks is None and network.feature_info[0]["reduction"] == 2:
            self.n_blocks -= 1  # the stem is listed as well

    def outputs(self, images: torch.Tensor, blocks: Sequence[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """See :class:`crsbench_assets.encoders.forward.Tower`."""
        if not blocks:
            return self._in_order(self.module.forward_features(images)), []
        # Counted from the end, so that a stem that timm lists as the first intermediate does not shift the count.
        indices = [block - self.n_blocks - 1 for block in blocks]
        if self.has_tokens:
            last, found = self.module.forward_intermediates(
                images, indices=indices, stop_early=True, return_prefix_tokens=True, output_fmt="NLC"
            )
            if self.n_prefix_tokens:
                found = [torch.cat([prefix, patches], dim=1) for patches, prefix in found]
            return last, list(found)
        # timm lists only the last stage of each resolution of an EfficientNet unless it is asked for all seven.
        every_stage = {"extra_blocks": True} if isinstance(self.module, EfficientNet) else {}
        last, found = self.module.forward_intermediates(images, indices=indices, stop_early=True, **every_stage)
        return self._in_order(last), list(found)

    def normed(self, tokens: torch.Tensor) -> torch.Tensor:
        """See :class:`crsbench_assets.encoders.forward.Tower`."""
        found: torch.Tensor = self.module.norm(tokens)
        return found

    def head(self, last: torch.Tensor, pooling: str) -> torch.Tensor:
        """See :class:`crsbench_assets.encoders.forward.Tower`."""
        if pooling == "map" and getattr(self.module, "attn_pool", None) is None:
            raise PoolingError(f"pooling {pooling} does not exist for a network without attention pooling")
        found: torch.Tensor = self.module.forward_head(last, pre_logits=pooling == "map")
        return found

    def _in_order(self, output: torch.Tensor) -> torch.Tensor:
        """Return a feature map with its channels first."""
        is_last = output.ndim == 4 and getattr(self.module, "output_fmt", "NCHW") == "NHWC"
        return output.permute(0, 3, 1, 2) if is_last else output


def timm_encoder(card: EncoderCard, device: str) -> NetworkEncoder:
    """Return the encoder of a card whose network is one of timm's.

    Args:
        card: with ``weights``, ``preprocessing`` and ``embedding``; its loader is ``timm``, one of
            :data:`crsbench_assets.encoders.checkpoints.timm_layouts.TIMM_LAYOUTS` or
            ``checkpoints.efficientnet_lite``.
        device: see :func:`crsbench_assets.config.machine.torch_device`.

    Raises:
        ConfigError: timm has no such network, or the weights are not there or are not its own.
    """
    assert card.weights is not None  # load_encoder looked
    chosen = torch_device(device)
    if card.weights.loader == "checkpoints.efficientnet_lite":
        return _efficientnet_lite(card, chosen)
    network, weights = timm_network(card), local_weights(card)
    tensors = network_tensors(card, weights.files)
    if (layout := TIMM_LAYOUTS.get(card.weights.loader)) is not None:
        tensors = layout.names(tensors)
    return network_encoder(card, network, tensors, chosen)


def timm_network(card: EncoderCard) -> Any:
    """Return the network of a card, its weights to be replaced.

    Raises:
        ConfigError: timm knows no such network, or not these options.
    """
    assert card.weights is not None
    assert card.embedding is not None
    layout = TIMM_LAYOUTS.get(card.weights.loader)
    name = layout.network if layout else network_name(card.weights)
    options = {**(layout.options if layout else {}), **card.weights.network_options}
    if ":" in name or OWN_WEIGHTS & options.keys():
        found = ", ".join((f"network {name!r}", *sorted(OWN_WEIGHTS & options.keys())))
        raise ConfigError(
            f"encoder {card.id!r}: with {found} timm would look for weights itself: write the network's name without a "
            "prefix, leave such options out, and name a place for weights in crsbench.yaml if they are not on the hub."
        )
    if card.embedding.pooling == "projected":
        options["num_classes"] = card.embedding.dim
    try:
        return untrained_network(name, **options)
    except Exception as error:  # sizes that do not fit end in whatever the layer raises
        raise ConfigError(
            f"encoder {card.id!r}: timm {timm.__version__} builds no network {name!r} ({reason_of(error)}): correct "
            "weights.hub_id, weights.network or weights.network_options."
        ) from error


def network_name(weights: WeightsSource) -> str:
    """Return timm's name of a card's network, without the owner of a repository."""
    name = weights.network or weights.hub_id or ""
    return name.removeprefix("timm/")


def network_encoder(
    card: EncoderCard, network: Any, tensors: Mapping[str, torch.Tensor], device: torch.device
) -> NetworkEncoder:
    """Return the encoder of a network after its weights are loaded, every one of them by name.

    A vision transformer whose card has another input than its weights gets its position embedding resampled.

    Raises:
        ConfigError: the weights are not the network's, or the card counts other blocks than it has.
    """
    assert card.embedding is not None  # load_encoder looked
    assert card.preprocessing is not None
    load_strictly(card, network, tensors)
    px, native = card.preprocessing.input_px, getattr(getattr(network, "patch_embed", None), "img_size", None)
    if native is not None and tuple(native) != (px, px) and hasattr(network, "set_input_size"):
        try:
            network.set_input_size(img_size=(px, px))
        except Exception as error:
            raise ConfigError(
                f"encoder {card.id!r}: its network takes no images of {px} px ({reason_of(error)}): correct "
                "preprocessing.input_px."
            ) from error
    tower = TimmTower(network)
    check_blocks(card, tower.n_blocks)
    return NetworkEncoder(tower, card.embedding, device)


def check_blocks(card: EncoderCard, n_blocks: int) -> None:
    """Compare the blocks that a card counts with those of its network.

    Raises:
        ConfigError: they differ, or the card reads one that is not there.
    """
    assert card.embedding is not None
    block, taps = card.embedding.block, card.embedding.depth_taps or ()
    if card.embedding.n_blocks != n_blocks or max((block or 0, *taps)) > n_blocks:
        raise ConfigError(
            f"encoder {card.id!r}: its network has {n_blocks} blocks, and its card has embedding.n_blocks "
            f"{card.embedding.n_blocks}, embedding.block {block} and embedding.depth_taps {list(taps)}: correct the "
            "card."
        )


def untrained_network(name: str, **options: Any) -> Any:
    """Return a network of timm without classifier, whose weights are to be replaced.

    timm initialises it from torch's generator, which is set back.
    """
    with torch.random.fork_rng(devices=[]):
        return timm.create_model(name, pretrained=False, **{"num_classes": 0, **options})


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


def _efficientnet_lite(card: EncoderCard, device: torch.device) -> NetworkEncoder:
    assert card.weights is not None
    name = card.weights.hub_id
    if name not in BLOCKS_PER_STAGE:
        raise ConfigError(
            f"encoder {card.id!r}: weights.hub_id is {name!r}, and loader {card.weights.loader!r} knows "
            f"{', '.join(BLOCKS_PER_STAGE)}: name one of them."
        )
    checkpoint = read_checkpoint(local_weights(card).files[0])
    try:
        tensors = timm_state_dict(checkpoint, name)
    except KeyError:
        tensors = dict(checkpoint)  # another network's names: what does not fit is said when it is loaded
    return network_encoder(card, untrained_network(name), tensors, device)
