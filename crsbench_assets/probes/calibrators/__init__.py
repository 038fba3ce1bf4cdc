"""The maps that post-hoc calibration chooses from, and the optimiser that fits them."""
