"""Pooling: from a network's output to one vector of an image.

What lives here: the poolings that the networks of this version need. What stays out: which output is read
(``timm_models``) and which pooling an encoder has (its card, ``embedding.pooling``).
Source: global average pooling is Lin, Chen and Yan (2014), "Network in network", section 3.2; class token and mean of
the patch tokens are the two outputs of Dosovitskiy et al. (2021), "An image is worth 16x16 words", section D.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class PoolingError(ValueError):
    """A pooling that a network's output does not have."""


def pooled_features(output: torch.Tensor, pooling: str, n_prefix_tokens: int = 0) -> torch.Tensor:
    """Return one vector per image.

    Args:
        output: a feature map (n, d, h, w), or tokens (n, t, d) whose first ``n_prefix_tokens`` are no patches.
        pooling: ``gap``, the mean over a map; ``cls``, the first token; ``mean_patches``, the mean over the tokens
            after the prefix.
        n_prefix_tokens: class and register tokens in front of the patches.

    Returns:
        (n, d). NaN anywhere in what is averaged gives NaN.

    Raises:
        PoolingError: the pooling does not exist for such an output, or needs a token that is not there.

    Example:
        >>> import torch
        >>> tokens = torch.tensor([[[9.0], [1.0], [3.0]]])  # a class token and two patches
        >>> pooled_features(tokens, "cls", 1).item(), pooled_features(tokens, "mean_patches", 1).item()
        (9.0, 2.0)
    """
    if output.ndim == 4 and pooling == "gap":
        return output.mean(dim=(2, 3))
    if output.ndim == 3 and pooling == "cls" and n_prefix_tokens > 0:
        return output[:, 0]
    if output.ndim == 3 and pooling == "mean_patches":
        return output[:, n_prefix_tokens:].mean(dim=1)
    form = "feature map" if output.ndim == 4 else f"sequence with {n_prefix_tokens} prefix tokens"
    raise PoolingError(f"pooling {pooling} does not exist for a {form}")
