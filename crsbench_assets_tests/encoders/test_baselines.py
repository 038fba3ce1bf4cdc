"""Handcrafted features and random weights."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.encoders.baselines import (
    N_HANDCRAFTED,
    cooccurrence_statistics,
    grey_level_cooccurrence,
    handcrafted_features,
    local_binary_pattern_shares,
    random_weights,
)
from crsbench_assets.encoders.networks import load_encoder
from crsbench_assets_tests.encoders.fixtures import changed, loaded, noise_images

# Where each group of features lies in the vector.
MOMENTS, SHARES, HUES, SV = slice(0, 9), slice(9, 33), slice(33, 41), slice(41, 45)
PATTERNS, GRADIENTS, COOCCURRENCE, SPECTRUM = slice(45, 65), slice(65, 137), slice(137, 147), slice(147, 155)


def _image(*, red=0.0, green=0.0, blue=0.0, px=24):
    return np.stack([np.broadcast_to(np.float32(c), (px, px)) for c in (red, green, blue)]).astype(np.float32)


def test_cooccurrence_of_haralicks_example():
    # Haralick et al. (1973), figure 3; their matrices of 0, 45, 90 and 135 degrees, summed:
    #   0 0 1 1        4 2 1 0   4 1 0 0   6 0 2 0   2 1 3 0      16  4  6  0
    #   0 0 1 1        2 4 0 0   1 2 2 0   0 4 2 0   1 2 1 0       4 12  5  0
    #   0 2 2 2        1 0 6 1   0 2 4 1   2 2 2 2   3 1 0 2       6  5 12  6
    #   2 2 3 3        0 0 1 2   0 0 1 0   0 0 2 0   0 0 2 0       0  0  6  2
    levels = np.array([[0, 0, 1, 1], [0, 0, 1, 1], [0, 2, 2, 2], [2, 2, 3, 3]])
    expected = [[16, 4, 6, 0], [4, 12, 5, 0], [6, 5, 12, 6], [0, 0, 6, 2]]
    assert grey_level_cooccurrence(levels, 1, 4).tolist() == expected


@settings(max_examples=30, deadline=None)
@given(arrays(np.intp, st.tuples(st.integers(3, 7), st.integers(3, 7)), elements=st.integers(0, 3)), st.integers(1, 2))
def test_cooccurrence_agrees_with_looking_at_every_pair(levels, distance):
    expected = np.zeros((4, 4))
    h, w = levels.shape
    for r, c in np.ndindex(h, w):
        for down in (-distance, 0, distance):
            for right in (-distance, 0, distance):
                if (down, right) != (0, 0) and 0 <= r + down < h and 0 <= c + right < w:
                    expected[levels[r, c], levels[r + down, c + right]] += 1
    assert np.array_equal(grey_level_cooccurrence(levels, distance, 4), expected)


def test_cooccurrence_statistics_by_hand():
    # p = 1/4 everywhere: mean 1/2, variance 1/4, covariance 0
    assert cooccurrence_statistics(np.ones((2, 2))) == pytest.approx([0.25, 0.5, 0.0, 0.75, np.log(4)])
    # Only equal neighbours: variance 1/4 and covariance 1/4
    assert cooccurrence_statistics(np.eye(2)) == pytest.approx([0.5, 0.0, 1.0, 1.0, np.log(2)])
    # One level: correlation is 0/0
    assert cooccurrence_statistics(np.diag([0.0, 3.0])) == pytest.approx([1.0, 0.0, 1.0, 1.0, 0.0])


@settings(max_examples=20, deadline=None)
@given(arrays(np.float64, (7, 9), elements=st.integers(0, 3).map(float)), st.integers(1, 2))
def test_patterns_agree_with_walking_round_every_pixel(grey, radius):
    expected = np.zeros(10)
    for r in range(radius, 7 - radius):
        for c in range(radius, 9 - radius):
            ring = [(-1, -1), (-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1)]
            bits = [grey[r + radius * a, c + radius * b] >= grey[r, c] for a, b in ring]
            n_changes = sum(bits[i] != bits[i - 1] for i in range(8))
            expected[sum(bits) if n_changes <= 2 else 9] += 1
    found = local_binary_pattern_shares(grey, radius)
    assert found == pytest.approx(expected / expected.sum())
    assert found == pytest.approx(local_binary_pattern_shares(np.rot90(grey), radius))


def test_colour_agrees_with_scipy_and_the_standard_library():
    image = noise_images(1, px=20)[0]
    found = handcrafted_features(image)
    flat = image.reshape(3, -1).astype(np.float64)
    third = np.cbrt(stats.skew(flat, axis=1)) * flat.std(axis=1)
    assert found[MOMENTS] == pytest.approx([*flat.mean(axis=1), *flat.std(axis=1), *third], abs=1e-9)
    histograms = [np.histogram(channel, bins=8, range=(0, 1))[0] / 400 for channel in flat]
    assert found[SHARES] == pytest.approx(np.concatenate(histograms))
    hsv = np.array([colorsys.rgb_to_hsv(*pixel) for pixel in flat.T])
    hues = np.histogram(hsv[:, 0], bins=8, range=(0, 1), weights=hsv[:, 1])[0] / 400
    assert found[HUES] == pytest.approx(hues)
    expected = [hsv[:, 1].mean(), hsv[:, 1].std(), hsv[:, 2].mean(), hsv[:, 2].std()]
    assert found[SV] == pytest.approx(expected)


def test_edges_fall_in_their_orientation_and_cell():
    ramp = np.linspace(0, 1, 24)
    across = handcrafted_features(_image(red=ramp, green=ramp, blue=ramp))[GRADIENTS].reshape(9, 8)
    down = handcrafted_features(_image(red=ramp[:, None], green=ramp[:, None], blue=ramp[:, None]))
    # A gradient along the rows is orientation 0 of 8, one along the columns is 4; the same in all nine cells: 1/3 each.
    assert across[:, 0] == pytest.approx(np.full(9, 1 / 3), abs=1e-3)
    assert down[GRADIENTS].reshape(9, 8)[:, 4] == pytest.approx(np.full(9, 1 / 3), abs=1e-3)
    assert np.delete(across, 0, axis=1).max() == 0
    corner = _image()
    corner[:, 2, 2] = 1
    cells = handcrafted_features(corner)[GRADIENTS].reshape(9, 8).sum(axis=1)
    assert cells[0] > 0
    assert cells[1:].max() == 0


def test_a_wave_falls_in_the_ring_of_its_frequency():
    # 4 waves in 32 px are 1/8 cycle per pixel: ring 2 of 8, which ends at 3/16; amplitude 1/4 is power 1/32 in two of
    # the ring's frequencies
    wave = 0.5 + 0.25 * np.cos(2 * np.pi * np.arange(32) / 8)
    energies = handcrafted_features(_image(red=wave, green=wave, blue=wave, px=32))[SPECTRUM]
    frequency = np.hypot(np.fft.fftfreq(32)[:, None], np.fft.fftfreq(32))
    n_ring = ((frequency >= 2 / 16) & (frequency < 3 / 16)).sum()
    assert energies[2] == pytest.approx(np.log10(2 * (0.25 / 2) ** 2 / n_ring), abs=1e-3)
    assert np.delete(energies, 2).max() < -9


def test_constant_extreme_and_undefined_images():
    black = handcrafted_features(_image())
    assert black.shape == (N_HANDCRAFTED,) == (155,)
    assert np.isfinite(black).all()
    assert black[SHARES].reshape(3, 8)[:, 0].tolist() == [1, 1, 1]
    assert black[PATTERNS].reshape(2, 10)[:, 8].tolist() == [1, 1]
    red = handcrafted_features(_image(red=1))
    assert red[SV].tolist() == [1, 0, 1, 0]
    assert red[HUES].tolist() == [1, 0, 0, 0, 0, 0, 0, 0]
    assert np.array_equal(handcrafted_features(_image(red=1.2, blue=-0.1)), red)  # resampling overshoots
    nothing = _image()
    nothing[0, 0, 0] = np.inf
    assert np.isnan(handcrafted_features(nothing)).all()


def test_every_group_of_features_looks_at_the_image():
    one, other = (handcrafted_features(image) for image in noise_images(2) ** np.array([1, 2])[:, None, None, None])
    for group in (MOMENTS, SHARES, HUES, SV, PATTERNS, GRADIENTS, COOCCURRENCE, SPECTRUM):
        assert np.abs(one[group] - other[group]).max() > 1e-4


def test_the_batch_changes_not_one_bit():
    images, encoder = noise_images(5), loaded("handcrafted")
    alone = np.concatenate([encoder.encode(image[None]) for image in images])
    assert np.array_equal(encoder.encode(images), alone)
    strided = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    assert np.array_equal(encoder.encode(strided), alone)


def test_handcrafted_features_refuse_a_card_that_spoils_them():
    for fields in ({"mean": (0.5, 0.5, 0.5)}, {"std": (0.5, 0.5, 0.5)}, {"value_range": "0_255"}):
        with pytest.raises(ConfigError, match="set them to 0_1, 0 and 1"):
            load_encoder(changed("handcrafted", "preprocessing", **fields))
    with pytest.raises(ConfigError, match="input_px is 8, and handcrafted features need at least 16"):
        load_encoder(changed("handcrafted", "preprocessing", input_px=8))


def test_random_weights_depend_on_names_alone():
    like = {
        "patch_embed.proj.weight": torch.empty(192, 3, 16, 16),
        "patch_embed.proj.bias": torch.empty(192),
        "norm.weight": torch.empty(192),
        "blocks.0.attn.qkv.weight": torch.empty(576, 192),
    }
    found, reverse = random_weights(like), random_weights(dict(reversed(like.items())))
    assert all(torch.equal(found[name], reverse[name]) for name in like)
    assert not found["patch_embed.proj.bias"].any()
    assert bool((found["norm.weight"] == 1).all())
    matrix = found["blocks.0.attn.qkv.weight"].numpy().ravel()
    assert np.isfinite(matrix).all()
    # 110,592 draws: the standard error of the sd is 0.02 / sqrt(2 n) = 4e-5
    assert matrix.std() == pytest.approx(0.02, abs=2e-4)
    assert stats.kstest(matrix / 0.02, "norm").statistic < 0.01
    other = found["patch_embed.proj.weight"].numpy().ravel()
    assert abs(np.corrcoef(matrix[: other.size], other[: matrix.size])[0, 1]) < 0.02


def test_the_random_network_tells_images_apart():
    brightness = np.array([0.1, 0.4, 0.7, 1.0], dtype=np.float32)[:, None, None, None]
    vectors = loaded("random_vit").encode(noise_images(4) * brightness)
    distances = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    assert distances[~np.eye(4, dtype=bool)].min() > 0.1
