"""The command ``crsbench``: thin commands over the same functions that Dagster calls."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 1."""
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
