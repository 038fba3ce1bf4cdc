"""Which files of a cohort say what its images are.

What lives here: the names of the label files of every layout. What stays out: reading them (``data.sources``).
Source: the owners' releases; docs/add-a-dataset.md lists them.
"""

from __future__ import annotations

from pathlib import Path

from crsbench_assets.config.cards import Source

ISIC2019_TRUTH = "ISIC_2019_Training_GroundTruth.csv"
ISIC2019_METADATA = "ISIC_2019_Training_Metadata.csv"
APTOS2019_LABELS = "train.csv"
CHEXPERT_TABLES = ("train.csv", "valid.csv")
CHEXPERT_FOLDERS = ("CheXpert-v1.0", "CheXpert-v1.0-small")
"""Folder of the release inside a root, where the root is not that folder itself."""


CHEXPERT_BATCHES = (
    "CheXpert-v1.0 batch 1 (validate & csv)",
    "CheXpert-v1.0 batch 2 (train 1)",
    "CheXpert-v1.0 batch 3 (train 2)",
    "CheXpert-v1.0 batch 4 (train 3)",
)
"""Folders that Stanford AIMI serves the full release in: the first holds the tables and ``valid``, the others patients
of ``train``."""

MIMIC_CXR_VERSIONS = ("2.0.0", "2.1.0")
"""Versions in the names of tables; the release 2.1.0 kept those of 2.0.0, and copies were renamed."""

MIMIC_CXR_LABELLERS = ("chexpert", "negbio")
"""Tables of labels, the first that is there is read: CheXpert's own labels come from the first."""


def mimic_cxr_table(name: str) -> tuple[str, ...]:
    """Return the names that a table of MIMIC-CXR-JPG may have: of each version, as published or unpacked."""
    return tuple(f"mimic-cxr-{version}-{name}.csv{packed}" for version in MIMIC_CXR_VERSIONS for packed in (".gz", ""))


_CHEXPERT_PARTS = (*CHEXPERT_TABLES, "train", "valid")

_LABEL_FILES: dict[str, tuple[str, ...]] = {
    "isic2019": (ISIC2019_TRUTH, ISIC2019_METADATA),
    "aptos2019": (APTOS2019_LABELS,),
    "chexpert": tuple(
        f"{folder}{name}"
        for folder in ("", *(f"{inner}/" for inner in (*CHEXPERT_FOLDERS, CHEXPERT_BATCHES[0])))
        for name in CHEXPERT_TABLES
    ),
    "mimic_cxr": tuple(path for name in ("metadata", "split", *MIMIC_CXR_LABELLERS) for path in mimic_cxr_table(name)),
}


def image_root(source: Source) -> str | None:
    """Return the folder that the paths of a source's images start at.

    ``root``, else the manifest's folder. Of CheXpert the folder of the release, whether the root is it or holds it, so
    that paths are the same for both.
    """
    base = source.root or (str(Path(source.manifest).parent) if source.manifest else None)
    if source.layout != "chexpert" or base is None or any((Path(base) / name).exists() for name in _CHEXPERT_PARTS):
        return base
    inner = [Path(base) / name for name in CHEXPERT_FOLDERS if (Path(base) / name).is_dir()]
    return str(inner[0]) if len(inner) == 1 else base


def label_files(source: Source) -> list[Path]:
    """Return the files of a source that say what its images are, those that are there; for a manifest itself."""
    if source.manifest:
        return [Path(source.manifest)]
    if source.root is None:
        return []
    return [path for name in _LABEL_FILES.get(source.layout, ()) if (path := Path(source.root) / name).is_file()]
