"""Whole benchmarks, small: commands, the Dagster UI, deaths and insertions."""
