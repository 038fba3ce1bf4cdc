"""Tests of the house itself: its imports, its docs, its packaging."""
