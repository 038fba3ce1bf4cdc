"""Tests of one stage of one partition at work."""
