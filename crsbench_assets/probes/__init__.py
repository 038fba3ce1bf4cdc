"""Linear probes on frozen features: standardise, fit, certify, predict."""
