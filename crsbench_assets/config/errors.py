"""Errors meant for the person at the keyboard.

What lives here: the exceptions whose message is the whole report: what was found, what was expected, what to do.
What stays out: programming errors, which keep their traceback.
"""

from __future__ import annotations


class CrsbenchError(Exception):
    """A user's mistake or a state that the user must decide about; shown as one sentence, exit code 1."""


class ConfigError(CrsbenchError):
    """A card, protocol or settings file that cannot be used as it is."""


class StorageError(CrsbenchError):
    """The home or the lake cannot be read or written as asked."""


class LeaseHeldError(StorageError):
    """Somebody alive computes the same partition right now."""


class StageError(CrsbenchError):
    """A stage that ended with a typed reason; the reason is kept in the partition's pointer.

    ``reason`` is a code of :data:`crsbench_assets.tables.reasons.REASONS`.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


REASON_LENGTH = 200
"""Characters of another library's message that are shown."""


def reason_of(error: BaseException) -> str:
    r"""Return what a library says of an error, as a part of our sentence: its first line, else the name of its type.

    Example:
        >>> reason_of(ValueError("no such size.\nSee the manual")), reason_of(EOFError())
        ('no such size', 'EOFError')
    """
    line = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    return (line if len(line) <= REASON_LENGTH else f"{line[:REASON_LENGTH]}...") or type(error).__name__
