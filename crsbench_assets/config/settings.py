"""``crsbench.yaml``: the choices of one home.

What lives here: the typed settings and the edit of its lists that keeps the user's comments.
What stays out: the cards themselves (``registry``) and where the file lies (``storage.layout``).
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from crsbench_assets.config.protocol import AXES
from crsbench_assets.config.yaml_files import parse_model, read_yaml

LabelPolicy = Literal["u_zeros", "u_ignore", "u_ones"]


class Agreement(BaseModel):
    """Who accepted which agreement when."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    accepted_by: Annotated[str, Field(pattern=r"\S")]
    accepted_on: date


class Settings(BaseModel):
    """The typed content of ``crsbench.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    protocol: str = "crs-1"
    """Id of a protocol of the catalogue, or a YAML file relative to the home. One per home."""
    label_policy: LabelPolicy = "u_zeros"
    """What an uncertain label (-1) becomes. One per home."""
    encoders: tuple[str, ...] = ()
    """Active cards of the catalogue; cards lying in the home's ``encoders/`` are active by themselves."""
    datasets: tuple[str, ...] = ()
    retired: tuple[str, ...] = ()
    """Encoders whose results stay but that are neither computed nor ranked any more."""
    roots: dict[str, str] = {}
    """Dataset or shift id -> folder of its official layout."""
    weights: dict[str, str] = {}
    """Encoder id -> file or folder with its weights; by default the hub's cache, or the home's ``weights/<id>/``."""
    agreements: dict[str, Agreement] = {}
    caps: dict[str, Annotated[int, Field(gt=0)]] = {}
    """Dataset id -> largest number of images used; a capped result is never compared with an uncapped one."""
    device: str = "auto"
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes that `crsbench materialize` computes cells with."""
    batch_size: Annotated[int, Field(ge=1)] = 32
    """Images of a forward pass."""
    predictions: Literal["all", "clean_and_shift"] = "all"
    """Conditions whose logits are kept; those of the others are made again from ``probe_weights`` when needed."""
    selection_weights: dict[str, Annotated[float, Field(ge=0.0)]] = {}
    """Axis -> what it weighs for you, in table ``selection_regret``; sum 1, absent is 0. Empty: as the protocol."""
    executor: str = "in_process"
    """Dagster executor of a run: in_process, multiprocess, or module:object."""
    publish_minutes: Annotated[int, Field(ge=1, le=59)] = 5
    """Least minutes between two automatic publications in the Dagster daemon."""
    group_salt: Annotated[str, Field(pattern=r"\S")]
    """Salt of the group ids in tables; made by `crsbench init`, never shared."""

    @field_validator("selection_weights")
    @classmethod
    def _are_shares_of_axes(cls, value: dict[str, float]) -> dict[str, float]:
        if value and (not value.keys() <= set(AXES) or abs(sum(value.values()) - 1.0) > 1e-9):
            raise ValueError(f"weights of axes ({', '.join(AXES)}) that sum to 1 are expected, found {value}")
        return value


DEFAULT_SETTINGS = """\
# Settings of this crsbench home. `crsbench doctor` checks them; docs/operations.md explains every field.
protocol: crs-1          # one per home: a filled home refuses another
label_policy: u_zeros    # u_zeros | u_ignore | u_ones; one per home
encoders: []             # active catalogue cards; cards in encoders/ are active by themselves
datasets: []
retired: []
roots: {{}}                # dataset or shift id: folder of its official layout
weights: {{}}              # encoder id: file or folder with its weights; see docs/add-an-encoder.md
agreements: {{}}           # agreement: {{accepted_by: ..., accepted_on: ...}}
caps: {{}}
device: auto             # auto | cpu | cuda | cuda:1 | mps
workers: {workers}
batch_size: 32           # images of a forward pass
predictions: all         # all | clean_and_shift: conditions whose logits are kept
selection_weights: {{}}    # axis: weight, sum 1: what you weigh in selection_regret; empty: as the protocol does
executor: in_process
publish_minutes: 5
group_salt: {group_salt}
"""


def read_settings(path: Path) -> Settings:
    """Return the settings of a file.

    Raises:
        ConfigError: in one sentence, with every unknown or wrong field.
    """
    return parse_model(Settings, read_yaml(path), path)


def edited_list(path: Path, field: str, *, add: str | None = None, remove: str | None = None) -> bytes:
    """Return ``crsbench.yaml`` with one id of a list added or removed, and the user's comments and order kept.

    ``storage.project.edit_settings`` writes it.

    Raises:
        ConfigError: the file holds no settings.
    """
    import io

    from ruamel.yaml import YAML

    read_settings(path)  # the loader that keeps comments neither knows our fields nor speaks in sentences
    round_trip = YAML()
    document = round_trip.load(path.read_text(encoding="utf-8"))
    items = document.setdefault(field, [])
    if add is not None and add not in items:
        items.append(add)
    if remove is not None and remove in items:
        items.remove(remove)
    buffer = io.StringIO()
    round_trip.dump(document, buffer)
    return buffer.getvalue().encode()


def edit_list(path: Path, field: str, *, add: str | None = None, remove: str | None = None) -> None:
    """Write :func:`edited_list`, for a file that nobody else writes; a home's goes through ``edit_settings``.

    Raises:
        ConfigError: the file holds no settings; it stays as it is.
        OSError: the disk refuses; the file stays as it is.
    """
    import os
    import uuid

    text = edited_list(path, field, add=add, remove=remove)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(text)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
