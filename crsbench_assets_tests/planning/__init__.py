"""Tests of the planner: what is missing or stale, and why."""
