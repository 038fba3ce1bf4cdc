"""The content hash: equal rows give equal hashes, and nothing else does."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.storage.hashing import FileFingerprints, frame_hash
from crsbench_assets.tables.schema import ColumnSpec, ColumnType, TableSpec

ID, NOTE = ColumnSpec("id", "text", "Key"), ColumnSpec("note", "text", "Varies", nullable=True, volatile=True)


def spec(column_type: ColumnType, name: str = "x") -> TableSpec:
    column = ColumnSpec(name, column_type, "Value", nullable=True)
    return TableSpec("t", "One row per id.", "whole", ("id",), (ID, column, NOTE))


def hash_of(values: list[Any], column_type: ColumnType = "real", ids: str = "abcdefgh", name: str = "x") -> str:
    table = spec(column_type, name)
    rows = {"id": list(ids[: len(values)]), name: values, "note": [None] * len(values)}
    return frame_hash(pl.DataFrame(rows, schema=table.polars_schema()), table)


def test_a_golden_hash() -> None:
    # every pointer of every lake holds such hashes: another one would make everything stale
    assert hash_of([0.5, None, 2.0]) == "851b1ba4053a6890e1f735cc63c795fa"
    assert hash_of([[1.0, None], None], "reals") == "20380f9527e6c17407a92dfe6106b2c2"


@pytest.mark.parametrize(
    ("one", "other", "column_type"),
    [
        ([1.0, 2.0], [1.0, 2.0000000000000004], "real"),
        ([1.0, 2.0], [2.0, 1.0], "real"),
        ([1.0], [1.0, 1.0], "real"),
        ([0.0], [None], "real"),
        ([0], [None], "integer"),
        ([""], [None], "text"),
        (["ab", "c"], ["a", "bc"], "text"),
        ([False], [None], "boolean"),
        ([[]], [None], "reals"),
        ([[0.0]], [[None]], "reals"),
        ([[1.0], [2.0, 3.0]], [[1.0, 2.0], [3.0]], "reals"),
        ([[1, 2]], [[2, 1]], "integers"),
        ([[1], None], [None, [1]], "integers"),
    ],
)
def test_another_value_is_another_hash(one: list[Any], other: list[Any], column_type: ColumnType) -> None:
    assert hash_of(one, column_type) != hash_of(other, column_type)
    assert hash_of(one, column_type) == hash_of(one, column_type)


def test_a_type_a_name_and_a_key_are_content() -> None:
    assert hash_of([1.0], "real") != hash_of([1.0], "real32") != hash_of([1], "integer")
    assert hash_of([1.0]) != hash_of([1.0], name="y")
    assert hash_of([1.0]) != hash_of([1.0], ids="z")


def test_the_bits_decide_also_the_sign_of_zero() -> None:
    # equal numbers of other bits are other content: what is computed again costs time, what is missed costs truth
    assert hash_of([0.0]) != hash_of([-0.0])


def test_no_row_has_a_hash_that_depends_on_the_shape() -> None:
    assert hash_of([]) == hash_of([])
    assert hash_of([]) != hash_of([], "integer")


def test_volatile_columns_are_left_out() -> None:
    table = spec("real")
    rows = pl.DataFrame({"id": ["a"], "x": [1.0], "note": ["today"]}, schema=table.polars_schema())
    assert frame_hash(rows, table) == frame_hash(rows.with_columns(note=pl.lit("tomorrow")), table)


@given(st.permutations(list(range(6))))
def test_the_order_of_rows_is_nothing(order: list[int]) -> None:
    table = spec("reals")
    values = [[0.5], None, [], [1.0, None], [2.0], None]
    rows = pl.DataFrame({"id": list("abcdef"), "x": values, "note": [None] * 6}, schema=table.polars_schema())
    assert frame_hash(rows[order], table) == frame_hash(rows, table)


def test_chunks_are_nothing() -> None:
    table = spec("text")
    rows = pl.DataFrame({"id": ["a", "b"], "x": ["1", "2"], "note": [None, None]}, schema=table.polars_schema())
    assert frame_hash(pl.concat([rows[:1], rows[1:]], rechunk=False), table) == frame_hash(rows, table)


def test_a_fingerprint_follows_the_bytes(tmp_path: Path) -> None:
    path = tmp_path / "vectors.parquet"
    path.write_bytes(b"one")
    fingerprints = FileFingerprints(tmp_path / "cache" / "fingerprints.json")
    first = fingerprints.fingerprint(path, "vectors")
    path.write_bytes(b"two")
    os.utime(path, ns=(1, 1))
    assert fingerprints.fingerprint(path, "vectors") != first
    path.write_bytes(b"one")
    assert fingerprints.fingerprint(path, "vectors") == first


def test_a_fingerprint_is_remembered_over_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = tmp_path / "vectors.parquet", tmp_path / "cache.json"
    path.write_bytes(b"one")
    first = FileFingerprints(cache).fingerprint(path, "vectors")

    def refuse(*_: object) -> None:
        raise AssertionError("the file was read again")

    monkeypatch.setattr("hashlib.file_digest", refuse)
    assert FileFingerprints(cache).fingerprint(path, "vectors") == first


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"a file where the folder should be")
    path = tmp_path / "vectors.parquet"
    path.write_bytes(b"one")
    assert len(FileFingerprints(tmp_path / "cache" / "f.json").fingerprint(path, "vectors")) == 64


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff"])
def test_a_damaged_cache_is_written_anew(tmp_path: Path, content: bytes) -> None:
    path, cache = tmp_path / "vectors.parquet", tmp_path / "f.json"
    path.write_bytes(b"one")
    cache.write_bytes(content)
    fingerprint = FileFingerprints(cache).fingerprint(path, "vectors")
    assert fingerprint in cache.read_text(encoding="utf-8")


def test_a_file_that_is_gone_is_named_with_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"manifest of 'tiny': .*gone\.csv cannot be read \(No such file"):
        FileFingerprints(tmp_path / "f.json").fingerprint(tmp_path / "gone.csv", "manifest of 'tiny'")


def test_the_cache_holds_no_secret_of_others(tmp_path: Path) -> None:
    path = tmp_path / "vectors.parquet"
    path.write_bytes(b"one")
    cache = tmp_path / "f.json"
    FileFingerprints(cache).fingerprint(path, "vectors")
    assert not stat.S_IMODE(cache.stat().st_mode) & stat.S_IWOTH
