"""EfficientNet-Lite: names, strictness, and agreement with a second implementation."""

from __future__ import annotations

from math import ceil

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from sklearn.datasets import load_sample_image

from crsbench_assets.encoders.checkpoints import packaged_checkpoint
from crsbench_assets.encoders.checkpoints.efficientnet_lite import (
    BLOCKS_PER_STAGE,
    read_checkpoint,
    timm_names,
    timm_state_dict,
)
from crsbench_assets.encoders.networks import load_encoder
from crsbench_assets.encoders.timm_models import untrained_network
from crsbench_assets.images.preprocess import prepare
from crsbench_assets_tests.encoders.fixtures import card, changed, loaded, noise_images

LITE = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")
DEPTH = {"efficientnet_lite0": 1.0, "efficientnet_lite1": 1.1, "efficientnet_lite2": 1.2}

# Kernel and stride of the seven stages: Tan and Le (2019), table 1.
STAGES = [(3, 1), (3, 2), (5, 2), (3, 2), (5, 1), (5, 2), (3, 1)]


def _checkpoint(encoder_id):
    return read_checkpoint(packaged_checkpoint(card(encoder_id)))


def _same_conv(x, weight, stride, groups=1):
    """Convolution with TensorFlow's SAME padding: the odd pixel goes to the right and below."""
    k = weight.shape[-1]
    pads = []
    for size in (x.shape[3], x.shape[2]):
        total = max((ceil(size / stride) - 1) * stride + k - size, 0)
        pads += [total // 2, total - total // 2]
    return F.conv2d(F.pad(x, pads), weight, stride=stride, groups=groups)


def _reference(w, images, repeats):
    """Return the pooled output of every stage and of the head, from the checkpoint's own names."""

    def norm(x, name):
        stats = w[f"{name}.running_mean"], w[f"{name}.running_var"]
        return F.batch_norm(x, *stats, w[f"{name}.weight"], w[f"{name}.bias"], eps=1e-3)

    x = F.relu6(norm(_same_conv(images, w["_conv_stem.weight"], 2), "_bn0"))
    pooled, number = [], 0
    for (kernel, stride), count in zip(STAGES, repeats, strict=True):
        for i in range(count):
            name, before = f"_blocks.{number}", x
            if number > 0:
                x = F.relu6(norm(F.conv2d(x, w[f"{name}._expand_conv.weight"]), f"{name}._bn0"))
            depthwise = w[f"{name}._depthwise_conv.weight"]
            assert depthwise.shape[-1] == kernel
            step = stride if i == 0 else 1
            x = F.relu6(norm(_same_conv(x, depthwise, step, groups=x.shape[1]), f"{name}._bn1"))
            x = norm(F.conv2d(x, w[f"{name}._project_conv.weight"]), f"{name}._bn2")
            if step == 1 and x.shape == before.shape:
                x = x + before
            number += 1
        pooled.append(x.mean((2, 3)))
    return pooled, F.relu6(norm(F.conv2d(x, w["_conv_head.weight"]), "_bn1")).mean((2, 3))


@pytest.mark.parametrize("encoder_id", LITE)
def test_names_are_one_to_one_and_shapes_agree(encoder_id):
    name = card(encoder_id).weights.hub_id
    checkpoint, network = _checkpoint(encoder_id), untrained_network(name).state_dict()
    renamed = timm_state_dict(checkpoint, name)
    assert renamed.keys() == network.keys()
    assert all(renamed[key].shape == network[key].shape for key in network)
    # One to one: only weight and bias of the classifier are missing, so no two tensors fell on one name.
    assert len(renamed) == len(checkpoint) - 2
    modules = timm_names(BLOCKS_PER_STAGE[name])
    assert len(set(modules.values())) == len(modules)


@pytest.mark.parametrize("encoder_id", LITE)
def test_blocks_per_stage_follow_from_the_depth_coefficient(encoder_id):
    repeats = [1, 2, 2, 3, 3, 4, 1]  # EfficientNet-B0
    scaled = [ceil(DEPTH[encoder_id] * count) for count in repeats]
    assert BLOCKS_PER_STAGE[card(encoder_id).weights.hub_id] == (1, *scaled[1:-1], 1)


def test_a_name_of_another_network_is_refused():
    checkpoint = _checkpoint("efficientnet_lite1")
    with pytest.raises(KeyError, match="_blocks"):
        timm_state_dict(checkpoint, "tf_efficientnet_lite0")
    incomplete = timm_state_dict(_checkpoint("efficientnet_lite0"), "tf_efficientnet_lite0")
    del incomplete["conv_head.weight"]
    with pytest.raises(RuntimeError, match=r"conv_head\.weight"):
        untrained_network("tf_efficientnet_lite0").load_state_dict(incomplete, strict=True)


@pytest.mark.parametrize("encoder_id", LITE)
def test_features_agree_with_a_second_implementation(encoder_id):
    images = noise_images(2) * 2 - 1
    repeats = BLOCKS_PER_STAGE[card(encoder_id).weights.hub_id]
    with torch.inference_mode():
        stages, head = _reference(_checkpoint(encoder_id), torch.from_numpy(images), repeats)
    np.testing.assert_allclose(loaded(encoder_id).encode(images), head.numpy(), rtol=0, atol=1e-4)
    if encoder_id != "efficientnet_lite1":
        middle = loaded(f"{encoder_id}_mid").encode(images)
        np.testing.assert_allclose(middle, stages[3].numpy(), rtol=1e-4, atol=1e-4)


def test_every_stage_can_be_read():
    images = noise_images(1) * 2 - 1
    with torch.inference_mode():
        stages, _ = _reference(_checkpoint("efficientnet_lite0"), torch.from_numpy(images), (1, 2, 2, 3, 3, 4, 1))
    for block, expected in enumerate(stages, start=1):
        dim = expected.shape[1]
        found = load_encoder(changed("efficientnet_lite0", "embedding", block=block, dim=dim)).encode(images)
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("encoder_id", LITE)
def test_the_weights_recognise_a_photograph(encoder_id):
    # scikit-learn's china.jpg shows the Summer Palace; class 698 of ImageNet-1k is "palace". At the native size.
    px = {"efficientnet_lite0": 224, "efficientnet_lite1": 240, "efficientnet_lite2": 260}[encoder_id]
    native = changed(encoder_id, "preprocessing", input_px=px, resize_px=px + 32)
    prepared = prepare(load_sample_image("china.jpg"), native.preprocessing)
    features = load_encoder(native).encode(prepared[None])[0]
    classifier = _checkpoint(encoder_id)
    logits = classifier["_fc.weight"].numpy() @ features + classifier["_fc.bias"].numpy()
    assert logits.argmax() == 698
