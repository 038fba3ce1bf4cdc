"""Tests of ids, cards, protocol, registry, settings and randomness."""
