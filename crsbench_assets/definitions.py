"""Entry point of the code location: loads the graph, nothing else."""

from crsbench_assets.defs import build_definitions

defs = build_definitions()
