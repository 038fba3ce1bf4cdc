"""``crsbench.yaml`` belongs to the user: an edit of ours keeps every word of it."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.settings import DEFAULT_SETTINGS, edit_list, read_settings

TEXT = """\
# the settings of our ward
group_salt: s

encoders:
- resnet50   # the old one
- biovil
caps: {isic2019: 500}   # a trial
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "crsbench.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def test_an_edit_keeps_comments_and_order(path: Path) -> None:
    edit_list(path, "encoders", add="panderm")
    assert path.read_text(encoding="utf-8") == TEXT.replace("- biovil\n", "- biovil\n- panderm\n")
    edit_list(path, "encoders", remove="panderm")
    assert path.read_text(encoding="utf-8") == TEXT


def test_an_edit_is_made_once(path: Path) -> None:
    edit_list(path, "encoders", add="biovil")
    edit_list(path, "encoders", remove="absent")
    assert path.read_text(encoding="utf-8") == TEXT


def test_a_list_that_is_not_there_is_made(path: Path) -> None:
    edit_list(path, "retired", add="biovil")
    assert read_settings(path).retired == ("biovil",)
    assert path.read_text(encoding="utf-8").startswith(TEXT)


@pytest.mark.parametrize("text", ["group_salt: s\nencoders:\n", "group_salt: s\nencoders: resnet50\n", "encoders: [\n"])
def test_a_file_that_is_no_settings_is_not_edited(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"crsbench\.yaml"):
        edit_list(path, "encoders", add="biovil")
    assert path.read_text(encoding="utf-8") == text
    assert list(path.parent.iterdir()) == [path]


def test_an_edit_that_fails_leaves_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        edit_list(path, "encoders", add="panderm")
    assert path.read_text(encoding="utf-8") == TEXT
    assert list(path.parent.iterdir()) == [path]


def test_new_settings_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "crsbench.yaml"
    path.write_text(DEFAULT_SETTINGS.format(workers=3, group_salt="ab12"), encoding="utf-8")
    settings = read_settings(path)
    assert (settings.protocol, settings.label_policy, settings.workers) == ("crs-1", "u_zeros", 3)
    assert (settings.encoders, settings.agreements, settings.group_salt) == ((), {}, "ab12")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("colour: red", "unknown field 'colour' (known fields: protocol, label_policy, "),
        ("label_policy: u_maybe", "label_policy"),
        ("workers: 0", "workers"),
        ("caps: {isic2019: 0}", "caps.isic2019"),
        ("publish_minutes: 60", "publish_minutes"),
        ("agreements: {chexpert: yes}", "agreements.chexpert"),
        ("agreements: {irb: {accepted_by: me, accepted_on: }}", "agreements.irb.accepted_on"),
        ("agreements: {irb: {accepted_by: me, accepted_on: '  '}}", "agreements.irb.accepted_on"),
        ("agreements: {irb: {accepted_by: ' ', accepted_on: 2026-01-31}}", "agreements.irb.accepted_by"),
    ],
)
def test_bad_settings_name_the_field(path: Path, line: str, expected: str) -> None:
    path.write_text(f"group_salt: s\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as raised:
        read_settings(path)
    assert expected in str(raised.value) and str(path) in str(raised.value)


def test_settings_without_a_salt_say_so(path: Path) -> None:
    path.write_text("protocol: crs-1\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="field 'group_salt' is missing"):
        read_settings(path)


def test_a_blank_salt_is_none(path: Path) -> None:
    path.write_text("group_salt: ' '\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="group_salt"):
        read_settings(path)


def test_a_date_needs_no_quotes(path: Path) -> None:
    path.write_text("group_salt: s\nagreements: {a: {accepted_by: me, accepted_on: 2026-01-31}}\n", encoding="utf-8")
    assert read_settings(path).agreements["a"].accepted_on == date(2026, 1, 31)
