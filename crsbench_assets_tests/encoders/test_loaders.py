"""Each of the 15 from a tiny file in its published form: the right numbers, from the right tensors, or a sentence."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from crsbench_assets.encoders.networks import load_encoder
from crsbench_assets_tests.encoders.tiny import MAKERS, catalogue_card


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    made = {}

    def get(encoder_id):
        if encoder_id not in made:
            folder = tmp_path_factory.mktemp(encoder_id)
            found = MAKERS[encoder_id](folder)
            made[encoder_id] = (found, load_encoder(found.card))
        return made[encoder_id]

    return get


def test_there_is_one_for_each_card_of_the_catalogue():
    from crsbench_assets.config.registry import catalog_ids

    assert sorted(MAKERS) == catalog_ids("encoders")


@pytest.mark.parametrize("encoder_id", MAKERS)
def test_the_vector_is_the_librarys_own_feature(tiny, encoder_id):
    found, encoder = tiny(encoder_id)
    images = found.images()
    vectors = encoder.encode(images)
    assert vectors.shape == (3, found.card.embedding.dim)
    assert found.card.embedding.pooling == catalogue_card(encoder_id).embedding.pooling
    with torch.inference_mode():
        own = found.features(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(vectors, own, rtol=0, atol=1e-5 * max(1.0, np.abs(own).max()))
    assert np.abs(own[0] - own[1]).max() > 0.01


@pytest.mark.parametrize("encoder_id", MAKERS)
def test_depths_come_from_the_same_pass(tiny, encoder_id):
    found, encoder = tiny(encoder_id)
    images = found.images(2)
    vectors, *depths = encoder.encode_depths(images)
    np.testing.assert_allclose(vectors, encoder.encode(images), rtol=0, atol=1e-5)
    assert len(depths) == 4
    widths = [depth.shape[1] for depth in depths]
    assert widths == ([32, 64, 128, 256] if found.card.embedding.pooling == "gap" else [found.card.embedding.dim] * 4)
    for a, b in pairwise(depths):
        assert a.shape != b.shape or np.abs(a - b).max() > 1e-3
    if found.card.embedding.block is None and found.card.embedding.pooling != "map":
        np.testing.assert_allclose(depths[-1], vectors, rtol=0, atol=1e-5 * max(1.0, np.abs(vectors).max()))
    assert [part.shape for part in encoder.encode_depths(images[:0])] == [(0, w) for w in (vectors.shape[1], *widths)]


@pytest.mark.parametrize("encoder_id", ["medsiglip", "llava_med", "biomedclip", "resnet50"])
def test_libraries_say_nothing_while_they_build(encoder_id, tmp_path, capfd):
    found = MAKERS[encoder_id](tmp_path)
    capfd.readouterr()
    load_encoder(found.card)
    assert capfd.readouterr() == ("", "")
