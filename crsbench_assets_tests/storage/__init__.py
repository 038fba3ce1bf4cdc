"""Tests of `crsbench_assets.storage`."""
