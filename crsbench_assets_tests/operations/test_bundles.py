"""What leaves a home: results, and no row, id, path or group of a single image."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from crsbench_assets.cli import main
from crsbench_assets.cli.commands import export_command
from crsbench_assets.config.errors import ConfigError, StorageError
from crsbench_assets.operations.bundles import WITHHELD, export_bundle
from crsbench_assets.operations.panels import freeze_panel
from crsbench_assets.planning.plan import CellState, plan
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import Project, open_project
from crsbench_assets.storage.snapshots import open_published
from crsbench_assets.storage.warehouse import publish
from crsbench_assets.tables.columns import ENCODER_ID, IMAGE_ID
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.schema import ColumnSpec, TableSpec
from crsbench_assets_tests.fixtures import DATASET, image_ids

STAYING_HOME = {
    "images", "quarantine", "splits", "leakage_violations", "embedding_failures", "embeddings", "shift_embeddings",
    "predictions", "probe_weights", "prompt_answers",
}  # fmt: skip


@pytest.fixture
def exported(computed: Project, tmp_path: Path) -> Path:
    """The bundle of a computed home with a frozen panel."""
    freeze_panel(computed, "mine")
    publish(computed, plan(computed).cells)
    return export_bundle(computed.layout, tmp_path / "bundle.zip").path


def tables_of(path: Path) -> dict[str, pl.DataFrame]:
    with zipfile.ZipFile(path) as bundle:
        names = [name for name in bundle.namelist() if name.startswith("tables/")]
        return {Path(name).stem: pl.read_parquet(io.BytesIO(bundle.read(name))) for name in names}


def words_of(path: Path) -> Iterator[str]:
    """Yield the names of all files, every text of every table, and the text of every other file."""
    with zipfile.ZipFile(path) as bundle:
        yield from bundle.namelist()
        yield from (bundle.read(name).decode() for name in bundle.namelist() if name.endswith(".json"))
    for frame in tables_of(path).values():
        yield from frame.columns
        for column in frame.select(pl.selectors.string()).iter_columns():
            yield from column.unique().drop_nulls()


def test_the_bundle_holds_the_results_and_no_row_of_an_image(exported: Path, computed: Project) -> None:
    tables = tables_of(exported)
    assert set(tables) == set(TABLES) - STAYING_HOME
    assert {spec.name for spec in TABLES.values() if spec.stays_home} == STAYING_HOME
    for name in ("run_records", "seed_aggregates", "cell_axes", "label_metrics", "axis_replicates"):
        keys = [(encoder_id, DATASET) for encoder_id in ("alpha", "beta")]
        assert tables[name].sort(pl.all()).equals(computed.lake.read_all(name, keys).sort(pl.all())), name
    assert tables["crs_scores"].height == 2
    for frame in tables.values():
        named = [c for c in frame.columns if c.startswith(("image_id", "group_i")) or c in ("path", "detail", "home")]
        assert named == []


def test_nothing_in_it_names_an_image_a_patient_or_a_place(exported: Path, computed: Project) -> None:
    text = "\n".join(words_of(exported))
    images = computed.lake.read("images", (DATASET,))
    secrets = {*image_ids(), *images["group_id"], str(computed.layout.root)}
    secrets |= {f"pair{i:02d}" for i in range(60)} | {path.name for path in (computed.layout.root / "files").iterdir()}
    assert [secret for secret in secrets if secret in text] == []
    assert len(text) > 10_000, "the text that was looked through is that of all tables"


def test_its_description_fits_its_files(exported: Path, computed: Project) -> None:
    with zipfile.ZipFile(exported) as bundle:
        described = json.loads(bundle.read("bundle.json"))
        assert [name for name in bundle.namelist() if name.startswith("panels/")] == [
            f"panels/{path.name}" for path in computed.layout.panels.glob("*.json")
        ]
        for name, table in described["tables"].items():
            data = bundle.read(table["file"])
            assert hashlib.sha256(data).hexdigest() == table["sha256"]
            assert pl.read_parquet(io.BytesIO(data)).height == table["n_rows"]
            assert table["schema_version"] == TABLES[name].schema_version
    assert (described["format"], described["protocol_id"]) == (1, computed.registry.protocol.label)
    assert described["label_policy"] == "u_zeros"


def test_two_exports_of_one_publication_are_equal(exported: Path, computed: Project, tmp_path: Path) -> None:
    again = export_bundle(computed.layout, tmp_path / "again.zip").path
    assert again.read_bytes() == exported.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.zip", "bundle.zip", "home"]


def test_of_a_sentence_only_its_stage_remains(computed: Project, tmp_path: Path) -> None:
    sentence = "extract: vectors of /data/patient00001.parquet cannot be read: image 'image007' is missing"
    cells = [
        CellState("alpha", DATASET, "failed", sentence),
        CellState("beta", DATASET, "failed", "extract: incomplete_support"),
    ]
    publish(computed, cells)
    tables = tables_of(export_bundle(computed.layout, tmp_path / "bundle.zip").path)
    reasons = tables["cells"]["reason"].to_list()
    assert reasons == [f"extract: {WITHHELD}", "extract: incomplete_support"]
    found = set(tables["partitions"].filter(pl.col("status") == "failed")["reason"])
    assert found == {f"extract: {WITHHELD}", "extract: incomplete_support"}
    assert set(tables["partitions"]["host"]) == {""}


def test_a_table_that_names_images_stays_home() -> None:
    columns = (ENCODER_ID, IMAGE_ID)
    with pytest.raises(ValueError, match="speak of single images"):
        TableSpec("answers", "One row per answer.", "whole", ("image_id",), columns)
    with pytest.raises(ValueError, match="speak of single images"):
        TableSpec("files", "One row per file.", "whole", ("path",), (ColumnSpec("path", "text", "File"),))
    assert TableSpec("answers", "One row per answer.", "whole", ("image_id",), columns, stays_home=True).stays_home


def test_what_cannot_be_exported_is_told(computed_home: HomeLayout, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No warehouse is published yet"):
        export_bundle(computed_home, tmp_path / "bundle.zip")
    with pytest.raises(ConfigError, match=r"ends in \.zip"):
        export_bundle(computed_home, tmp_path / "bundle")
    with pytest.raises(ConfigError, match="There is no folder"):
        export_bundle(computed_home, tmp_path / "none" / "bundle.zip")
    (tmp_path / "bundle.zip").touch()
    with pytest.raises(ConfigError, match="exists already"):
        export_bundle(computed_home, tmp_path / "bundle.zip")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_the_command(
    computed: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(computed, plan(computed).cells)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["crsbench", "export", "results.zip", "--home", str(computed.layout.root)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert capsys.readouterr().out.startswith(f"Wrote {tmp_path / 'results.zip'}: ")
    assert open_project(computed.layout.root).registry.hash == computed.registry.hash
    with open_published(computed.layout) as connection:
        ((n_records,),) = connection.sql("SELECT count(*) FROM run_records").fetchall()
    assert tables_of(tmp_path / "results.zip")["run_records"].height == n_records > 0


def test_what_is_of_an_older_shape_is_not_in_it_and_said(
    computed: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = TABLES["run_records"]
    publish(computed, plan(computed).cells)
    column = ColumnSpec("of_tomorrow", "text", "Added later")
    newer = replace(spec, schema_version=spec.schema_version + 1, columns=(*spec.columns, column))
    monkeypatch.setitem(TABLES, "run_records", newer)
    with pytest.raises(StorageError, match=r"another version of crsbench published it\. Run `crsbench materialize`"):
        export_bundle(computed.layout, tmp_path / "bundle.zip")
    publish(computed, plan(computed).cells)
    export_command(computed.layout.root, tmp_path / "bundle.zip")
    assert "Not in it: 2 partition(s) of an older version of crsbench. Run `crsbench mat" in capsys.readouterr().out
    assert tables_of(tmp_path / "bundle.zip")["run_records"].is_empty()
