"""Tests of ``crsbench_assets.aggregates``."""
