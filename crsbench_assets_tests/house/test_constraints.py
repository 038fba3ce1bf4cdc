"""``constraints.txt``: the same versions on every machine, and nothing about the machine that wrote it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import crsbench_assets

ROOT = Path(crsbench_assets.__file__).parents[1]
LINES = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
PINS = [Requirement(line) for line in LINES if line.strip()]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"].values()
DIRECT = [Requirement(text) for text in (*PROJECT["dependencies"], *(text for extra in EXTRAS for text in extra))]


def pins_of(name: str) -> list[Version]:
    wanted = canonicalize_name(name)
    return [Version(next(iter(pin.specifier)).version) for pin in PINS if canonicalize_name(pin.name) == wanted]


def test_no_host_no_path_no_local_version() -> None:
    for line in LINES:
        assert "://" not in line and "file:" not in line and "@" not in line, line
        assert not line.startswith(("-", "/", ".")), line
    assert all(pin.url is None for pin in PINS)
    assert not [line for line in LINES if re.search(r"==\S*\+", line)], "a local version exists on one index only"


def test_every_line_pins_one_version() -> None:
    for pin in PINS:
        (specifier,) = pin.specifier
        assert specifier.operator == "==" and "*" not in specifier.version, pin


@pytest.mark.parametrize("requirement", DIRECT, ids=str)
def test_every_direct_dependency_is_pinned_within_its_bounds(requirement: Requirement) -> None:
    pins = pins_of(requirement.name)
    assert pins, f"{requirement.name} is not pinned: run `make lock`"
    assert all(requirement.specifier.contains(pin) for pin in pins), f"{requirement}: pinned to {pins}"


def test_torch_and_torchvision_are_a_pair() -> None:
    # torchvision 0.N needs exactly torch 2.(N - 15)
    (torch,), (vision,) = pins_of("torch"), pins_of("torchvision")
    assert (torch.major, vision.major, torch.minor + 15) == (2, 0, vision.minor)
    # probes need some torch; image encoders need the pair
    pairs = {str(requirement) for requirement in DIRECT if requirement.name in ("torch", "torchvision")}
    assert pairs == {"torch>=2.6", f"torch=={torch}", f"torchvision=={vision}"}
