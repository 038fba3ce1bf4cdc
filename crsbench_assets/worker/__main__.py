"""``python -m crsbench_assets.worker``: one stage of one partition, for a shell or a cluster's scheduler.

Exit code 0: computed or kept. 1: one sentence on standard error. 75 (try again): somebody else computes it.
"""

from __future__ import annotations

import argparse
import sys

from crsbench_assets.config.errors import ConfigError, CrsbenchError, LeaseHeldError
from crsbench_assets.planning.stages import STAGES, stage_named
from crsbench_assets.storage.project import open_project
from crsbench_assets.worker.run import failure_of, run_stage

TRY_AGAIN = 75


def main() -> int:
    """Run the stage that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m crsbench_assets.worker", description=__doc__)
    parser.add_argument("--home", help="the crsbench home; default: CRSBENCH_HOME, else ./crsbench_home")
    parser.add_argument("--stage", required=True, choices=[stage.name for stage in STAGES])
    parser.add_argument("--encoder")
    parser.add_argument("--dataset")
    parser.add_argument("--registry", help="hash of the registry snapshot to work from; default: the card files")
    parser.add_argument("--only-stale", action="store_true", help="keep what is current")
    arguments = parser.parse_args()
    stage = stage_named(arguments.stage)
    given = {"encoder_id": arguments.encoder, "dataset_id": arguments.dataset}
    try:
        names = stage.specs[0].grain_key
        missing = [name.removesuffix("_id") for name in names if given[name] is None]
        if missing:
            raise ConfigError(f"Stage {stage.name} works on one {' x '.join(names)}: add --{' and --'.join(missing)}.")
        key = tuple(str(given[name]) for name in names)
        project = open_project(arguments.home, registry_hash=arguments.registry)
        result = run_stage(
            project,
            stage,
            key,
            only_stale=arguments.only_stale,
            progress=lambda text: print(text, file=sys.stderr),  # noqa: T201
        )
        failure = failure_of(result, stage, key)
        if failure is not None:
            raise failure
    except LeaseHeldError as held:
        sys.stderr.write(f"crsbench: {held}\n")
        return TRY_AGAIN
    except CrsbenchError as error:
        sys.stderr.write(f"crsbench: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
