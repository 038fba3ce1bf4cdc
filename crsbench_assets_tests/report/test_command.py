from __future__ import annotations

import importlib.util
import sys
import webbrowser
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from crsbench_assets.cli import main
from crsbench_assets.storage.layout import HomeLayout


def run(home: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["crsbench", "report", "--home", str(home), *options])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command_writes_the_report_and_prints_its_path(
    reported_home: HomeLayout, report: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report == reported_home.root / "reports" / "report.html"
    before = report.read_bytes()
    report.unlink()
    assert run(reported_home.root, monkeypatch) == 0
    assert capsys.readouterr().out == f"Wrote {report}\n"
    assert report.read_bytes() == before  # one publication, one page


@pytest.mark.parametrize("has_browser", [True, False])
def test_open_shows_it_in_the_browser(
    reported_home: HomeLayout,
    report: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    has_browser: bool,
) -> None:
    opened: list[str] = []

    def open_page(url: str) -> bool:
        opened.append(url)
        return has_browser

    monkeypatch.setattr(webbrowser, "open", open_page)
    assert run(reported_home.root, monkeypatch, "--open") == 0
    assert opened == [report.as_uri()]
    assert ("No browser could be started" in capsys.readouterr().out) is not has_browser


def test_without_a_publication_it_is_one_sentence(
    tiny_home: HomeLayout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tiny_home.root, monkeypatch) == 1
    assert capsys.readouterr().err == "crsbench: No warehouse is published yet. Run `crsbench publish`.\n"
    assert not (tiny_home.root / "reports" / "report.html").exists()


def test_without_a_home_it_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "nowhere", monkeypatch) == 1
    assert capsys.readouterr().err.startswith("crsbench: There is no crsbench home at ")
    assert not (tmp_path / "nowhere").exists()


def test_without_plotly_it_names_the_extra(
    reported_home: HomeLayout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec

    def without_plotly(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "plotly" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without_plotly)
    assert run(reported_home.root, monkeypatch) == 1
    assert capsys.readouterr().err == (
        "crsbench: The report needs packages that are not installed (plotly): run `pip install 'crsbench[report]'`.\n"
    )
