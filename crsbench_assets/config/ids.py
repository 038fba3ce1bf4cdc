"""Ids of encoders, datasets, panels and conditions.

What lives here: the one pattern of an id, the names of conditions built from it, and the panel that no one froze.
What stays out: which ids exist (``registry``) and which cells they span (``cells``).
"""

from __future__ import annotations

import re

from crsbench_assets.config.errors import ConfigError

ID_PATTERN = re.compile(r"[a-z][a-z0-9_-]{0,47}")
"""A key of digits alone would become a BIGINT column; ``|``, ``[``, ``,`` and ``...`` are Dagster's own."""

ID_RULE = "an id starts with a lower-case letter and has up to 48 lower-case letters, digits, '_' or '-'"

CLEAN = "clean"

VALIDATION_CONDITION = "validation"
"""Where predictions of the clean validation images stand beside those of the test images."""

PROVISIONAL = "provisional"
"""Panel of the complete candidates of a home, before one is frozen."""


def check_id(value: str, what: str) -> str:
    """Return ``value`` when it is a valid id.

    Raises:
        ConfigError: naming ``what``, the value and the rule.
    """
    if not ID_PATTERN.fullmatch(value):
        raise ConfigError(f"{what} id {value!r} is not valid: {ID_RULE}. Choose another id.")
    return value


def corruption_condition(corruption: str, severity: int) -> str:
    """Return the condition id of one corruption at one severity, such as ``gaussian_noise-s1``."""
    return f"{corruption}-s{severity}"


def shift_condition(shift_id: str) -> str:
    """Return the condition id of a shift target, such as ``shift_mimic_cxr``."""
    return f"shift_{shift_id}"
