"""Dagster vocabulary: partitions, mappings, conditions, checks, resources. Defines no asset."""
