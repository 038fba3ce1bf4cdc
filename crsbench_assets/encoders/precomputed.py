"""Vectors that were computed elsewhere.

What lives here: reading Parquet files of (image_id, condition_id, vector). What stays out: whether they cover the
support (``embeddings.extract``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from crsbench_assets.config.cards import DatasetCard, EncoderCard
from crsbench_assets.config.errors import ConfigError, reason_of

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    from numpy.typing import NDArray

    from crsbench_assets.encoders.source import Progress

COLUMNS = ("image_id", "condition_id", "vector")


class PrecomputedVectors:
    """Vectors of the files that an encoder's card names for a dataset."""

    nan_reason = "missing"

    def __init__(self, encoder: EncoderCard, dataset: DatasetCard) -> None:
        self._label = f"vectors of encoder {encoder.id!r} for {dataset.id!r}"
        self._files = encoder.vectors[dataset.id]

    def vectors(
        self, condition_id: str, image_ids: Sequence[str], labels: NDArray[np.int8]
    ) -> NDArray[np.float32] | None:
        """See :class:`crsbench_assets.encoders.source.VectorSource`; labels are not looked at."""
        import numpy as np
        import polars as pl

        found = self._by_condition.get(condition_id)
        if found is None:
            return None
        wanted = pl.DataFrame({"image_id": pl.Series(image_ids, dtype=pl.String)})
        usable = found.filter(pl.col("vector").list.len() == self._width)
        joined = wanted.join(usable, on="image_id", how="left", maintain_order="left").get_column("vector")
        matrix = np.full((len(image_ids), self._width), np.nan, dtype=np.float32)
        present = joined.is_not_null().to_numpy()
        if present.any():
            flat = joined.drop_nulls().explode().cast(pl.Float32)
            matrix[present] = flat.fill_null(float("nan")).to_numpy().reshape(-1, self._width)
        return matrix

    def wrong_width(self, condition_id: str) -> Collection[str]:
        """See :class:`crsbench_assets.encoders.source.VectorSource`."""
        import polars as pl

        found = self._by_condition.get(condition_id)
        if found is None:
            return ()
        return found.filter(pl.col("vector").list.len() != self._width).get_column("image_id").to_list()

    def begin(self, wanted: Mapping[str, pl.DataFrame], known: Collection[str], progress: Progress) -> None:
        """See :class:`crsbench_assets.encoders.source.VectorSource`; a misspelt condition would else look absent."""
        unknown = sorted(self._by_condition.keys() - set(known))
        if unknown:
            raise ConfigError(
                f"{self._label}: unknown condition(s) {', '.join(map(repr, unknown))}; the protocol has "
                f"{', '.join(known)}. Rename or remove their rows."
            )

    def unchanged(self, condition_id: str) -> Collection[str]:
        """Return no id: nobody sees the pixels."""
        return ()

    @cached_property
    def _frame(self) -> pl.DataFrame:
        import polars as pl

        frames = []
        for path in self._files:
            try:
                frame = pl.read_parquet(path)
            except (OSError, pl.exceptions.PolarsError) as error:
                raise ConfigError(f"{self._label}: {path} cannot be read as Parquet: {reason_of(error)}.") from None
            missing = [name for name in COLUMNS if name not in frame.columns]
            if missing or not isinstance(frame.schema["vector"], pl.List | pl.Array):
                raise ConfigError(
                    f"{self._label}: {path} has the columns {', '.join(frame.columns)}; expected image_id, "
                    "condition_id and vector, a list of numbers."
                )
            vector = pl.col("vector").cast(pl.List(pl.Float32))
            frames.append(
                frame.select(pl.col("image_id").cast(pl.String), pl.col("condition_id").cast(pl.String), vector)
            )
        frame = pl.concat(frames)
        n_repeated = frame.height - frame.select("image_id", "condition_id").n_unique()
        if n_repeated:
            raise ConfigError(f"{self._label}: {n_repeated} row(s) repeat an image and condition; expected one each.")
        if not (frame.get_column("vector").list.len() > 0).any():
            raise ConfigError(f"{self._label}: {', '.join(self._files)} hold no vector; expected one for every image.")
        return frame

    @cached_property
    def _by_condition(self) -> dict[str, pl.DataFrame]:
        parts = self._frame.partition_by("condition_id", as_dict=True)
        return {str(name): part.select("image_id", "vector") for (name,), part in parts.items()}

    @cached_property
    def _width(self) -> int:
        """Most common width above 0; the smallest of several."""
        widths = self._frame.get_column("vector").list.len()
        return int(widths.filter(widths > 0).mode().min())  # type: ignore[arg-type]
