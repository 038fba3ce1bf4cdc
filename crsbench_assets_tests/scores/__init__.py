"""Tests of ``crsbench_assets.scores``."""
