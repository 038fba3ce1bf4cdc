"""Tables of catalogue and cohort: encoders, datasets, images, splits and what was left out.

What lives here: their shapes. What stays out: the tables of results (``results``) and scores (``scores``).
"""

from __future__ import annotations

from crsbench_assets.tables.columns import CLASS_NAME, DATASET_ID, ENCODER_ID, IMAGE_ID, REASON, SEED, count
from crsbench_assets.tables.schema import ColumnSpec, TableSpec

SPLIT = ColumnSpec("split", "text", "`train`, `validation` or `test`")
SOURCE_ID = ColumnSpec("source_id", "text", "`primary`, or the id of the shift target")

COHORT_TABLES = (
    TableSpec(
        "encoders",
        "One row per active encoder: who it is and where it comes from. Retired encoders stay, marked.",
        "whole",
        ("encoder_id",),
        (
            ENCODER_ID,
            ColumnSpec("name", "text", "Name for people"),
            ColumnSpec("kind", "text", "How its vectors are made: timm, open_clip, transformers, synthetic, ..."),
            ColumnSpec("role", "text", "`candidate`, or `control`: scored, never a panel member"),
            ColumnSpec("category", "text", "`generalist`, `broad_medical` or `specialty`", nullable=True),
            ColumnSpec("family", "text", "Encoders of one family are not independent", nullable=True),
            ColumnSpec("pretraining_objective", "text", "What it was trained to do", nullable=True),
            ColumnSpec("licence", "text", "Licence of the weights", nullable=True),
            ColumnSpec("hub_id", "text", "Name in its library or hub", nullable=True),
            ColumnSpec("revision", "text", "Pinned revision of the weights", nullable=True),
            ColumnSpec("exposure", "text", "JSON: dataset or shift id -> seen, not_seen, unknown"),
            ColumnSpec("is_inferred", "boolean", "The paper does not name this member"),
            ColumnSpec("is_synthetic", "boolean", "Vectors are simulated"),
            ColumnSpec("is_retired", "boolean", "Kept, but neither computed nor ranked"),
            ColumnSpec("card_hash", "text", "Hash of the whole card"),
        ),
    ),
    TableSpec(
        "datasets",
        "One row per active dataset.",
        "whole",
        ("dataset_id",),
        (
            DATASET_ID,
            ColumnSpec("name", "text", "Name for people"),
            ColumnSpec("dataset_version", "text", "Version of the data", nullable=True),
            ColumnSpec("modality", "text", "dermoscopy, fundus, xray or other"),
            ColumnSpec("task", "text", "single_label, ordinal or multi_label"),
            count("n_classes", "Number of classes or labels"),
            ColumnSpec("classes", "text", "JSON list of the class names, in order"),
            ColumnSpec("shift_id", "text", "Shift target", nullable=True),
            ColumnSpec("licence", "text", "Licence of the data", nullable=True),
            ColumnSpec("label_policy", "text", "What an uncertain label became"),
            ColumnSpec("is_synthetic", "boolean", "The cohort is simulated"),
            ColumnSpec("card_hash", "text", "Hash of the whole card"),
        ),
    ),
    TableSpec(
        "images",
        "One row per image of the dataset and of its shift target: group and labels, as read.",
        "dataset",
        ("source_id", "image_id"),
        (
            DATASET_ID,
            SOURCE_ID,
            IMAGE_ID,
            ColumnSpec("group_index", "integer", "Number of the patient, lesion or other group", low=0),
            ColumnSpec("group_id", "text", "Salted hash of the group's raw id", volatile=True),
            ColumnSpec("declared_split", "text", "Split that the cohort itself declares", nullable=True),
            ColumnSpec("labels", "integers", "One number per class: 1, 0, or NULL where unknown"),
        ),
        is_bulk=True,
    ),
    TableSpec(
        "quarantine",
        "One row per image that was left out of the support, with its reason. No row: nothing was left out.",
        "dataset",
        ("source_id", "image_id"),
        (
            DATASET_ID,
            SOURCE_ID,
            IMAGE_ID,
            ColumnSpec("reason", "text", "Why it was left out"),
            ColumnSpec("detail", "text", "What was found", nullable=True),
        ),
    ),
    TableSpec(
        "splits",
        "One row per image and seed: its split, and its place in the order of the training labels.",
        "dataset",
        ("image_id", "seed"),
        (
            DATASET_ID,
            IMAGE_ID,
            SEED,
            ColumnSpec("split", "text", "`train`, `validation`, `test`, or `left_out`: in no split, with a reason"),
            ColumnSpec(
                "position",
                "integer",
                "Place in the stratified order of the training split; a label fraction is a prefix of it",
                nullable=True,
                low=0,
            ),
            REASON,
        ),
        is_bulk=True,
    ),
    TableSpec(
        "dataset_statistics",
        "One row per source, seed, split and class: how many images and groups. The test split repeats per seed.",
        "dataset",
        ("source_id", "seed", "split", "class_name"),
        (
            DATASET_ID,
            SOURCE_ID,
            SEED,
            SPLIT,
            CLASS_NAME,
            count("n_images", "Images of the split"),
            count("n_groups", "Groups of the split"),
            count("n_positive", "Images with this class or a positive label"),
            count("n_unknown", "Images whose label is unknown"),
            ColumnSpec("test_set_hash", "text", "Hash of the sorted ids of the test images"),
            ColumnSpec("feasible_fractions", "text", "JSON list of the label fractions that every seed can draw"),
        ),
    ),
    TableSpec(
        "leakage_violations",
        "One row per pair of splits that share a group. No row is the right answer.",
        "dataset",
        ("seed", "group_index", "split_a", "split_b"),
        (
            DATASET_ID,
            SEED,
            ColumnSpec("group_index", "integer", "The group that straddles two splits", low=0),
            ColumnSpec("split_a", "text", "One split"),
            ColumnSpec("split_b", "text", "The other split"),
            ColumnSpec("image_id_a", "text", "An image of it in the one"),
            ColumnSpec("image_id_b", "text", "An image of it in the other"),
        ),
    ),
    TableSpec(
        "embedding_failures",
        "One row per image and condition without a finite vector of this encoder. No row is the right answer.",
        "cell",
        ("condition_id", "image_id"),
        (
            ENCODER_ID,
            DATASET_ID,
            ColumnSpec("condition_id", "text", "Condition under which the vector is missing"),
            IMAGE_ID,
            ColumnSpec("reason", "text", "missing, not_finite or wrong_width"),
        ),
        explains_failure=True,
    ),
    TableSpec(
        "embeddings",
        "One row per image and condition: the encoder's vector. Corrupted conditions hold the test images only.",
        "cell",
        ("condition_id", "image_id"),
        (
            ENCODER_ID,
            DATASET_ID,
            ColumnSpec("condition_id", "text", "`clean` or a corruption with its severity"),
            IMAGE_ID,
            ColumnSpec("vector", "reals", "Vector of width d"),
        ),
        is_bulk=True,
    ),
    TableSpec(
        "shift_embeddings",
        "One row per image of the shift target: the encoder's vector. No shift target: no row.",
        "cell",
        ("condition_id", "image_id"),
        (
            ENCODER_ID,
            DATASET_ID,
            ColumnSpec("condition_id", "text", "`shift_<id>`"),
            IMAGE_ID,
            ColumnSpec("vector", "reals", "Vector of width d"),
        ),
        is_bulk=True,
    ),
)
