"""The command ``crsbench``: thin commands over the same functions that Dagster calls."""

from __future__ import annotations

import atexit
import gc
import sys


def main() -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 1."""
    # most objects of a command live to its end; looking for cycles among them costs a fifth of `status`, and looking
    # again while the interpreter shuts down a twentieth
    gc.set_threshold(1_000_000)
    atexit.register(gc.freeze)
    from crsbench_assets.cli.app import app
    from crsbench_assets.config.errors import CrsbenchError

    try:
        app()
    except CrsbenchError as error:
        sys.stderr.write(f"crsbench: {error}\n")
        sys.exit(1)
    except KeyboardInterrupt:
        sys.stderr.write("crsbench: stopped; everything that was finished is kept.\n")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)
