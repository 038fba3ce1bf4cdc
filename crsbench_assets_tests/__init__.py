"""Tests, a mirror of the package."""
