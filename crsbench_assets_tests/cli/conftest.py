"""Commands of ours, run in the process of the tests."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from crsbench_assets.cli import main
from crsbench_assets.storage.layout import HomeLayout


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def crsbench(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command of ours in this process, the way the installed script does."""

    def run(*arguments: str | Path, home: HomeLayout | None = None) -> Done:
        where = ("--home", str(home.root)) if home else ()
        monkeypatch.setattr(sys, "argv", ["crsbench", *map(str, arguments), *where])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return Done(int(ended.value.code or 0), captured.out, captured.err)

    return run
