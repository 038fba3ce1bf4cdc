"""Commits and what a reader finds: rows, a status, or one sentence."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from crsbench_assets.config.errors import StorageError
from crsbench_assets.storage import leases
from crsbench_assets.storage.lake import POINTER_FILE, Lake, Pointer, Provenance
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.tables.registry import TABLES

KEY = ("tiny",)
PROVENANCE = Provenance("inputs", {"part": "hash"}, 0.25, "run-1")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(HomeLayout(tmp_path))


def rows(*ids: str) -> pl.DataFrame:
    return pl.DataFrame(
        [("tiny", "primary", identifier, "blank_class", None) for identifier in ids],
        schema=TABLES["quarantine"].polars_schema(),
        orient="row",
    )


def commit(lake: Lake, *ids: str, status: str = "ok", reason: str | None = None) -> Pointer:
    return lake.commit("quarantine", KEY, rows(*ids), PROVENANCE, status=status, reason=reason, detail="in words")


def test_what_is_committed_is_read(lake: Lake) -> None:
    pointer = commit(lake, "b", "a")
    assert lake.read("quarantine", KEY).equals(rows("a", "b"))
    assert lake.read("quarantine", KEY, ["image_id"]).columns == ["image_id"]
    assert lake.pointer("quarantine", KEY) == pointer
    assert (pointer.status, pointer.n_rows, pointer.run_id, pointer.inputs) == ("ok", 2, "run-1", {"part": "hash"})
    assert pointer.files == (f"part-{pointer.content_hash}.parquet",)
    assert pointer.n_bytes == lake.files("quarantine", KEY)[0].stat().st_size
    assert pointer.stage_contents == {"quarantine": pointer.content_hash}


def test_many_partitions_are_read_one_after_the_other(lake: Lake) -> None:
    # quarantine of tiny: a, b; of wide: c, and of none: no row
    for dataset_id, ids in (("tiny", ("b", "a")), ("wide", ("c",)), ("none", ())):
        frame = rows(*ids).with_columns(dataset_id=pl.lit(dataset_id))
        lake.commit("quarantine", (dataset_id,), frame, PROVENANCE)
    keys = [("wide",), ("none",), ("tiny",)]
    found = lake.read_all("quarantine", keys)
    assert found.equals(pl.concat([lake.read("quarantine", key) for key in keys]))
    assert found.select("dataset_id", "image_id").rows() == [("wide", "c"), ("tiny", "a"), ("tiny", "b")]
    some = lake.read_all("quarantine", keys, ["image_id"], pl.col("dataset_id") == "tiny")
    assert some.to_dict(as_series=False) == {"image_id": ["a", "b"]}
    assert lake.read_all("quarantine", []).equals(TABLES["quarantine"].empty())
    assert lake.read_all("quarantine", [], ["image_id"], pl.col("dataset_id") == "tiny").columns == ["image_id"]


def test_of_many_partitions_the_one_without_rows_is_named(lake: Lake) -> None:
    for dataset_id in ("tiny", "wide"):
        lake.commit("quarantine", (dataset_id,), rows().clear(), PROVENANCE)
    keys = [("tiny",), ("wide",), ("gone",)]
    with pytest.raises(StorageError, match="quarantine of gone is not there yet"):
        lake.read_all("quarantine", keys)
    lake.commit("quarantine", ("gone",), rows().clear(), PROVENANCE, status="failed", reason="incomplete_support")
    with pytest.raises(StorageError, match="quarantine of gone has no rows: failed, incomplete_support"):
        lake.read_all("quarantine", keys)
    for damage in (lambda path: path.write_bytes(b"PAR1 no parquet PAR1"), Path.unlink):
        (path,) = lake.files("quarantine", ("wide",))
        damage(path)
        with pytest.raises(StorageError, match="quarantine of wide: a file that its pointer names cannot be read"):
            lake.read_all("quarantine", keys[:2], ["image_id"])


def test_a_partition_lies_where_the_contract_says(lake: Lake) -> None:
    commit(lake, "a")
    assert lake.folder("quarantine", KEY) == lake.layout.root / "lake/main/quarantine/dataset_id=tiny"
    cell = lake.folder("run_records", ("alpha", "tiny"))
    assert cell == lake.layout.root / "lake/main/run_records/encoder_id=alpha/dataset_id=tiny"
    assert lake.folder("crs_scores", ()) == lake.layout.root / "lake/main/crs_scores"
    with pytest.raises(ValueError, match="run_records is addressed by"):
        lake.folder("run_records", KEY)


def test_equal_rows_give_the_same_file_and_leave_it(lake: Lake) -> None:
    commit(lake, "a", "b")
    (path,) = lake.files("quarantine", KEY)
    before = path.stat()
    assert commit(lake, "b", "a").files == (path.name,)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)


@pytest.mark.parametrize("damage", ["cut off", "other rows", "changed within"])
def test_a_damaged_file_is_repaired_by_the_same_rows(lake: Lake, damage: str) -> None:
    commit(lake, "a", "b")
    (path,) = lake.files("quarantine", KEY)
    whole = path.read_bytes()
    if damage == "cut off":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "other rows":
        rows("a", "c").write_parquet(path)
    else:
        path.write_bytes(whole[:4] + bytes(40) + whole[44:])
    assert commit(lake, "a", "b").files == (path.name,)
    assert lake.read("quarantine", KEY).equals(rows("a", "b"))
    assert path.read_bytes() == whole


def test_rows_that_differ_in_a_volatile_column_get_a_file_of_their_own(lake: Lake) -> None:
    def images(salted: str) -> pl.DataFrame:
        schema = TABLES["images"].polars_schema()
        row = dict.fromkeys(schema) | {"dataset_id": "tiny", "source_id": "primary", "image_id": "a", "group_index": 0}
        row |= {"group_id": salted, "n_groups_joined": 1, "labels": [1, 0], "file_reason": "no_images"}
        return pl.DataFrame([row], schema=schema)

    first = lake.commit("images", KEY, images("salt one"), PROVENANCE)
    (path,) = lake.files("images", KEY)
    second = lake.commit("images", KEY, images("salt two"), PROVENANCE)
    assert second.content_hash == first.content_hash
    assert second.files != first.files
    assert pl.read_parquet(path, hive_partitioning=False).equals(images("salt one"))  # for who reads it right now
    assert lake.read("images", KEY).equals(images("salt two"))


def test_other_rows_leave_the_old_file_for_its_readers(lake: Lake) -> None:
    commit(lake, "a")
    (old,) = lake.files("quarantine", KEY)
    commit(lake, "b")
    assert old.exists()
    assert lake.read("quarantine", KEY).equals(rows("b"))


def test_nothing_but_files_and_pointer_is_left(lake: Lake) -> None:
    pointer = commit(lake, "a")
    assert {path.name for path in lake.folder("quarantine", KEY).iterdir()} == {POINTER_FILE, pointer.files[0]}


def test_no_row_is_a_result_and_absence_is_none(lake: Lake) -> None:
    with pytest.raises(StorageError, match=r"quarantine of tiny is not there yet: run `crsbench materialize`\."):
        lake.read("quarantine", KEY)
    assert lake.pointer("quarantine", KEY) is None and lake.files("quarantine", KEY) == []
    pointer = commit(lake)
    assert (pointer.status, pointer.n_rows, len(pointer.files)) == ("ok", 0, 1)
    assert lake.read("quarantine", KEY).equals(rows())


@pytest.mark.parametrize(("status", "reason"), [("failed", "incomplete_support"), ("not_applicable", "no_vectors")])
def test_a_partition_without_a_result_says_why(lake: Lake, status: str, reason: str) -> None:
    pointer = commit(lake, status=status, reason=reason)
    assert (pointer.files, pointer.n_rows, pointer.content_hash) == ((), 0, f"{status}:{reason}")
    with pytest.raises(StorageError, match=rf"quarantine of tiny has no rows: {status}, {reason} \(in words\)\."):
        lake.read("quarantine", KEY)


def test_a_file_that_is_gone_is_named_with_the_remedy(lake: Lake) -> None:
    commit(lake, "a")
    (path,) = lake.files("quarantine", KEY)
    path.unlink()
    with pytest.raises(StorageError, match="a file that its pointer names cannot be read") as raised:
        lake.read("quarantine", KEY)
    assert f"Remove {lake.folder('quarantine', KEY) / POINTER_FILE}" in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"PAR1 no parquet PAR1", b"PAR1"])
def test_a_damaged_file_is_named_with_the_remedy(lake: Lake, content: bytes) -> None:
    commit(lake, "a")
    (path,) = lake.files("quarantine", KEY)
    path.write_bytes(content)
    with pytest.raises(StorageError, match="a file that its pointer names cannot be read"):
        lake.read("quarantine", KEY)


@pytest.mark.parametrize("content", [b"", b'{"files": [', b"\xff\xfe", b"[]", b"{}", b'{"files": []}'])
def test_a_damaged_pointer_is_named_with_the_remedy(lake: Lake, content: bytes) -> None:
    commit(lake, "a")
    path = lake.folder("quarantine", KEY) / POINTER_FILE
    path.write_bytes(content)
    with pytest.raises(StorageError, match=re.escape(str(path))) as raised:
        lake.read("quarantine", KEY)
    assert "remove it" in str(raised.value) and "computed again" in str(raised.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"schema_version": TABLES["quarantine"].schema_version + 1}, "quarantine of tiny"),
        ({"code_version": TABLES["quarantine"].code_version + 1}, "quarantine of tiny"),
        ({"signature": "of a later version"}, POINTER_FILE),
    ],
)
def test_a_pointer_of_a_newer_release_is_refused(lake: Lake, changes: dict[str, object], expected: str) -> None:
    commit(lake, "a")
    path = lake.folder("quarantine", KEY) / POINTER_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    for read in (lake.pointer, lake.files, lake.read):
        with pytest.raises(StorageError, match="was written by a newer crsbench than this one: upgrade crsbench"):
            read("quarantine", KEY)
    with pytest.raises(StorageError, match=expected):
        lake.pointer("quarantine", KEY)


def test_a_pointer_of_an_older_release_is_read(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    pointer = commit(lake, "a")
    spec = TABLES["quarantine"]
    monkeypatch.setitem(TABLES, "quarantine", replace(spec, code_version=spec.code_version + 1))
    assert lake.pointer("quarantine", KEY) == pointer


def test_a_pointer_that_is_a_folder(lake: Lake) -> None:
    (lake.folder("quarantine", KEY) / POINTER_FILE).mkdir(parents=True)
    with pytest.raises(StorageError, match=r"_current\.json"):
        lake.read("quarantine", KEY)


def test_nan_does_not_enter(lake: Lake) -> None:
    spec = TABLES["cell_axes"]
    row = {
        "protocol_id": "p",
        "encoder_id": "alpha",
        "dataset_id": "tiny",
        "axis": "calibration",
        "variant": "primary",
        "value": math.nan,
        "sd": None,
        "n_seeds": 5,
        "n_fractions": None,
        "is_near_chance": False,
        "seed_values": [0.5],
        "reason": None,
        "inputs_hash": "h",
    }
    with pytest.raises(ValueError, match="value is not finite"):
        lake.commit("cell_axes", ("alpha", "tiny"), pl.DataFrame([row], schema=spec.polars_schema()), PROVENANCE)
    assert lake.pointer("cell_axes", ("alpha", "tiny")) is None


def test_a_lost_lease_refuses_the_commit(lake: Lake) -> None:
    commit(lake, "a")
    folder = lake.folder("quarantine", KEY)
    with leases.lease(folder, "index", None) as mine:
        (folder / leases.ATTEMPT_FILE).unlink()
        with leases.lease(folder, "index", None), pytest.raises(StorageError, match="the lease was taken over"):
            lake.commit("quarantine", KEY, rows("b"), PROVENANCE, lease=(folder, mine))
    assert lake.read("quarantine", KEY).equals(rows("a"))


def test_a_held_lease_lets_the_commit_through(lake: Lake) -> None:
    folder = lake.folder("quarantine", KEY)
    with leases.lease(folder, "index", None) as mine:
        lake.commit("quarantine", KEY, rows("b"), PROVENANCE, lease=(folder, mine))
    assert lake.read("quarantine", KEY).equals(rows("b"))


def test_arms_lie_apart(tmp_path: Path) -> None:
    frozen, adapted = Lake(HomeLayout(tmp_path)), Lake(HomeLayout(tmp_path), arm="lora")
    commit(frozen, "a")
    assert adapted.pointer("quarantine", KEY) is None
    commit(adapted, "b")
    assert frozen.read("quarantine", KEY).equals(rows("a"))
