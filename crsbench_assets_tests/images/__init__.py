"""Tests of ``crsbench_assets.images``."""
