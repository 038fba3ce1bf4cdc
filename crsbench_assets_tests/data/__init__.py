"""Tests of ``crsbench_assets.data``."""
