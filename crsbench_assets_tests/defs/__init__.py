"""Tests of the asset graph."""
