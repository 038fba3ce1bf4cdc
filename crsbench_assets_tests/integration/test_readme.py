"""The README as a newcomer walks through it: every command and every file in it, in order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets_tests.integration.homes import served

pytestmark = pytest.mark.slow  # the demo, and a cohort of images through two networks

ROOT = Path(__file__).parents[2]
NOT_RUN = {"make test": "this is what runs it"}


def blocks() -> list[tuple[str, str]]:
    """Return language and text of every code block of the README."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert all(language in ("sh", "yaml") for language, _ in found), "a block that no test runs"
    return found


def commands(block: str) -> list[str]:
    """Return the commands of a block without their comments."""
    return [shlex.join(shlex.split(line, comments=True)) for line in block.splitlines() if line.strip()]


def run(command: str, folder: Path) -> str:
    """Run a command of the README with the interpreter of the tests, and return what it printed."""
    words = shlex.split(command)
    if words[0] == ".venv/bin/crsbench":
        words = [sys.executable, "-m", "crsbench_assets.cli", *words[1:]]
    elif words[:2] == [".venv/bin/python", "docs/example_cohort.py"]:
        words = [sys.executable, str(ROOT / words[1]), *words[2:]]
    else:
        raise AssertionError(f"no rule runs {command!r}")
    clean = {name: value for name, value in os.environ.items() if name not in ("CRSBENCH_HOME", "DAGSTER_HOME")}
    done = subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def test_every_command_works_as_printed(demo: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "crsbench_home").symlink_to(demo[0], target_is_directory=True)
    said: dict[str, str] = {}
    for language, block in blocks():
        if language == "yaml":
            path = tmp_path / block.splitlines()[0].removeprefix("# ")
            assert path.parent.is_dir(), f"the first line of a card names its file: {path}"
            path.write_text(block, encoding="utf-8")
            continue
        for command in commands(block):
            if command == "make demo" or command in NOT_RUN:
                continue  # the fixture called it
            if command.startswith(".venv/bin/crsbench ui"):
                home = HomeLayout(tmp_path / shlex.split(command)[-1])
                with served(HomeLayout(home.root.resolve())):
                    pass
                continue
            said[command] = run(command, tmp_path)
    assert "ok" in next(text for command, text in said.items() if command.startswith(".venv/bin/crsbench status"))
    assert "0 leak(s)" in next(text for command, text in said.items() if "datasets check" in command)
    board = next(text for command, text in said.items() if "pareto, balance" in command)
    assert re.search(r"│\s*[12]\s*│ my_encoder", board) and re.search(r"│ random_vit", board)
    assert "Nothing to do" in run(".venv/bin/crsbench materialize --home my_home", tmp_path)


def test_the_readme_begins_with_the_picture_and_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    picture = re.search(r"!\[.+\]\((.+)\)", text)
    assert picture and text.index(picture[0]) < text.index("make demo") < text.index("make test") < text.index("##")
    assert 10_000 < (ROOT / picture[1]).stat().st_size < 500_000
    assert next(commands(block) for _, block in blocks()) == ["make demo", "make test"]


def test_every_link_leads_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"
