"""Poolings."""

from __future__ import annotations

import pytest
import torch

from crsbench_assets.encoders.pooling import pooled_features

# One image of four tokens of width 2:   class (9, 8), register (7, 6), patches (1, 2) and (3, 6)
TOKENS = torch.tensor([[[9.0, 8.0], [7.0, 6.0], [1.0, 2.0], [3.0, 6.0]]])


def test_by_hand():
    assert pooled_features(TOKENS, "cls", 2).tolist() == [[9.0, 8.0]]
    assert pooled_features(TOKENS, "mean_patches", 2).tolist() == [[2.0, 4.0]]
    assert pooled_features(TOKENS, "mean_patches", 0).tolist() == [[5.0, 5.5]]
    # Two channels of 2 x 2:                     mean 2.5                  mean 0.5
    maps = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 2.0]]]])
    assert pooled_features(maps, "gap").tolist() == [[2.5, 0.5]]


def test_means_do_not_depend_on_the_order_of_patches():
    tokens = torch.randn((3, 10, 4), generator=torch.Generator().manual_seed(0))
    order = torch.tensor([0, 9, 8, 7, 6, 5, 4, 3, 2, 1])
    shuffled = pooled_features(tokens[:, order], "mean_patches", 1)
    torch.testing.assert_close(shuffled, pooled_features(tokens, "mean_patches", 1))


@pytest.mark.parametrize(
    ("shape", "pooling", "n_prefix_tokens"),
    [((1, 2, 3, 3), "cls", 1), ((1, 2, 3, 3), "mean_patches", 0), ((1, 5, 2), "gap", 1), ((1, 5, 2), "cls", 0)],
)
def test_poolings_that_an_output_does_not_have(shape, pooling, n_prefix_tokens):
    with pytest.raises(ValueError, match=f"pooling {pooling} does not exist"):
        pooled_features(torch.zeros(shape), pooling, n_prefix_tokens)
