"""The catalogue of the paper's panel: 15 encoders, 3 datasets, one shift target.

What lives here: every shipped card parses, and its facts agree with a second, hand-kept copy of the sources'
figures. What stays out: how cards are found and activated (``test_registry``), and loading what they name.
Source: encoder and dataset documentation named in each card; protocol page, section 1.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

import crsbench_assets.config
from crsbench_assets.config.cards import DatasetCard, EncoderCard
from crsbench_assets.config.ids import shift_condition
from crsbench_assets.config.protocol import Protocol

CATALOG = Path(crsbench_assets.config.__file__).parent / "catalog"


def read_yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


ENCODERS = {path.stem: EncoderCard(**read_yaml(path)) for path in sorted((CATALOG / "encoders").glob("*.yaml"))}
DATASETS = {path.stem: DatasetCard(**read_yaml(path)) for path in sorted((CATALOG / "datasets").glob("*.yaml"))}

CATEGORIES = {
    "generalist": {
        "resnet50",
        "vit_b16_in21k",
        "mae_vit_l16",
        "clip_vit_l14",
        "siglip_so400m",
        "dinov2_vit_l14",
    },
    "broad_medical": {"biomedclip", "medsiglip", "medgemma", "llava_med"},
    "specialty": {"panderm", "retfound", "rad_dino", "biovil", "chexzero"},
}

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
PANDERM = ((0.485, 0.456, 0.406), (0.228, 0.224, 0.225))
RADIOGRAPHS = ((0.5307, 0.5307, 0.5307), (0.2583, 0.2583, 0.2583))
GRAY_255 = ((101.48761, 101.48761, 101.48761), (83.43944, 83.43944, 83.43944))
NONE = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))

# input, resize, mode, crop, interpolation, (mean, std), pooling, width, blocks
Facts = tuple[int, int, str, str, str, tuple[tuple[float, ...], tuple[float, ...]], str, int, int]
FACTS: dict[str, Facts] = {
    "resnet50": (224, 235, "shortest_side", "center", "bicubic", IMAGENET, "gap", 2048, 4),
    "vit_b16_in21k": (224, 248, "shortest_side", "center", "bicubic", HALF, "cls", 768, 12),
    "mae_vit_l16": (224, 248, "shortest_side", "center", "bicubic", IMAGENET, "mean_patches", 1024, 24),
    "clip_vit_l14": (224, 224, "shortest_side", "center", "bicubic", CLIP, "cls", 1024, 24),
    "siglip_so400m": (384, 384, "squash", "none", "bicubic", HALF, "map", 1152, 27),
    "dinov2_vit_l14": (518, 518, "shortest_side", "center", "bicubic", IMAGENET, "cls", 1024, 24),
    "biomedclip": (224, 224, "shortest_side", "center", "bicubic", CLIP, "cls", 768, 12),
    "medsiglip": (448, 448, "squash", "none", "bilinear", HALF, "map", 1152, 27),
    "medgemma": (896, 896, "squash", "none", "bilinear", HALF, "mean_patches", 1152, 27),
    "llava_med": (336, 336, "shortest_side", "center", "bicubic", CLIP, "mean_patches", 1024, 24),
    "panderm": (224, 256, "shortest_side", "center", "bilinear", PANDERM, "cls", 1024, 24),
    "retfound": (224, 256, "shortest_side", "center", "bicubic", IMAGENET, "mean_patches", 1024, 24),
    "rad_dino": (518, 518, "shortest_side", "center", "bicubic", RADIOGRAPHS, "cls", 768, 12),
    "biovil": (480, 512, "shortest_side", "center", "bilinear", NONE, "gap", 2048, 4),
    "chexzero": (224, 320, "pad_square", "none", "lanczos", GRAY_255, "cls", 768, 12),
}

# encoder: cohorts that its authors name among the pretraining data
SEEN = {
    "medsiglip": {"mimic_cxr"},
    "medgemma": {"mimic_cxr"},
    "rad_dino": {"chexpert", "mimic_cxr"},
    "biovil": {"mimic_cxr"},
    "chexzero": {"mimic_cxr"},
}

MIMIC_COLUMNS = (
    "Atelectasis",
    "Cardiomegaly",
    "Consolidation",
    "Edema",
    "Enlarged Cardiomediastinum",
    "Fracture",
    "Lung Lesion",
    "Lung Opacity",
    "No Finding",
    "Pleural Effusion",
    "Pleural Other",
    "Pneumonia",
    "Pneumothorax",
    "Support Devices",
)


def applicable_cells() -> list[tuple[EncoderCard, DatasetCard]]:
    return [
        (encoder, dataset)
        for encoder in ENCODERS.values()
        for dataset in DATASETS.values()
        if dataset.id not in encoder.not_applicable
    ]


@pytest.mark.parametrize("stem", [*ENCODERS, *DATASETS])
def test_file_is_named_as_its_id(stem: str) -> None:
    card = ENCODERS.get(stem) or DATASETS[stem]
    assert card.id == stem


@pytest.mark.parametrize("path", sorted(CATALOG.rglob("*.yaml")), ids=lambda path: path.stem)
def test_no_key_is_written_twice(path: Path) -> None:
    # safe_load keeps the last of two equal keys without a word, so a duplicated fact would look like one.
    def assert_distinct(node: yaml.Node) -> None:
        if isinstance(node, yaml.MappingNode):
            keys = [key.value for key, _ in node.value]
            assert len(set(keys)) == len(keys), keys
            for _, value in node.value:
                assert_distinct(value)

    node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    assert node is not None
    assert_distinct(node)


def test_panel_has_six_generalists_four_broad_and_five_specialists() -> None:
    by_category = {
        category: {card.id for card in ENCODERS.values() if card.category == category} for category in CATEGORIES
    }
    assert by_category == CATEGORIES
    assert [len(CATEGORIES[name]) for name in ("generalist", "broad_medical", "specialty")] == [6, 4, 5]
    assert {card.role for card in ENCODERS.values()} == {"candidate"}


def test_members_that_the_paper_does_not_name_are_marked_inferred() -> None:
    named_generalist = {"dinov2_vit_l14"}
    expected = (CATEGORIES["generalist"] - named_generalist) | {"retfound"}
    assert {card.id for card in ENCODERS.values() if card.inferred} == expected


def test_every_family_has_one_generalist_parent() -> None:
    families = {card.family for card in ENCODERS.values()}
    parents = Counter(card.family for card in ENCODERS.values() if card.category == "generalist")
    assert parents == dict.fromkeys(families, 1)


def test_two_of_45_pairs_are_not_applicable() -> None:
    reasons = {(card.id, d): why for card in ENCODERS.values() for d, why in card.not_applicable.items()}
    why = "released interface is chest-radiology specific"
    assert reasons == {("biovil", "aptos2019"): why, ("chexzero", "aptos2019"): why}
    assert len(ENCODERS) * len(DATASETS) == 45
    assert len(applicable_cells()) == 43


def test_cards_and_protocol_span_the_papers_grid() -> None:
    # 13 aptos2019 x 16 conditions + 15 isic2019 x 16 + 15 chexpert x 17, each x 5 fractions:
    # 1,040 + 1,200 + 1,275 = 3,515 rows, x 5 seeds = 17,575 run records.
    protocol = Protocol(**read_yaml(CATALOG / "protocols" / "crs-1.yaml"))
    n_rows = sum(
        len(protocol.label_fractions) * len(protocol.conditions(dataset.shift.id if dataset.shift else None))
        for _, dataset in applicable_cells()
    )
    assert n_rows == 3_515
    assert n_rows * len(protocol.seeds) == 17_575


@pytest.mark.parametrize("encoder_id", FACTS)
def test_preprocessing_and_embedding_match_the_source(encoder_id: str) -> None:
    card = ENCODERS[encoder_id]
    given, read = card.preprocessing, card.embedding
    assert given is not None
    assert read is not None
    assert FACTS[encoder_id] == (
        given.input_px,
        given.resize_px,
        given.resize_mode,
        given.crop,
        given.interpolation,
        (given.mean, given.std),
        read.pooling,
        read.dim,
        read.n_blocks,
    )


def test_facts_cover_the_panel() -> None:
    assert set(FACTS) == set(ENCODERS) == set().union(*CATEGORIES.values())


@pytest.mark.parametrize("card", ENCODERS.values(), ids=ENCODERS)
def test_depth_taps_are_the_blocks_at_each_quarter(card: EncoderCard) -> None:
    # L = 27: 6.75, 13.5, 20.25, 27 round up to 7, 14, 21, 27
    assert card.embedding is not None
    n_blocks = card.embedding.n_blocks
    assert card.embedding.depth_taps == tuple(math.ceil(quarter * n_blocks / 4) for quarter in (1, 2, 3, 4))


@pytest.mark.parametrize("card", ENCODERS.values(), ids=ENCODERS)
def test_preprocessing_is_consistent(card: EncoderCard) -> None:
    given = card.preprocessing
    assert given is not None
    # Statistics belong to the range: on [0, 1] the mean cannot exceed 1, on [0, 255] it would be near 0.
    assert (max(given.mean) > 1.0) == (given.value_range == "0_255")
    assert min(given.std) > 0.0
    if given.crop == "center":
        assert given.resize_px >= given.input_px
        assert given.resize_mode == "shortest_side"
    elif card.id != "chexzero":  # CheXzero alone resizes twice
        assert given.resize_px == given.input_px


def test_chest_encoders_with_a_gray_input_read_gray() -> None:
    gray = {card.id for card in ENCODERS.values() if card.preprocessing and card.preprocessing.channels != "rgb"}
    assert gray == {"biovil", "chexzero"}


def test_only_medsiglip_resizes_without_antialiasing() -> None:
    aliased = {card.id for card in ENCODERS.values() if card.preprocessing and not card.preprocessing.antialias}
    assert aliased == {"medsiglip"}


@pytest.mark.parametrize("value", [0.0, 0.25, 1.0])
def test_biovil_normalisation_changes_nothing(value: float) -> None:
    given = ENCODERS["biovil"].preprocessing
    assert given is not None
    assert [(value - mean) / std for mean, std in zip(given.mean, given.std, strict=True)] == [value] * 3


@pytest.mark.parametrize("card", ENCODERS.values(), ids=ENCODERS)
def test_loader_follows_the_kind(card: EncoderCard) -> None:
    assert card.weights is not None
    expected = f"checkpoints.{card.id}" if card.kind == "module" else card.kind
    assert card.weights.loader == expected


def test_kinds_other_than_timm() -> None:
    assert {card.id: card.kind for card in ENCODERS.values() if card.kind != "timm"} == {
        "biomedclip": "open_clip",
        "medsiglip": "transformers",
        "medgemma": "transformers",
        "rad_dino": "transformers",
        "llava_med": "module",
        "panderm": "module",
        "retfound": "module",
        "biovil": "module",
        "chexzero": "module",
    }


@pytest.mark.parametrize("card", ENCODERS.values(), ids=ENCODERS)
def test_weights_can_be_found_and_pins_are_whole(card: EncoderCard) -> None:
    weights = card.weights
    assert weights is not None
    assert weights.hub_id or (weights.url and weights.file)
    is_commit = weights.revision is None or re.fullmatch(r"[0-9a-f]{40}", weights.revision)
    assert is_commit or weights.sha256 or weights.md5, "a tag can be moved: a hash says which file it means"
    assert weights.md5 is None or re.fullmatch(r"[0-9a-f]{32}", weights.md5)
    assert weights.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", weights.sha256)
    assert weights.sha256 is None or weights.file, "a hash needs the file it is of"


def test_weights_named_by_the_sources() -> None:
    weights = {card.id: card.weights for card in ENCODERS.values() if card.weights}
    assert {i: source.hub_id for i, source in weights.items()} == {
        "resnet50": "resnet50.a1_in1k",
        "vit_b16_in21k": "vit_base_patch16_224.augreg_in21k",
        "mae_vit_l16": "vit_large_patch16_224.mae",
        # The plain name would silently run OpenAI's weights with GELU instead of QuickGELU.
        "clip_vit_l14": "vit_large_patch14_clip_quickgelu_224.openai",
        "siglip_so400m": "vit_so400m_patch14_siglip_384.webli",
        "dinov2_vit_l14": "vit_large_patch14_dinov2.lvd142m",
        "biomedclip": "microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224",
        "medsiglip": "google/medsiglip-448",
        "medgemma": "google/medgemma-4b-it",
        "llava_med": "microsoft/llava-med-v1.5-mistral-7b",
        "panderm": None,
        "retfound": "YukunZhou/RETFound_mae_natureCFP",
        "rad_dino": "microsoft/rad-dino",
        "biovil": "microsoft/BiomedVLP-CXR-BERT-specialized",
        "chexzero": None,
    }
    assert {i for i, source in weights.items() if source.gated} == {"medsiglip", "medgemma", "retfound"}
    assert weights["rad_dino"].revision == "110cbc18d5133582e320b43d53bf5c44e410c936"
    assert weights["chexzero"].sha256 == "567a2efbabc6a02370de6e18178afd22ee72d7e6f29a789db1535e5c798d6ae8"
    assert weights["chexzero"].file == "best_64_5e-05_original_22000_0.864.pt"
    assert weights["biovil"].url == (
        "https://huggingface.co/microsoft/BiomedVLP-CXR-BERT-specialized/resolve/v1.1/"
        "biovil_image_resnet50_proj_size_128.pt"
    )


@pytest.mark.parametrize("card", ENCODERS.values(), ids=ENCODERS)
def test_exposure_covers_every_cohort(card: EncoderCard) -> None:
    cohorts = set(DATASETS) | {dataset.shift.id for dataset in DATASETS.values() if dataset.shift}
    assert set(card.exposure) == cohorts == {"isic2019", "aptos2019", "chexpert", "mimic_cxr"}


def test_exposure_is_seen_where_the_authors_say_so_and_not_seen_only_for_public_corpora() -> None:
    def cohorts(card: EncoderCard, exposure: str) -> set[str]:
        return {cohort for cohort, value in card.exposure.items() if value == exposure}

    seen = {card.id: cohorts(card, "seen") for card in ENCODERS.values() if cohorts(card, "seen")}
    assert seen == SEEN
    public_corpus = {"resnet50", "vit_b16_in21k", "mae_vit_l16", "biovil"}
    assert {card.id for card in ENCODERS.values() if cohorts(card, "not_seen")} == public_corpus


@pytest.mark.parametrize("card", ENCODERS.values(), ids=ENCODERS)
def test_licence_and_objective_are_stated(card: EncoderCard) -> None:
    assert card.licence
    assert card.description
    assert card.pretraining_objective in {
        "supervised",
        "masked_image_modelling",
        "image_text_contrastive",
        "self_distillation",
    }


def test_non_commercial_licences_are_not_softened() -> None:
    licences = {card.id: card.licence for card in ENCODERS.values()}
    assert licences["mae_vit_l16"] == "cc-by-nc-4.0"
    assert licences["panderm"] == "CC-BY-NC-ND-4.0"
    assert licences["retfound"] == "CC-BY-NC-4.0"
    assert "non-commercial" in str(licences["llava_med"])
    assert "not stated" in str(licences["chexzero"])


def test_datasets_have_the_papers_sizes_and_tasks() -> None:
    facts = {
        card.id: (card.modality, card.task, len(card.classes), card.expected_n_images) for card in DATASETS.values()
    }
    assert facts == {
        "isic2019": ("dermoscopy", "single_label", 8, 25_331),
        "aptos2019": ("fundus", "ordinal", 5, 3_662),
        "chexpert": ("xray", "multi_label", 14, 191_229),
    }
    # frontal images of train.csv and of valid.csv
    assert DATASETS["chexpert"].expected_n_images == 191_027 + 202


def test_classes_stand_in_official_order() -> None:
    assert DATASETS["isic2019"].classes == ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
    assert DATASETS["aptos2019"].classes == ("0", "1", "2", "3", "4")
    assert DATASETS["chexpert"].classes == (
        "No Finding",
        "Enlarged Cardiomediastinum",
        "Cardiomegaly",
        "Lung Opacity",
        "Lung Lesion",
        "Edema",
        "Consolidation",
        "Pneumonia",
        "Atelectasis",
        "Pneumothorax",
        "Pleural Effusion",
        "Pleural Other",
        "Fracture",
        "Support Devices",
    )


def test_chexpert_and_its_shift_target_share_labels_but_not_their_order() -> None:
    classes = DATASETS["chexpert"].classes
    assert tuple(sorted(classes)) == MIMIC_COLUMNS
    assert classes != MIMIC_COLUMNS


def test_expected_positives() -> None:
    assert DATASETS["isic2019"].expected_n_positive == {
        "NV": 12_875,
        "MEL": 4_522,
        "BCC": 3_323,
        "BKL": 2_624,
        "AK": 867,
        "SCC": 628,
        "VASC": 253,
        "DF": 239,
    }
    assert DATASETS["aptos2019"].expected_n_positive == {"0": 1_805, "1": 370, "2": 999, "3": 193, "4": 295}
    assert DATASETS["chexpert"].expected_n_positive is None, "known for train.csv alone"


@pytest.mark.parametrize("dataset_id", ["isic2019", "aptos2019"])
def test_expected_positives_of_exclusive_classes_sum_to_the_images(dataset_id: str) -> None:
    card = DATASETS[dataset_id]
    assert card.expected_n_positive is not None
    assert tuple(card.expected_n_positive) == card.classes
    assert sum(card.expected_n_positive.values()) == card.expected_n_images


def test_only_chexpert_has_a_shift_target() -> None:
    assert [card.id for card in DATASETS.values() if card.shift] == ["chexpert"]
    shift = DATASETS["chexpert"].shift
    assert shift is not None
    assert (shift.id, shift.source.layout) == ("mimic_cxr", "mimic_cxr")
    assert shift_condition(shift.id) == "shift_mimic_cxr"


@pytest.mark.parametrize("card", DATASETS.values(), ids=DATASETS)
def test_source_is_the_official_layout_without_a_place(card: DatasetCard) -> None:
    assert card.source.layout == card.id
    assert card.source.root is None, "where the images lie is the home's business"
    assert card.licence


def test_restricted_data_need_an_agreement_of_their_own() -> None:
    shift = DATASETS["chexpert"].shift
    assert shift is not None
    agreements = [DATASETS["aptos2019"].agreement, DATASETS["chexpert"].agreement, shift.agreement]
    assert agreements == ["kaggle-aptos2019-rules", "stanford-aimi-chexpert", "physionet-mimic-cxr-jpg"]
    assert DATASETS["isic2019"].agreement is None, "published under an open licence"
