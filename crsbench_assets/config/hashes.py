"""Content hashes of small JSON-like values.

What lives here: the canonical JSON form and its hash, used for cards, protocols, panels and inputs.
What stays out: hashes of tables (``storage.hashing``), which work on columns.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

HASH_LENGTH = 32
"""Hex digits kept: 128 bits, enough against accident; nothing here defends against forgery."""


def canonical_json(value: Any) -> str:
    """Return the one JSON text of ``value``: sorted keys, no spaces, NaN refused."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def content_hash(value: Any) -> str:
    """Return the hex hash of ``value``'s canonical JSON."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:HASH_LENGTH]
