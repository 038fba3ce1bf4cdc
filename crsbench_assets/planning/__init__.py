"""What is missing or stale, why, and at what cost. The only place that decides it; no Dagster, no torch."""
