"""Marks: what a reader must know of an encoder before its numbers are compared with others', in words.

What lives here: which images an encoder saw in pretraining, under which terms its weights are used, and which encoders
are not independent, all of it from the cards. What stays out: scores that leave exposed terms out
(``analyses.crs_variants``) and where a mark stands on the page (``templates``).
Source: protocol page, sections 1 and 6.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from crsbench_assets.config.ids import shift_condition

if TYPE_CHECKING:
    import polars as pl

WITH_SHIFT_TERMS = "robustness"
"""The axis that images of the shift target have a part in."""


class Marks:
    """Marks of the encoders of a warehouse.

    Args:
        encoders: the table ``encoders``.
        datasets: the table ``datasets``; exposure to others says nothing about a number of this warehouse.

    Example:
        >>> import polars as pl
        >>> encoders = pl.DataFrame({
        ...     "encoder_id": ["a"], "name": ["A"], "family": [None], "is_gated": [False], "is_non_commercial": [True],
        ...     "role": ["candidate"], "is_synthetic": [False], "same_encoder_as": ["[]"],
        ...     "exposure": ['{"ward": "seen"}']})
        >>> marks = Marks(encoders, pl.DataFrame({"dataset_id": ["chest"], "shift_id": ["ward"]}))
        >>> marks.of_encoder("a")
        ('saw ward', 'exposure to chest unknown', 'non-commercial')
        >>> marks.of_row("a", {"dataset_id": "chest", "condition_id": "clean"})
        ()
        >>> marks.of_row("a", {"dataset_id": "chest", "condition_id": "shift_ward"})
        ('saw ward',)
    """

    def __init__(self, encoders: pl.DataFrame, datasets: pl.DataFrame) -> None:
        self._encoders = {row["encoder_id"]: row for row in encoders.iter_rows(named=True)}
        self._exposure = {key: json.loads(row["exposure"]) for key, row in self._encoders.items()}
        self._shift = dict(datasets.select("dataset_id", "shift_id").iter_rows())

    def of_encoder(self, encoder_id: str) -> tuple[str, ...]:
        """Return the marks of an encoder beside numbers that are made of all its datasets.

        Controls were not pretrained, and nobody knows what simulated vectors would have seen: of those only what their
        card says.
        """
        row = self._encoders.get(encoder_id)
        if row is None:
            return ()
        found = []
        if seen := self._with_exposure(encoder_id, "seen"):
            found.append(f"saw {', '.join(seen)}")
        if unknown := self.unknown(encoder_id):
            found.append(
                "exposure unknown" if unknown == self._concerned else f"exposure to {', '.join(unknown)} unknown"
            )
        if row["is_non_commercial"]:
            found.append("non-commercial")
        if row["is_gated"]:
            found.append("gated")
        for group in self.same_encoder:
            if encoder_id in group:
                found.append(f"same encoder as {', '.join(self.name(key) for key in group if key != encoder_id)}")
        return tuple(found)

    def of_row(self, encoder_id: str, row: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the marks beside numbers of one encoder on one dataset: which of their images it saw.

        Args:
            encoder_id: whose numbers they are.
            row: of a table. The shift target matters where the row names it, is of its condition, or holds an axis
                that has terms of it. A row without a dataset has no mark here.
        """
        dataset_id = row.get("dataset_id")
        if encoder_id not in self._encoders or dataset_id not in self._shift:
            return ()
        concerned, shift_id = {dataset_id}, self._shift[dataset_id]
        if shift_id is not None and (
            "shift_id" in row
            or row.get("axis") == WITH_SHIFT_TERMS
            or row.get("condition_id") == shift_condition(shift_id)
        ):
            concerned.add(shift_id)
        seen = [name for name in self._with_exposure(encoder_id, "seen") if name in concerned]
        return (f"saw {', '.join(seen)}",) if seen else ()

    def unknown(self, encoder_id: str) -> list[str]:
        """Return the datasets and shift targets of which nobody says whether the encoder saw them."""
        row = self._encoders[encoder_id]
        is_pretrained = row["role"] != "control" and not row["is_synthetic"]
        unsaid = "unknown" if is_pretrained else "not_seen"
        return self._with_exposure(encoder_id, "unknown", unsaid)

    def name(self, encoder_id: str) -> str:
        """Return the name for people."""
        return str(self._encoders[encoder_id]["name"] or encoder_id)

    @cached_property
    def exposed(self) -> dict[str, list[str]]:
        """Dataset or shift target -> encoders that saw it, by id; those that nobody saw are left out."""
        found = {
            concerned: [key for key in self._encoders if concerned in self._with_exposure(key, "seen")]
            for concerned in self._concerned
        }
        return {concerned: seen for concerned, seen in found.items() if seen}

    @cached_property
    def of_unknown(self) -> list[str]:
        """Encoders of which it is unknown for a dataset or shift target whether they saw it."""
        return [key for key in self._encoders if self.unknown(key)]

    @cached_property
    def same_encoder(self) -> list[list[str]]:
        """Groups of encoders that are one by the card of at least one of them, sorted."""
        group = {key: {key} for key in self._encoders}
        for key, row in self._encoders.items():
            for other in json.loads(row["same_encoder_as"]):
                if other in group:
                    joined = group[key] | group[other]
                    group |= dict.fromkeys(joined, joined)
        return [list(members) for members in sorted({tuple(sorted(m)) for m in group.values() if len(m) > 1})]

    @cached_property
    def families(self) -> dict[str, list[str]]:
        """Family -> its encoders, where there are several; controls have none."""
        found: dict[str, list[str]] = {}
        for key, row in self._encoders.items():
            if row["family"] and row["role"] != "control":
                found.setdefault(row["family"], []).append(key)
        return {family: members for family, members in sorted(found.items()) if len(members) > 1}

    @cached_property
    def _concerned(self) -> list[str]:
        """Datasets, each with its shift target after it."""
        return [name for pair in self._shift.items() for name in pair if name is not None]

    def _with_exposure(self, encoder_id: str, exposure: str, unsaid: str = "") -> list[str]:
        said = self._exposure[encoder_id]
        return [name for name in self._concerned if said.get(name, unsaid) == exposure]
