"""Image towers of the transformers library.

What lives here: building a tower from a repository's configuration, loading it strictly, and reading its outputs; the
tower inside LLaVA-Med's chat model. What stays out: files and their tensors (``weights``, ``checkpoints.tensors``) and
the pass (``forward``).
Source: Wolf et al. (2020), "Transformers: state-of-the-art natural language processing",
doi:10.18653/v1/2020.emnlp-demos.6. LLaVA-Med: Li et al. (2023), arXiv:2306.00890; issue 105 of its repository reports
that the published loader drops the checkpoint's own image tower and takes stock CLIP instead.

The library's renaming of older checkpoints is used, and its tolerance is not: whatever it reports as missing, left over
or of another shape is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import AutoConfig, AutoModel, CLIPVisionConfig, CLIPVisionModel

from crsbench_assets.config.errors import ConfigError, reason_of
from crsbench_assets.config.machine import torch_device
from crsbench_assets.encoders.checkpoints.tensors import faults, network_tensors
from crsbench_assets.encoders.forward import NetworkEncoder
from crsbench_assets.encoders.pooling import PoolingError
from crsbench_assets.encoders.timm_models import check_blocks
from crsbench_assets.encoders.weights import WeightsError, local_weights
from crsbench_assets.storage.files import read_json

if TYPE_CHECKING:
    from crsbench_assets.config.cards import EncoderCard

FINAL_NORMS = ("post_layernorm", "layernorm", "norm", "layer_norm")
"""Names of a tower's last norm, in the models of the library."""

UNREAD = "pooler."
"""Begin of the names of a layer after the class token that many checkpoints lack, and that no vector here passes."""

CLIP_L_336: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "hidden_act": "quick_gelu",
    "projection_dim": 768,
}
"""The tower that LLaVA-Med starts from: ViT-L/14 at 336 px of Radford et al. (2021), table 20."""


class TransformerTower:
    """A vision model of transformers; see :class:`crsbench_assets.encoders.forward.Tower`."""

    def __init__(self, model: Any) -> None:
        self.module = model.eval()
        self.n_blocks = int(model.config.num_hidden_layers)
        has_class_token = any(name.endswith(("cls_token", "class_embedding")) for name in model.state_dict())
        self.n_prefix_tokens = int(has_class_token) + int(getattr(model.config, "num_register_tokens", 0) or 0)
        # CLIP's last output comes as its last block leaves it, and its norm is part of the pooling
        self._norms_last = isinstance(model, CLIPVisionModel)
        self._norm = next((norm for name in FINAL_NORMS if (norm := getattr(model, name, None)) is not None), None)

    def outputs(self, images: torch.Tensor, blocks: Sequence[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """See :class:`crsbench_assets.encoders.forward.Tower`."""
        found = self.module(pixel_values=images, output_hidden_states=bool(blocks))
        last = found.last_hidden_state
        states = [found.hidden_states[block] for block in blocks]  # the first is what enters block 1
        return (self.normed(last) if self._norms_last else last), states

    def normed(self, tokens: torch.Tensor) -> torch.Tensor:
        """See :class:`crsbench_assets.encoders.forward.Tower`."""
        return tokens if self._norm is None else self._norm(tokens)

    def head(self, last: torch.Tensor, pooling: str) -> torch.Tensor:
        """See :class:`crsbench_assets.encoders.forward.Tower`."""
        pool = getattr(self.module, "head", None)
        if pooling != "map" or pool is None:
            raise PoolingError(f"pooling {pooling} does not exist for this {type(self.module).__name__}")
        found: torch.Tensor = pool(last)
        return found


def transformers_encoder(card: EncoderCard, device: str) -> NetworkEncoder:
    """Return the encoder of a card whose network is one of transformers.

    Args:
        card: its loader is ``transformers``, whose repository has a ``config.json``, or ``checkpoints.llava_med``.
        device: see :func:`crsbench_assets.config.machine.torch_device`.

    Raises:
        ConfigError: no such vision model, the weights are not there or not its own, or they equal those of the stock
            network from which the card says they differ.
    """
    assert card.weights is not None  # load_encoder looked
    assert card.embedding is not None
    chosen, local = torch_device(device), local_weights(card)
    tensors = network_tensors(card, local.files)
    model = loaded_model(card, vision_config(card, local.config), tensors)
    if card.weights.differs_from is not None and (stock := stock_files(card)) is not None:
        stock_card, files = stock
        refuse_equal(card, model, loaded_model(stock_card, model.config, network_tensors(stock_card, files)))
    tower = TransformerTower(model)
    check_blocks(card, tower.n_blocks)
    return NetworkEncoder(tower, card.embedding, chosen)


def vision_config(card: EncoderCard, config: Path | None) -> Any:
    """Return the configuration of a card's image tower.

    Args:
        card: ``weights.network_options`` replaces fields.
        config: ``config.json``, of a vision model or of a model with one inside; None for LLaVA-Med's tower.

    Raises:
        ConfigError: the library does not know the model.
    """
    assert card.weights is not None
    options = card.weights.network_options
    if config is None:
        return CLIPVisionConfig(**(CLIP_L_336 | options))
    try:
        with _quiet():  # it speaks of the text tower's defaults as well
            found = AutoConfig.for_model(**read_json(config))
        found = getattr(found, "vision_config", found)
        for name, value in options.items():
            setattr(found, name, value)
    except Exception as error:  # every model checks its own fields, in its own way
        raise ConfigError(
            f"encoder {card.id!r}: transformers {transformers.__version__} does not know the model of {config} "
            f"({reason_of(error)}): install the version that its page asks for, get the file again, or use another "
            "loader."
        ) from error
    return found


def loaded_model(card: EncoderCard, config: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return a vision model with its weights, every tensor of both accounted for.

    Raises:
        ConfigError: what is missing, left over or of another shape, in one sentence.
    """
    with _quiet(), torch.random.fork_rng(devices=[]):  # its report has many lines; ours has one
        model, report = model_class(config).from_pretrained(
            None,
            config=config,
            state_dict=dict(tensors),
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            dtype=torch.float32,
        )
    shapes = [
        f"{name} {tuple(found)} instead of {tuple(wanted)}" for name, found, wanted in sorted(report["mismatched_keys"])
    ]
    unread = {name for name in report["missing_keys"] if name.startswith(UNREAD)}
    faults(card, missing=report["missing_keys"] - unread, left_over=report["unexpected_keys"], shapes=shapes)
    n_given = sum(tensor.numel() for tensor in tensors.values())
    n_held = sum(tensor.numel() for name, tensor in model.state_dict().items() if name not in unread)
    if n_given != n_held:  # a class may list names that the library passes over in silence
        raise ConfigError(
            f"encoder {card.id!r}: the file has {n_given:,} numbers of the network, and the network has {n_held:,}: "
            "name what is left over in weights.ignored, or name other weights."
        )
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Let the library say nothing while the block runs."""
    log: Any = transformers.logging
    level, has_bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if has_bars:
            log.enable_progress_bar()


def model_class(config: Any) -> Any:
    """Return the class of the vision model with a configuration: the tower alone where a model has two."""
    name = type(config).__name__.removesuffix("Config") + "Model"
    return getattr(transformers, name, None) or AutoModel._model_mapping[type(config)]


def stock_files(card: EncoderCard) -> tuple[EncoderCard, tuple[Path, ...]] | None:
    """Return a card of the network from which a card says that its weights differ, and its files, where they are here.

    They are looked for beside the encoder's folder in the home, in ``weights/<id>_stock/``, and in the hub's cache;
    they are not downloaded.
    """
    assert card.weights is not None
    weights = type(card.weights)(
        hub_id=card.weights.differs_from,
        loader="checkpoints.llava_med",
        prefix="vision_model.",
        ignored={
            "text_model.*": "text tower",
            "*_projection.weight": "projections",
            "logit_scale": "loss",
            "*.position_ids": "numbers from 0 on",
        },
    )
    place = card.place and card.place.model_copy(update={"named": None, "folder": f"{card.place.folder}_stock"})
    stock = card.model_copy(update={"weights": weights, "place": place})
    try:
        return stock, local_weights(stock, may_download=False).files
    except WeightsError:
        return None


def refuse_equal(card: EncoderCard, model: Any, stock: Any) -> None:
    """Refuse weights that are those of the stock network.

    Raises:
        ConfigError: all numbers are equal after rounding to 16 bits, in which a chat model stores its tower.
    """
    assert card.weights is not None
    own, other = model.state_dict(), stock.state_dict()
    if all(torch.equal(own[name].half(), other[name].half()) for name in own):
        raise ConfigError(
            f"encoder {card.id!r}: its tower equals that of {card.weights.differs_from}, number by number, so a result "
            "would be that network's under another name: retire it, or name weights that were tuned."
        )
