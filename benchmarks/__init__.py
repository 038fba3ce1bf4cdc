"""Measured comparisons and simulations behind the benchmark's own claims; run from a clone."""
