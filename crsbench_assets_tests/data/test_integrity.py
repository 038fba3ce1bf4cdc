"""Integrity without encoders: where files are, what decodes, which images are one image twice."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from crsbench_assets.data import integrity
from crsbench_assets.data.cohort import Cohort
from crsbench_assets.data.integrity import ImageCheck, check_images, file_faults, joined_groups
from crsbench_assets_tests.data.layouts import write_image


def cohort_of(root: Path, paths: list[str]) -> Cohort:
    ids = [Path(path).stem for path in paths]
    labels = np.ones((len(ids), 1), dtype=np.int8)
    return Cohort(ids, ids, [None] * len(ids), labels, paths=paths, root=str(root))


def silent(n_done: int, n: int) -> None:
    assert 0 < n_done <= n


def checks_of(cohort: Cohort, n_threads: int = 1) -> dict[str, ImageCheck]:
    return {check.image_id: check for check in check_images(cohort, n_threads=n_threads, progress=silent)}


def flat(path: Path, value: int, size: tuple[int, int] = (40, 32)) -> None:
    Image.new("L", size, value).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Twelve files: seven that can be used and five that cannot."""
    for name in ("a", "b", "c"):
        write_image(tmp_path / f"{name}.jpg")
    write_image(tmp_path / "grey.png", width_px=33, height_px=21, mode="L")
    (tmp_path / "twin.jpg").write_bytes((tmp_path / "a.jpg").read_bytes())
    with Image.open(tmp_path / "grey.png") as image:  # the same pixels in other bytes
        image.save(tmp_path / "packed.png", compress_level=0)
        image.transpose(Image.Transpose.ROTATE_90).save(tmp_path / "turned.png")
    (tmp_path / "truncated.jpg").write_bytes((tmp_path / "b.jpg").read_bytes()[:-300])
    (tmp_path / "zero.jpg").write_bytes(b"")
    write_image(tmp_path / "dot.png", width_px=1, height_px=1)
    flat(tmp_path / "black.png", 0)
    flat(tmp_path / "void.png", 0)
    return tmp_path


NAMES = (
    "a.jpg", "b.jpg", "black.png", "c.jpg", "dot.png", "grey.png", "packed.png", "truncated.jpg", "turned.png",
    "twin.jpg", "void.png", "zero.jpg",
)  # fmt: skip


def test_every_fault_is_a_row_with_its_reason(root: Path) -> None:
    found = checks_of(cohort_of(root, list(NAMES)))
    assert {name: check.reason for name, check in found.items() if check.reason} == {
        "black": "constant",
        "dot": "too_small",
        "truncated": "unreadable",
        "void": "constant",
        "zero": "unreadable",
    }
    assert all((check.reason is None) == (check.detail is None) for check in found.values())
    assert all((check.reason is None) == (check.pixel_hash is not None) for check in found.values())


def test_a_check_says_size_channels_and_hash_of_the_bytes(root: Path) -> None:
    found = checks_of(cohort_of(root, list(NAMES)))
    colour, grey = found["a"], found["grey"]
    assert (colour.width_px, colour.height_px, colour.n_channels) == (40, 32, 3)
    assert (grey.width_px, grey.height_px, grey.n_channels) == (33, 21, 1)
    # sha256sum of no bytes
    assert found["zero"].sha256 == "e3b0c44298fc1c149afbf4c8996fb924"
    assert {len(check.sha256 or "") for check in found.values()} == {32}


def test_equal_pixels_have_equal_hashes_whatever_the_bytes(root: Path) -> None:
    found = checks_of(cohort_of(root, list(NAMES)))
    assert found["a"].pixel_hash == found["twin"].pixel_hash
    assert found["grey"].pixel_hash == found["packed"].pixel_hash
    assert found["grey"].sha256 != found["packed"].sha256
    assert len({found[name].pixel_hash for name in ("a", "b", "c", "grey", "turned")}) == 5


def test_the_shape_is_part_of_the_pixel_hash(tmp_path: Path) -> None:
    pixels = (np.arange(20 * 30) % 251).astype(np.uint8)
    Image.fromarray(pixels.reshape(20, 30)).save(tmp_path / "flat.png")
    Image.fromarray(pixels.reshape(30, 20)).save(tmp_path / "tall.png")
    found = checks_of(cohort_of(tmp_path, ["flat.png", "tall.png"]))
    assert found["flat"].pixel_hash != found["tall"].pixel_hash


@pytest.mark.parametrize("n_threads", [1, 4])
def test_neither_threads_nor_order_change_the_rows(root: Path, n_threads: int) -> None:
    for i in range(150):  # several tasks of a pool
        (root / f"copy{i:03d}.jpg").write_bytes((root / f"{'abc'[i % 3]}.jpg").read_bytes())
    paths = [*NAMES, *(f"copy{i:03d}.jpg" for i in range(150))]
    told: list[tuple[int, int]] = []
    found = check_images(
        cohort_of(root, paths[::-1]), n_threads=n_threads, progress=lambda n_done, n: told.append((n_done, n))
    )
    assert [check.image_id for check in found] == sorted(Path(path).stem for path in paths)
    alone = [check for path in sorted(paths) for check in checks_of(cohort_of(root, [path])).values()]
    assert sorted(found, key=lambda check: check.image_id) == sorted(alone, key=lambda check: check.image_id)
    assert told[-1] == (162, 162)
    assert told == sorted(told)
    assert len(told) > 1


def test_a_file_that_is_gone_or_closed_is_a_row(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: str, *arguments: Any, **options: Any) -> Any:
        if Path(path).name == "b.jpg":
            raise PermissionError(13, "Permission denied", path)
        return open(path, *arguments, **options)  # noqa: PTH123 (what the check calls)

    monkeypatch.setattr(integrity, "open", closed, raising=False)
    found = checks_of(cohort_of(root, ["a.jpg", "b.jpg", "gone.jpg"]))
    assert (found["b"].reason, found["b"].detail, found["b"].sha256) == ("unreadable", "Permission denied", None)
    assert (found["gone"].reason, found["gone"].sha256) == ("missing_file", None)
    assert found["a"].reason is None


def test_what_a_reader_left_out_is_not_opened_again(root: Path) -> None:
    cohort = replace(cohort_of(root, ["a.jpg", "zero.jpg"]), left_out=[("zero", "outside_root", "")])
    assert list(checks_of(cohort)) == ["a"]


def test_a_cohort_without_images_has_no_checks(root: Path) -> None:
    cohort = replace(cohort_of(root, ["a.jpg"]), paths=None, root=None)
    assert check_images(cohort, n_threads=2, progress=silent) == []
    with pytest.raises(ValueError, match="at least 1"):
        check_images(cohort, n_threads=0, progress=silent)


def test_exact_duplicates_join_the_groups_of_their_patients(root: Path) -> None:
    names = ["a", "b", "twin", "grey", "packed", "black", "void"]
    found = checks_of(cohort_of(root, [name for name in NAMES if Path(name).stem in names]))
    groups = {"a": "p1", "b": "p2", "twin": "p2", "grey": "p3", "packed": "p4", "black": "p5", "void": "p6"}
    joined = joined_groups([groups[name] for name in names], [found[name].pixel_hash for name in names])
    # a = twin, twin and b are p2; grey = packed; two blank images are not duplicates
    assert joined == ["p1", "p1", "p1", "p3", "p3", "p5", "p6"]


# group, key -> joined: p1 - h1 - p2 - h2 - p4 is one component; p3 stands alone, with and without a key
JOINED = (
    ("p2", "h1", "p1"),
    ("p1", "h1", "p1"),
    ("p2", "h2", "p1"),
    ("p4", "h2", "p1"),
    ("p3", "h3", "p3"),
    ("p3", None, "p3"),
    ("p4", None, "p1"),
)


def test_groups_join_through_chains_and_take_the_smallest_name() -> None:
    groups, keys, joined = zip(*JOINED, strict=True)
    assert joined_groups(groups, keys) == list(joined)


def test_no_images_and_no_keys() -> None:
    assert joined_groups([], []) == []
    assert joined_groups(["b", "a", "b"], [None, None, None]) == ["b", "a", "b"]
    with pytest.raises(ValueError, match="2 groups and 1 keys"):
        joined_groups(["a", "b"], ["h"])


def test_a_group_and_a_key_of_one_name_are_two_things() -> None:
    assert joined_groups(["x", "y"], ["y", "h"]) == ["x", "y"]


def smallest_by_search(groups: list[str], keys: list[str | None]) -> list[str]:
    """An independent implementation: spread the smallest name until nothing changes."""
    names = list(groups)
    for _ in groups:
        for i in range(len(groups)):
            for j in range(len(groups)):
                if groups[i] == groups[j] or (keys[i] is not None and keys[i] == keys[j]):
                    names[i] = min(names[i], names[j])
    return names


IMAGES = st.lists(
    st.tuples(st.sampled_from("abcdefg"), st.sampled_from(["h1", "h2", "h3", "h4", None, None])), max_size=12
)


@given(images=IMAGES, seed=st.randoms(use_true_random=False))
def test_components_agree_with_a_plain_search_in_any_order(images: list[tuple[str, str | None]], seed: object) -> None:
    groups, keys = [group for group, _ in images], [key for _, key in images]
    joined = joined_groups(groups, keys)
    assert joined == smallest_by_search(groups, keys)
    order = list(range(len(images)))
    seed.shuffle(order)  # type: ignore[attr-defined]
    assert joined_groups([groups[i] for i in order], [keys[i] for i in order]) == [joined[i] for i in order]
    assert joined_groups(joined, keys) == joined
    assert joined_groups(groups * 2, keys * 2) == joined * 2


@given(images=IMAGES, more=st.lists(st.sampled_from(["n1", "n2", None]), min_size=12, max_size=12))
def test_kinds_of_links_join_in_any_order(images: list[tuple[str, str | None]], more: list[str | None]) -> None:
    groups, keys, links = [group for group, _ in images], [key for _, key in images], more[: len(images)]
    assert joined_groups(joined_groups(groups, keys), links) == joined_groups(joined_groups(groups, links), keys)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name in ("top.png", "one/two/deep.png", "one/near.png"):
        write_image(root / name)
    write_image(tmp_path / "outside" / "secret.png")
    (root / "away").symlink_to(tmp_path / "outside")
    (root / "one" / "away.png").symlink_to(tmp_path / "outside" / "secret.png")
    (root / "inside.png").symlink_to("one/near.png")
    (root / "inner").symlink_to("one")
    (root / "nowhere.png").symlink_to("absent.png")
    return root


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("top.png", None),
        ("one/two/deep.png", None),
        ("./one/near.png", None),
        ("inside.png", None),
        ("inner/two/deep.png", None),
        ("away/secret.png", "outside_root"),
        ("one/away.png", "outside_root"),
        ("inner/away.png", "outside_root"),
        ("../outside/secret.png", "outside_root"),
        ("one/../top.png", "outside_root"),
        ("/etc/hostname", "outside_root"),
        ("one/absent.png", "missing_file"),
        ("absent/top.png", "missing_file"),
        ("top.png/more.png", "missing_file"),
        ("one/two", "missing_file"),
        ("nowhere.png", "missing_file"),
        ("one/nul\0.png", "missing_file"),
        ("", "missing_file"),
        (".", "missing_file"),
    ],
)
def test_where_a_path_leads(tree: Path, path: str, reason: str | None) -> None:
    (fault,) = file_faults(tree, [path])
    assert (fault and fault[0]) == reason
    # the same among others, and below a root that is a link itself
    (tree.parent / "link").symlink_to(tree)
    among = file_faults(tree.parent / "link", ["one/near.png", path, "one/two/deep.png", path])
    assert among == [None, fault, None, fault]


def test_a_folder_that_may_not_be_listed_is_told_in_words(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    scandir = os.scandir

    def closed(folder: str) -> object:
        if folder.endswith("two"):
            raise PermissionError(13, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr("crsbench_assets.data.integrity.os.scandir", closed)
    found = file_faults(tree, ["one/two/deep.png", "one/near.png"])
    assert found == [("unreadable", "one/two/deep.png: Permission denied"), None]


def test_every_folder_is_listed_once(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    scandir, listed = os.scandir, []

    def counted(folder: str) -> object:
        listed.append(Path(folder).name)
        return scandir(folder)

    monkeypatch.setattr("crsbench_assets.data.integrity.os.scandir", counted)
    for i in range(20):
        write_image(tree / "one" / f"{i}.png")
    assert file_faults(tree, [f"one/{i}.png" for i in range(20)] + ["top.png"]) == [None] * 21
    assert listed == ["root", "one"]


def test_a_truncated_jpeg_whose_header_is_whole_is_unreadable(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    Image.effect_noise((256, 256), 80).save(buffer, "JPEG")
    data = buffer.getvalue()
    (tmp_path / "cut.jpg").write_bytes(data[: len(data) // 2])
    with Image.open(tmp_path / "cut.jpg") as image:
        image.verify()  # the header alone says nothing
    assert checks_of(cohort_of(tmp_path, ["cut.jpg"]))["cut"].reason == "unreadable"
