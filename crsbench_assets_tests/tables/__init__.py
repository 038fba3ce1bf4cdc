"""Tests of `crsbench_assets.tables`."""
