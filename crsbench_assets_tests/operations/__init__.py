"""Tests of what people do with a home besides computing."""
