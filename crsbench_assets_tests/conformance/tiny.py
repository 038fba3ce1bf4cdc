"""A benchmark small enough to recompute in plain Python, stored as CSV: its logits and its right answers.

What lives here: the drawing of four encoders' logits on two datasets, the reading of the stored files, and the right
answers by ``plain``. What stays out: the answers of the implementation, which ``test_conformance`` holds against
these. Run as a module to write ``data/`` anew; the files under version control are the reference.

    chest   multi-label, 3 labels, 24 test images, shift target ``ward`` (24 images) in which ``fracture`` never
            occurs; some labels unknown; at fraction 0.05 and seed 0 ``fracture`` is not fitted; probabilities on the
            edges of bins, saturated ones and ties
    skin    single-label, 3 classes, 24 test images; fraction 0.05 is infeasible; in seed 1 the class ``melanoma``
            is not fitted

    alpha, beta     candidates, both datasets
    gamma           candidate, chest only
    untrained       control, both datasets: scored, never a member

Two seeds, fractions 0.05, 0.1 and 1, one corruption of two kinds at one severity. Logits are multiples of 1/8 or on a
bin edge, so ties are many and float32 holds them as written.
"""

from __future__ import annotations

import csv
import math
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets_tests.conformance import plain

DATA = Path(__file__).parent / "data"
GRID = plain.Grid(seeds=(0, 1), label_fractions=(0.05, 0.1, 1.0), corruptions=("blur-s1", "jpeg-s1"), shift_weight=0.5)
N_IMAGES = 24
SIGNALS = {"alpha": 2.5, "beta": 1.5, "gamma": 2.0, "untrained": 0.0}
"""Encoder -> distance of the classes in logits."""
DECAYS = {"alpha": 0.4, "beta": 0.2, "gamma": 1.0, "untrained": 0.0}
"""Encoder -> part of the loss in signal, by few labels or another condition, that it suffers."""
MEMBERS = ("alpha", "beta", "gamma")


class Dataset(NamedTuple):
    """What a dataset of the tiny benchmark is."""

    classes: tuple[str, ...]
    is_multi_label: bool
    shift: str | None
    encoders: tuple[str, ...]
    infeasible: tuple[float, ...]


DATASETS = {
    "chest": Dataset(("edema", "effusion", "fracture"), True, "ward", ("alpha", "beta", "gamma", "untrained"), ()),
    "skin": Dataset(("benign", "naevus", "melanoma"), False, None, ("alpha", "beta", "untrained"), (0.05,)),
}

Image = tuple[str, int, list[int | None]]
"""Source, group, and one label per class."""


class StoredRecord(NamedTuple):
    """One record: its logits, labels and groups by image; empty where the fraction is infeasible."""

    encoder: str
    seed: int
    fraction: float
    condition: str
    source: str
    logits: list[list[float | None]]
    labels: list[list[int | None]]
    groups: list[int]


def read_rows(name: str) -> list[dict[str, str | None]]:
    """Return the rows of a stored file; an empty field is None."""
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return [{key: value or None for key, value in row.items()} for row in csv.DictReader(file)]


def records(dataset_id: str) -> Iterator[StoredRecord]:
    """Yield every record of a dataset in stored order, then those of its infeasible fractions."""
    dataset = DATASETS[dataset_id]
    images = {
        row["image_id"]: (row["source"], int(row["group"] or 0), [_integer(row[name]) for name in dataset.classes])
        for row in read_rows(f"{dataset_id}_images")
    }
    by_record: dict[tuple[str, int, float, str], StoredRecord] = {}
    for row in read_rows(f"{dataset_id}_logits"):
        encoder, condition = row["encoder_id"] or "", row["condition_id"] or ""
        key = encoder, int(row["seed"] or 0), float(row["label_fraction"] or 0), condition
        source, group, labels = images[row["image_id"]]
        record = by_record.setdefault(key, StoredRecord(*key, source or "", [], [], []))
        record.logits.append([_real(row[name]) for name in dataset.classes])
        record.labels.append(labels)
        record.groups.append(group)
    yield from by_record.values()
    for encoder in dataset.encoders:
        for seed in GRID.seeds:
            for fraction in dataset.infeasible:
                yield StoredRecord(encoder, seed, fraction, "clean", "primary", [], [], [])


def answers() -> dict[str, list[dict[str, Any]]]:
    """Return the right rows of every table, by plain Python from the stored logits."""
    runs: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    axes: list[dict[str, Any]] = []
    for dataset_id, dataset in DATASETS.items():
        for record in records(dataset_id):
            key = {
                "encoder_id": record.encoder,
                "dataset_id": dataset_id,
                "seed": record.seed,
                "label_fraction": record.fraction,
                "condition_id": record.condition,
            }
            if not record.logits:
                nothing = {"macro_auroc": None, "ece": None, "n_defined_auroc": 0, "reason": "infeasible_fraction"}
                runs.append(key | nothing)
                labels += [key | {"class_name": name, "auroc": None, "ece": None} for name in dataset.classes]
                continue
            found = plain.measured(record.logits, record.labels, is_multi_label=dataset.is_multi_label)
            # an image of a class without a logit has likelihood 0: the NLL alone is undefined
            is_impossible = not dataset.is_multi_label and any(
                None in (logit for logit, label in zip(of_image, truth, strict=True) if label == 1)
                for of_image, truth in zip(record.logits, record.labels, strict=True)
            )
            runs.append(
                key
                | {name: found[name] for name in ("macro_auroc", "ece", "n_defined_auroc")}
                | {"reason": "class_absent_train" if is_impossible else None}
            )
            labels += [
                key | {"class_name": name, "auroc": found["auroc"][k], "ece": found["label_ece"][k]}
                for k, name in enumerate(dataset.classes)
            ]
        for encoder in dataset.encoders:
            of_cell = plain.cell_axes(
                [row for row in runs if (row["encoder_id"], row["dataset_id"]) == (encoder, dataset_id)],
                [row for row in labels if (row["encoder_id"], row["dataset_id"]) == (encoder, dataset_id)],
                grid=GRID,
                shift=f"shift_{dataset.shift}" if dataset.shift else None,
            )
            axes += [
                {
                    "encoder_id": encoder,
                    "dataset_id": dataset_id,
                    "axis": axis,
                    "variant": variant,
                    "value": found_axis.value,
                    "seed_values": found_axis.seed_values,
                }
                for (axis, variant), found_axis in of_cell.items()
            ]
    cells = plain.complete_cells(axes, "primary")
    scores = plain.score_tables(cells, list(cells), MEMBERS)
    ranks = plain.competition_ranks({row["encoder_id"]: row["crs"] for row in ranked(scores["crs_scores"])})
    for row in scores["crs_scores"]:
        row["rank"] = ranks.get(row["encoder_id"])
    return {"run_records": runs, "label_metrics": labels, "cell_axes": axes} | scores


def ranked(scores: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of candidates, which alone have a rank: here, the members."""
    return [row for row in scores if row["encoder_id"] in MEMBERS]


def _text(value: Any) -> Any:
    return " ".join("-" if own is None else repr(own) for own in value) if isinstance(value, list) else value


def _integer(text: str | None) -> int | None:
    return None if text is None else int(text)


def _real(text: str | None) -> float | None:
    return None if text is None else float(text)


def _write(name: str, rows: list[dict[str, Any]]) -> None:
    with (DATA / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _text(value) for key, value in row.items()} for row in rows)


def _draw_images(dataset_id: str) -> list[dict[str, Any]]:
    dataset = DATASETS[dataset_id]
    rows = []
    for source in ("primary", *([dataset.shift] if dataset.shift else [])):
        generator = keyed_generator("tiny benchmark", dataset_id, source)
        for i in range(N_IMAGES):
            if dataset.is_multi_label:
                label: list[int | None] = [int(u) for u in generator.random(3) < 0.4]
                label = [None if unknown else y for y, unknown in zip(label, generator.random(3) < 0.08, strict=True)]
                if source != "primary" and label[2] is not None:
                    label[2] = 0
            else:
                label = [int(i % 3 == k) for k in range(3)]
            row = {"image_id": f"{source}-{i:02}", "source": source, "group": i // 2}
            rows.append(row | dict(zip(dataset.classes, label, strict=True)))
    return rows


def _draw_logits(dataset_id: str, images: list[dict[str, Any]]) -> list[dict[str, Any]]:
    dataset = DATASETS[dataset_id]
    strengths = {(f, "clean"): 0.5 + 0.5 * f for f in GRID.label_fractions if f not in dataset.infeasible}
    strengths |= {(1.0, "blur-s1"): 0.8, (1.0, "jpeg-s1"): 0.7}
    if dataset.shift:
        strengths[1.0, f"shift_{dataset.shift}"] = 0.6
    rows = []
    for encoder in dataset.encoders:
        for seed in GRID.seeds:
            for (fraction, condition), strength in strengths.items():
                source = dataset.shift if condition.startswith("shift_") else "primary"
                generator = keyed_generator("tiny benchmark", dataset_id, encoder, seed, fraction, condition)
                unfitted = _unfitted(dataset_id, seed, fraction)
                signal = SIGNALS[encoder] * (1.0 - DECAYS[encoder] * (1.0 - strength))
                for image in images:
                    if image["source"] != source:
                        continue
                    row = {
                        "encoder_id": encoder,
                        "seed": seed,
                        "label_fraction": fraction,
                        "condition_id": condition,
                        "image_id": image["image_id"],
                    }
                    for name in dataset.classes:
                        centre = signal * ((image[name] or 0) - 0.5)
                        edge = int(generator.integers(1, plain.N_BINS))
                        logit = _logit(centre + generator.normal(), generator.random(), edge)
                        row[name] = None if name in unfitted else logit
                    rows.append(row)
    return rows


def _unfitted(dataset_id: str, seed: int, fraction: float) -> tuple[str, ...]:
    if dataset_id == "chest":
        return ("fracture",) if (seed, fraction) == (0, 0.05) else ()
    return ("melanoma",) if seed == 1 else ()


def _logit(drawn: float, choice: float, edge: int) -> float:
    """Return the drawn logit in eighths, or now and then one on an edge of a bin, or a saturated one."""
    if choice < 0.15:
        (edge_logit,) = struct.unpack("<f", struct.pack("<f", math.log(edge / (plain.N_BINS - edge))))
        return float(edge_logit)
    if choice > 0.97:
        return math.copysign(40.0, drawn)
    return round(8 * drawn) / 8 + 0.0


def main() -> None:
    """Write the logits, then the right answers from the files just written."""
    DATA.mkdir(exist_ok=True)
    for dataset_id in DATASETS:
        images = _draw_images(dataset_id)
        _write(f"{dataset_id}_images", images)
        _write(f"{dataset_id}_logits", _draw_logits(dataset_id, images))
    for table, rows in answers().items():
        _write(f"right_{table}", rows)


if __name__ == "__main__":
    main()
