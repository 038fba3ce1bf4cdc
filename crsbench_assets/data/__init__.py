"""Cohorts before any encoder sees them: sources, labels, integrity, splits and leakage."""
