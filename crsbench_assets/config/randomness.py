"""Randomness keyed by names.

What lives here: the only two sources of randomness of the project. A draw depends on the names it is keyed by and
on nothing else, so any record can be reproduced alone, in any order, with any number of workers.
What stays out: global streams; nothing in the project calls ``numpy.random.seed`` or ``random.random``.
Source: protocol page, section 2, last item.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SEPARATOR = "\x1f"  # cannot occur in an id, so ("a", "bc") and ("ab", "c") differ


def _digest(names: Iterable[object], size: int) -> bytes:
    return hashlib.blake2b(_SEPARATOR.join(str(name) for name in names).encode(), digest_size=size).digest()


def keyed_generator(*names: object) -> np.random.Generator:
    """Return a generator that depends on ``names`` alone.

    Args:
        names: what the draw is for, from the general to the particular (purpose, dataset, seed, image, ...).
            Floats are written by ``repr``, so 0.1 and "0.1" are the same name.

    Example:
        >>> float(keyed_generator("demo", 1).random()) == float(keyed_generator("demo", 1).random())
        True
    """
    import numpy as np

    return np.random.Generator(np.random.SFC64(int.from_bytes(_digest(names, 32), "little")))


def keyed_ranks(ids: Iterable[str], *names: object) -> NDArray[np.uint64]:
    """Return one keyed 64-bit number per id; sorting by it shuffles the ids.

    The number of an id depends on that id and ``names`` only, so removing other ids never changes the relative
    order of those that stay.

    Args:
        ids: n identifiers.
        names: what the order is for.

    Returns:
        uint64 array of shape (n,).
    """
    import numpy as np

    prefix = hashlib.blake2b(_SEPARATOR.join(str(name) for name in names).encode(), digest_size=8)
    numbers = []
    for identifier in ids:
        state = prefix.copy()
        state.update(_SEPARATOR.encode() + identifier.encode())
        numbers.append(int.from_bytes(state.digest(), "little"))
    return np.asarray(numbers, dtype=np.uint64)
