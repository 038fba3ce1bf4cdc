"""How often long work speaks of itself.

What lives here: the interval between two lines of progress. What stays out: the lines, and where they go.
"""

from __future__ import annotations

import time

INTERVAL_S = 2.0
"""Each line is a row of Dagster's log, which takes longer to write than many a step that it would tell of."""


class Pace:
    """Says when it is time for the next line; the last one is always told."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def is_due(self, n_done: int, n: int) -> bool:
        """Return whether ``n_done`` of ``n`` is to be told now; the interval then starts anew."""
        if n_done < n and time.monotonic() - self._told <= INTERVAL_S:
            return False
        self._told = time.monotonic()
        return True
