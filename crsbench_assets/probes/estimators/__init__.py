"""Other estimators than the protocol's probe, behind one interface: what an order of encoders owes to the probe."""
