"""Reading YAML into typed models, with errors for the person who wrote the file.

What lives here: the one loader of cards, protocols and settings. What stays out: what the models mean.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from crsbench_assets.config.errors import ConfigError, reason_of

Model = TypeVar("Model", bound=BaseModel)

_SafeLoader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C loader is ten times as fast


class _StrictLoader(_SafeLoader):  # type: ignore[misc]  # base chosen at run time
    """A safe loader that refuses a key written twice, which YAML loaders otherwise swallow."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                raise yaml.constructor.ConstructorError(None, None, "a list is no key", key_node.start_mark)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is written twice", key_node.start_mark
                )
            seen.add(key)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds.

    Raises:
        ConfigError: the file is absent, unreadable, no YAML, or not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {reason_of(error)}.") from error
    try:
        value = yaml.load(text, Loader=_StrictLoader)  # noqa: S506  # a subclass of the safe loader
    except yaml.YAMLError as error:
        detail = " ".join(str(error).split())
        raise ConfigError(f"{path} is not valid YAML: {detail}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a mapping of fields to values, found {type(value).__name__}.")
    return value


def parse_model(model: type[Model], value: dict[str, Any], origin: Path | str) -> Model:
    """Return ``value`` as ``model``.

    Raises:
        ConfigError: one sentence with every fault: the field, what was found, what is expected.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        faults = "; ".join(_describe(model, fault) for fault in error.errors())
        raise ConfigError(f"{origin}: {faults}.") from None


def _describe(model: type[BaseModel], fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        top_level = f" (known fields: {', '.join(model.model_fields)})" if len(fault["loc"]) == 1 else ""
        return f"unknown field {where!r}{top_level}"
    if fault["type"] == "missing":
        return f"field {where!r} is missing"
    message = fault["msg"].removeprefix("Value error, ")
    found = f", found {fault['input']!r}" if not isinstance(fault["input"], dict) else ""
    return f"{where + ': ' if where else ''}{message}{found}"
