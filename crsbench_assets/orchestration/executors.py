"""The executor of a run, by the name that ``crsbench.yaml`` gives it.

What lives here: the names. What stays out: run launchers, which are Dagster's own settings in ``dagster.yaml``.
"""

from __future__ import annotations

import importlib

import dagster as dg

from crsbench_assets.config.errors import ConfigError, reason_of


def executor(name: str) -> dg.ExecutorDefinition:
    """Return an executor: ``in_process`` (one import of the heavy libraries per cell), ``multiprocess``, or
    ``module:object``, such as an executor for Kubernetes or Celery.

    Raises:
        ConfigError: the name is none of these.
    """
    if name == "in_process":
        return dg.in_process_executor
    if name == "multiprocess":
        return dg.multiprocess_executor
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"crsbench.yaml: executor {name!r} cannot be loaded ({reason_of(error)}); expected in_process, "
            "multiprocess or module:object."
        ) from None
    if not isinstance(found, dg.ExecutorDefinition):
        raise ConfigError(f"crsbench.yaml: executor {name!r} is no Dagster executor definition.")
    return found
