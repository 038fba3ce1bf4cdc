"""Tests of ``crsbench_assets.embeddings``."""
