"""Encoders: whatever gives an image a vector."""
