"""Tests of ``crsbench_assets.encoders``."""
