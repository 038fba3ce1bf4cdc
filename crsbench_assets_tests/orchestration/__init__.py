"""Tests of the Dagster vocabulary."""
