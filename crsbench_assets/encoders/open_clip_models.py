"""Image towers built by open_clip, without their text towers.

What lives here: building a tower from the configuration that a repository carries or open_clip knows, and reading its
outputs. What stays out: files, strictness and the pass (``weights``, ``checkpoints.tensors``, ``forward``).
Source: Ilharco et al. (2021), OpenCLIP, doi:10.5281/zenodo.5143773. A tower is either open_clip's own vision
transformer (Radford et al., 2021) or a network of timm, the trunk, with a projection.

Of the text tower nothing is built: BiomedCLIP's would fetch a second repository.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import open_clip
import torch
from open_clip.model import CLIPVisionCfg, _build_vision_tower
from open_clip.timm_model import TimmModel
from open_clip.transformer import VisionTransformer

from crsbench_assets.config.errors import ConfigError, reason_of
from crsbench_assets.config.machine import torch_device
from crsbench_assets.encoders.checkpoints.tensors import load_strictly, network_tensors
from crsbench_assets.encoders.forward import NetworkEncoder
from crsbench_assets.encoders.pooling import PoolingError
from crsbench_assets.encoders.timm_models import TimmTower, check_blocks
from crsbench_assets.encoders.weights import local_weights
from crsbench_assets.storage.files import read_json

if TYPE_CHECKING:
    from crsbench_assets.config.cards import EncoderCard

IMAGE_PREFIX = "visual."

NOT_OF_THE_IMAGE = (
    "logit_scale",
    "logit_bias",
    "text.*",
    "text_projection",
    "transformer.*",
    "token_embedding.*",
    "positional_embedding",
    "ln_final.*",
)
"""Names of the text tower and of the loss, in every checkpoint of open_clip."""


class TrunkTower(TimmTower):
    """A network of timm and the projection that open_clip puts on it."""

    def __init__(self, visual: Any) -> None:
        super().__init__(visual.trunk)
        self._projection = visual.head.eval().requires_grad_(False)

    def head(self, last: torch.Tensor, pooling: str) -> torch.Tensor:
        """See :class:`crsbench_assets.encoders.forward.Tower`."""
        if pooling == "map":
            return super().head(last, pooling)
        pooled = self.module.forward_head(last)
        found: torch.Tensor = self._projection.to(pooled.device)(pooled)
        return found


class OpenClipTower:
    """open_clip's own vision transformer; see :class:`crsbench_assets.encoders.forward.Tower`."""

    def __init__(self, visual: Any) -> None:
        self.module = visual
        self.n_blocks = len(visual.transformer.resblocks)
        self.n_prefix_tokens = 1

    def outputs(self, images: torch.Tensor, blocks: Sequence[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """See :class:`crsbench_assets.encoders.forward.Tower`."""
        tokens, found = self.module.transformer.forward_intermediates(
            self.module._embeds(images), indices=[*(block - 1 for block in blocks), self.n_blocks - 1]
        )
        return self.module.ln_post(tokens), found[: len(blocks)]

    def normed(self, tokens: torch.Tensor) -> torch.Tensor:
        """See :class:`crsbench_assets.encoders.forward.Tower`."""
        found: torch.Tensor = self.module.ln_post(tokens)
        return found

    def head(self, last: torch.Tensor, pooling: str) -> torch.Tensor:
        """See :class:`crsbench_assets.encoders.forward.Tower`."""
        if pooling != "projected" or self.module.proj is None or self.module.attn_pool is not None:
            raise PoolingError(f"pooling {pooling} does not exist for this tower of open_clip")
        pooled = last[:, 0] if self.module.pool_type == "tok" else last[:, 1:].mean(dim=1)
        found: torch.Tensor = pooled @ self.module.proj
        return found


def open_clip_encoder(card: EncoderCard, device: str) -> NetworkEncoder:
    """Return the encoder of a card of kind ``open_clip``.

    Args:
        card: ``weights.hub_id`` is a repository with ``open_clip_config.json``, or ``weights.network`` is open_clip's
            name of a network.
        device: see :func:`crsbench_assets.config.machine.torch_device`.

    Raises:
        ConfigError: open_clip builds no such tower, or the weights are not there or are not its own.
    """
    assert card.weights is not None  # load_encoder looked
    assert card.embedding is not None
    chosen, local = torch_device(device), local_weights(card)
    visual = open_clip_tower(card, local.config)
    tensors = network_tensors(card, local.files, also_ignored=NOT_OF_THE_IMAGE)
    of_image = {name.removeprefix(IMAGE_PREFIX): tensor for name, tensor in tensors.items()}
    load_strictly(card, visual, of_image)
    tower = TrunkTower(visual) if isinstance(visual, TimmModel) else OpenClipTower(visual.eval())
    check_blocks(card, tower.n_blocks)
    return NetworkEncoder(tower, card.embedding, chosen)


def open_clip_tower(card: EncoderCard, config: Path | None) -> Any:
    """Return the image tower of a card, its weights to be replaced.

    Args:
        card: names the network where there is no file.
        config: ``open_clip_config.json``.

    Raises:
        ConfigError: no such network, or a tower that is neither a vision transformer nor one of timm's.
    """
    assert card.weights is not None
    name = card.weights.network
    where = config or f"open_clip {open_clip.__version__}"
    found = read_json(config).get("model_cfg") if config is not None else open_clip.get_model_config(name or "")
    if not isinstance(found, dict) or not {"vision_cfg", "embed_dim"} <= found.keys():
        raise ConfigError(f"encoder {card.id!r}: {where} has no image tower {name or ''}: correct weights.network.")
    try:
        vision = CLIPVisionCfg(**{**found["vision_cfg"], "timm_model_pretrained": False})
        with torch.random.fork_rng(devices=[]):
            visual = _build_vision_tower(found["embed_dim"], vision, quick_gelu=bool(found.get("quick_gelu", False)))
    except Exception as error:  # a configuration is anybody's, and a size that does not fit ends in some layer
        raise ConfigError(
            f"encoder {card.id!r}: open_clip {open_clip.__version__} cannot build the image tower of {where} "
            f"({reason_of(error)}): get the file again, or use another loader."
        ) from error
    if not isinstance(visual, TimmModel | VisionTransformer):
        kind = type(visual).__name__
        raise ConfigError(f"encoder {card.id!r}: towers of open_clip's {kind} cannot be read: use timm's network.")
    return visual
