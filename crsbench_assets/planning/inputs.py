"""The inputs hash: everything a partition was computed from, in one number.

What lives here: the one definition of an inputs hash, used by the planner to find what is stale and by the worker
to stamp what it wrote. What stays out: what follows from a difference (``plan``).
Source: interfaces page, "Identity".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from crsbench_assets.config.cards import DatasetCard, EncoderCard, Source
from crsbench_assets.config.cells import scored_encoders
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.hashes import HASH_LENGTH, content_hash
from crsbench_assets.config.layouts import label_files
from crsbench_assets.planning.stages import StageSpec
from crsbench_assets.storage.layout import PartitionKey
from crsbench_assets.storage.project import Project

_PER_DATASET = {"caps"}
"""Settings that map dataset ids to values: a stage of a dataset depends on its own one."""


@dataclass(frozen=True)
class Inputs:
    """What a partition is computed from: one hash, and the hashes of its parts by name."""

    parts: dict[str, str]

    @cached_property
    def hash(self) -> str:
        """Hash of all parts."""
        text = "\n".join(f"{name}={value}" for name, value in sorted(self.parts.items()))
        return hashlib.sha256(text.encode()).hexdigest()[:HASH_LENGTH]


class InputsHasher:
    """Inputs of a project's partitions; remembers the parts that many partitions share."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._shared: dict[tuple[str, ...], dict[str, str]] = {}

    def inputs(
        self, stage: StageSpec, key: PartitionKey, upstream: Mapping[str, Sequence[tuple[PartitionKey, str]]]
    ) -> Inputs:
        """Return the inputs of one partition of a stage.

        Args:
            stage: the stage.
            key: values of its grain key.
            upstream: for every table it reads, the partitions it uses with their content hashes, sorted.

        Raises:
            ConfigError: a file that the stage reads is gone.
        """
        encoder_id, dataset_id = split_key(stage, key)
        parts: dict[str, str] = {}
        parts |= self._once(("stage", stage.name), lambda: self._stage_part(stage))
        reads_encoder = bool(stage.encoder_fields) or "vector_files" in stage.external
        if reads_encoder and encoder_id is not None and dataset_id is not None:
            parts |= self._once(
                ("encoder", stage.name, encoder_id, dataset_id),
                lambda: self._encoder_part(stage, encoder_id, dataset_id),
            )
        if dataset_id is not None:
            parts |= self._once(("dataset", stage.name, dataset_id), lambda: self._dataset_part(stage, dataset_id))
        for table, partitions in upstream.items():
            # the common case of one partition needs no hash of its own
            single = partitions[0][1] if len(partitions) == 1 else content_hash([list(p) for p in partitions])
            parts[table] = single[:12]
        return Inputs(parts)

    def _once(self, name: tuple[str, ...], compute: Callable[[], dict[str, Any]]) -> dict[str, str]:
        if name not in self._shared:
            self._shared[name] = {part: content_hash(value)[:12] for part, value in compute().items()}
        return self._shared[name]

    def _stage_part(self, stage: StageSpec) -> dict[str, Any]:
        registry, layout = self._project.registry, self._project.layout
        settings = registry.settings.model_dump(mode="json")
        part: dict[str, Any] = {
            "code version": [[t.name, t.code_version, t.schema_version] for t in stage.specs],
        }
        if stage.protocol_fields:
            part["protocol"] = {name: registry.protocol.field(name) for name in stage.protocol_fields}
        of_all = set(stage.settings_fields) - (_PER_DATASET if stage.grain == "dataset" else set())
        if of_all:
            part["settings"] = {name: settings[name] for name in sorted(of_all)}
        if "cards" in stage.external:
            encoders = [
                card.model_dump(mode="json", exclude={"vectors", "place"}) for card in registry.encoders.values()
            ]
            datasets = [placeless(card) for card in registry.datasets.values()]
            part["cards"] = [encoders, datasets]
        if "grid" in stage.external:
            part["grid"] = [[e.encoder_id, e.role, e.dataset_ids] for e in scored_encoders(registry)]
        if "panels" in stage.external:
            part["panels"] = sorted(path.stem for path in layout.panels.glob("*.json"))
        return part

    def _encoder_part(self, stage: StageSpec, encoder_id: str, dataset_id: str) -> dict[str, Any]:
        card: EncoderCard = self._project.registry.encoder(encoder_id)
        part: dict[str, Any] = {}
        if stage.encoder_fields:
            dump = card.model_dump(mode="json", include=set(stage.encoder_fields) - {"cells"})
            if "cells" in stage.encoder_fields and dataset_id in card.cells:
                dump["cells"] = card.cells[dataset_id].model_dump(mode="json", exclude={"planted", "planted_se"})
            part["encoder card"] = dump
        if "vector_files" in stage.external:
            part["vector files"] = [
                self._project.fingerprints.fingerprint(path, f"vectors of encoder {encoder_id!r} for {dataset_id!r}")
                for path in card.vectors.get(dataset_id, ())
            ]
        return part

    def _dataset_part(self, stage: StageSpec, dataset_id: str) -> dict[str, Any]:
        card: DatasetCard = self._project.registry.dataset(dataset_id)
        settings = self._project.registry.settings.model_dump(mode="json")
        open_sources = card.open_sources(settings["agreements"])
        part: dict[str, Any] = {
            name: settings[name].get(dataset_id) for name in sorted(_PER_DATASET & set(stage.settings_fields))
        }
        if stage.dataset_fields:
            dump = card.model_dump(mode="json", include=set(stage.dataset_fields) - {"source", "shift"})
            if "source" in stage.dataset_fields:
                dump["sources"] = {name: self._source_part(source) for name, source in card.sources.items()}
            part["dataset card"] = dump
        if "cohort_files" in stage.external:
            part["cohort files"] = {
                name: [
                    [path.name, self._project.fingerprints.fingerprint(path, f"labels of {dataset_id!r} ({name})")]
                    for path in self._label_files(dataset_id, source)
                ]
                for name, source in open_sources.items()
                if source.layout != "synthetic"
            }
        return part

    @staticmethod
    def _label_files(dataset_id: str, source: Source) -> list[Path]:
        found = label_files(source)
        if not found:
            raise ConfigError(
                f"dataset {dataset_id!r}: {source.root} holds none of the files of the layout {source.layout}: put the "
                "data there, or correct `roots` in crsbench.yaml."
            )
        return found

    @staticmethod
    def _source_part(source: Source) -> Any:
        # where the files lie does not change what they say: a moved home or root makes nothing stale
        return source.model_dump(mode="json", exclude={"root", "manifest"})


def placeless(card: DatasetCard) -> dict[str, Any]:
    """Return a dataset's card without the places of its files, which a moved home changes."""
    places = {"root", "manifest"}
    return card.model_dump(mode="json", exclude={"source": places, "shift": {"source": places}})


def split_key(stage: StageSpec, key: PartitionKey) -> tuple[str | None, str | None]:
    """Return (encoder_id, dataset_id) of a partition, with None where the grain has none."""
    if stage.grain == "cell":
        return key[0], key[1]
    if stage.grain == "dataset":
        return None, key[0]
    return None, None
