"""Where the progress of a stage goes: Dagster's log, and the shell that waits for the run.

What lives here: the listener of this process. What stays out: what a stage says (``worker``) and how it is shown
(``cli``). A run in another process, such as one of the UI, has no listener: its log in Dagster has every line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Let ``listener`` hear the progress of the runs that the block executes in this process."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def told(log: Callable[[str], None]) -> Callable[[str], None]:
    """Return what a stage tells its progress to: ``log``, and who listens."""
    listener = _listener.get()
    if listener is None:
        return log

    def tell(text: str) -> None:
        log(text)
        listener(text)

    return tell
