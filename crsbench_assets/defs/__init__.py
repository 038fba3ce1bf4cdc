"""The asset graph: thin assets, their checks, the sensor, the schedule and the jobs."""

from crsbench_assets.defs.graph import build_definitions

__all__ = ["build_definitions"]
