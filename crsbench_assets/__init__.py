"""The reliability benchmark for medical image encoders."""
