"""A user's mistake in a Dagster step: one sentence instead of a traceback.

What lives here: the one translation of our errors into Dagster's. What stays out: the errors (``config.errors``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from crsbench_assets.config.errors import CrsbenchError


@contextmanager
def one_sentence() -> Iterator[None]:
    """End a step, a check or a tick whose body raises a :class:`CrsbenchError` with its sentence alone.

    Raises:
        Failure: never retried, because the same mistake would be found again.
    """
    try:
        yield
    except CrsbenchError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from None
