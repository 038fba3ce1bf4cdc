"""The forward pass: from a batch of prepared images to vectors, the same for the networks of all libraries.

What lives here: what a tower owes, the pass in float32 that gives the same bits twice, and the vectors at four depths.
What stays out: how a library's network is built and read (``timm_models``, ``open_clip_models``,
``transformer_models``) and the poolings (``pooling``).
Source: protocol page, section 2; depth as in Alain and Bengio (2017), "Understanding intermediate layers using linear
classifier probes", every depth read like the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from crsbench_assets.encoders.pooling import PoolingError, pooled_features

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from crsbench_assets.config.cards import Embedding

SLICE = 8
"""Images of one pass on a processor. Measured on EfficientNet-Lite at 96 px and one thread, 8 is the fastest size, and
up to 8 every size gives the same bits; from 16 on oneDNN takes other kernels. So the caller's batch changes nothing."""

HEADS = ("map", "projected")
"""Poolings that are part of the network."""


class Tower(Protocol):
    """A library's network of images."""

    module: Any
    """Module of torch with the weights, in evaluation."""
    n_blocks: int
    """Blocks, or stages, in the order of the pass."""
    n_prefix_tokens: int
    """Class and register tokens in front of the patches; 0 for a network of feature maps."""

    def outputs(self, images: torch.Tensor, blocks: Sequence[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """Return the last output as trained, and the outputs of blocks as the next block reads them.

        Args:
            images: float32 (n, 3, h, w).
            blocks: 1-based, ascending, distinct.

        Returns:
            Tokens (n, t, d) or feature maps (n, d, h, w); the last after the final norm. Where ``blocks`` ends before
            the last one, the pass may end there, and the last output means nothing.
        """
        ...

    def normed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the output of a block after the network's final norm; unchanged where its width is another."""
        ...

    def head(self, last: torch.Tensor, pooling: str) -> torch.Tensor:
        """Return (n, d), the network's own pooling of its last output: one of :data:`HEADS`.

        Raises:
            PoolingError: the network has no such head.
        """
        ...


class NetworkEncoder:
    """A tower and the output of it that is the image's vector.

    Args:
        tower: with its weights, on the processor.
        embedding: which block is read, and how it is pooled.
        device: where the network runs.
    """

    def __init__(self, tower: Tower, embedding: Embedding, device: torch.device) -> None:
        self.dim = embedding.dim
        self.is_on_processor = device.type == "cpu"
        # on a processor, this order of the axes makes convolutions much faster; the vectors differ by rounding
        tower.module = tower.module.eval().requires_grad_(False).to(device, memory_format=torch.channels_last)
        self._tower, self._embedding, self._device = tower, embedding, device

    def encode(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        """See :class:`crsbench_assets.encoders.networks.ImageEncoder`."""
        block = self._embedding.block
        return self._in_slices(batch, () if block is None else (block,), self._vector)[0]

    def encode_depths(self, batch: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Return the vectors of a batch, and in the same pass those at 25, 50, 75 and 100 % of the depth.

        A depth is read like the embedding: its class token where that is the embedding, else the mean of its patches,
        after the final norm; of a feature map the mean. At 100 % it is the embedding where that has such a pooling and
        no ``block``.

        Args:
            batch: float32 (n, 3, h, w); n may be 0.

        Returns:
            Five arrays float32 (n, d); the widths of stages differ.

        Raises:
            ValueError: the card has no ``depth_taps``.
        """
        taps = self._embedding.depth_taps
        if taps is None:
            raise ValueError("the card has no embedding.depth_taps")
        block = self._embedding.block
        blocks = sorted({*taps, *(() if block is None else (block,))})

        def read(last: torch.Tensor, outputs: dict[int, torch.Tensor]) -> list[torch.Tensor]:
            return [*self._vector(last, outputs), *(self._depth(outputs[tap]) for tap in taps)]

        return self._in_slices(batch, blocks, read)

    def encode_as(self, batch: NDArray[np.float32], dtype: torch.dtype) -> NDArray[np.float32]:
        """Return the vectors of a batch as a pass in a shorter type gives them, for comparison; not used for results.

        Raises:
            RuntimeError: the device has no such type.
        """
        with torch.autocast(self._device.type, dtype=dtype):
            return self.encode(batch)

    def _vector(self, last: torch.Tensor, outputs: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        pooling, block = self._embedding.pooling, self._embedding.block
        if pooling in HEADS:
            if block is not None:
                raise PoolingError(f"pooling {pooling} does not exist for a block")
            return [self._tower.head(last, pooling)]
        return [pooled_features(last if block is None else outputs[block], pooling, self._tower.n_prefix_tokens)]

    def _depth(self, output: torch.Tensor) -> torch.Tensor:
        if output.ndim == 4:
            return pooled_features(output, "gap")
        pooling = "cls" if self._embedding.pooling == "cls" else "mean_patches"
        return pooled_features(self._tower.normed(output), pooling, self._tower.n_prefix_tokens)

    def _in_slices(self, batch: NDArray[np.float32], blocks: Sequence[int], read: Any) -> list[NDArray[np.float32]]:
        n, step = len(batch), SLICE if self.is_on_processor else max(1, len(batch))
        if n == 0:  # one image says how many arrays there are, and how wide they are
            return [one[:0] for one in self._pass(np.zeros((1, *batch.shape[1:]), dtype=np.float32), blocks, read)]
        parts = [self._pass(batch[start : start + step], blocks, read) for start in range(0, n, step)]
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]

    def _pass(self, batch: NDArray[np.float32], blocks: Sequence[int], read: Any) -> list[NDArray[np.float32]]:
        # TF32 keeps 10 bits of the mantissa, and a benchmarked algorithm may differ from one run to the next.
        if self.is_on_processor:
            torch.set_num_threads(1)  # with more, sums are made in another order: cores are used by several passes
        exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
        with torch.inference_mode(), exact:
            images = torch.from_numpy(np.array(batch, dtype=np.float32, order="C")).to(self._device)
            last, outputs = self._tower.outputs(images, blocks)
            found = read(last, dict(zip(blocks, outputs, strict=True)))
            return [vectors.float().cpu().numpy() for vectors in found]
