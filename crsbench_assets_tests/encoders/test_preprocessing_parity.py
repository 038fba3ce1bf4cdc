"""Our preprocessing against the transform of the library or the authors that each encoder was published with.

Stated for each: the largest difference of a number of the input. timm's, open_clip's and torchvision's transforms on
Pillow images agree to the bit up to the order of the last two operations; the processors of transformers multiply by
1/255 where we divide.
"""

from __future__ import annotations

import numpy as np
import open_clip
import pytest
import timm
import torch
from PIL import Image
from torchvision import transforms as tv

from crsbench_assets.images.preprocess import prepare
from crsbench_assets_tests.encoders.tiny import catalogue_card

CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
BICUBIC, BILINEAR = tv.InterpolationMode.BICUBIC, tv.InterpolationMode.BILINEAR


def picture(height, width):
    """Patches of colour with noise: edges and fine detail, where resizes differ."""
    generator = np.random.default_rng(3)
    coarse = np.kron(generator.random((height // 32, width // 32, 3)), np.ones((32, 32, 1)))
    return (255 * (0.8 * coarse + 0.2 * generator.random((height, width, 3)))).astype(np.uint8)


PICTURES = [picture(448, 448), picture(448, 608), picture(640, 448)]


def timm_transform(card):
    config = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(card.weights.hub_id).to_dict())
    if card.id == "siglip_so400m":  # the authors squash; timm's own configuration crops a tenth away
        config |= {"crop_pct": 1.0, "crop_mode": "squash"}
    return timm.data.create_transform(**config, is_training=False)


def open_clip_transform(card):
    return open_clip.image_transform(224, is_train=False, mean=CLIP_MEAN, std=CLIP_STD)


def processor(name, **options):
    import transformers

    found = getattr(transformers, name)(**options)
    return lambda image: found(image, return_tensors="pt")["pixel_values"][0]


def gemma(card):
    return processor("Gemma3ImageProcessorPil", size={"height": 896, "width": 896}, do_pan_and_scan=False)


def clip_336(card):
    return processor("CLIPImageProcessorPil", size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336})


def bit_518(card):
    one = {"image_mean": [0.5307] * 3, "image_std": [0.2583] * 3, "resample": Image.Resampling.BICUBIC}
    sizes = {"size": {"shortest_edge": 518}, "crop_size": {"height": 518, "width": 518}}
    return processor("BitImageProcessorPil", **sizes, **one)


def medsiglip_as_its_page_resizes(card):
    """Bilinear without antialiasing, as tf.image.resize does."""

    def transform(image):
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float()
        resized = torch.nn.functional.interpolate(pixels, (448, 448), mode="bilinear", align_corners=False)[0]
        return resized / 127.5 - 1.0

    return transform


def torchvision_transform(resize, crop, interpolation, mean, std):
    steps = [
        tv.Resize(resize, interpolation=interpolation),
        tv.CenterCrop(crop),
        tv.ToTensor(),
        tv.Normalize(mean, std),
    ]
    return tv.Compose(steps)


def retfound(card):
    return torchvision_transform(256, 224, BICUBIC, **IMAGENET)


def panderm(card):
    return torchvision_transform(256, 224, BILINEAR, IMAGENET["mean"], (0.228, 0.224, 0.225))


def biovil(card):
    steps = [tv.Resize(512, interpolation=BILINEAR), tv.CenterCrop(480), tv.ToTensor()]
    one = tv.Compose(steps)
    return lambda image: one(image.convert("L")).expand(3, -1, -1)


def chexzero(card):
    resize = tv.Resize((224, 224), interpolation=BICUBIC, antialias=False)

    def transform(image):
        grey = image.convert("L")
        ratio = 320.0 / max(grey.size)
        small = grey.resize(tuple(int(side * ratio) for side in grey.size), Image.Resampling.LANCZOS)
        square = Image.new("L", (320, 320))
        square.paste(small, ((320 - small.size[0]) // 2, (320 - small.size[1]) // 2))
        values = torch.from_numpy(np.asarray(square, dtype=np.float32)).expand(3, -1, -1)
        return resize((values - 101.48761) / 83.43944)

    return transform


# encoder: (transform, largest difference, in units of the normalised input)
PARITY = {
    "resnet50": (timm_transform, 0.0),
    "vit_b16_in21k": (timm_transform, 0.0),
    "mae_vit_l16": (timm_transform, 0.0),
    "clip_vit_l14": (timm_transform, 0.0),
    "siglip_so400m": (timm_transform, 0.0),
    "dinov2_vit_l14": (timm_transform, 0.0),
    "biomedclip": (open_clip_transform, 0.0),
    "medsiglip": (medsiglip_as_its_page_resizes, 1e-5),
    "medgemma": (gemma, 1e-6),
    "llava_med": (clip_336, 1e-6),
    "rad_dino": (bit_518, 1e-6),
    "panderm": (panderm, 0.0),
    "retfound": (retfound, 0.0),
    "biovil": (biovil, 0.0),
    "chexzero": (chexzero, 1e-5),
}


@pytest.mark.parametrize("encoder_id", PARITY)
@pytest.mark.parametrize("pixels", PICTURES, ids=["square", "wide", "high"])
def test_inputs_are_those_of_the_published_transform(encoder_id, pixels):
    card = catalogue_card(encoder_id)
    make, largest = PARITY[encoder_id]
    theirs = np.asarray(make(card)(Image.fromarray(pixels)), dtype=np.float32)
    ours = prepare(pixels, card.preprocessing)
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= largest


def test_all_of_the_panel_are_compared():
    from crsbench_assets.config.registry import catalog_ids

    assert sorted(PARITY) == catalog_ids("encoders")
