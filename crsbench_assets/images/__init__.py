"""From the bytes of a file to what a network reads.

What lives here: decoding, the canonical image that all encoders share, its corruptions, and each encoder's own
preprocessing: pure functions of pixels. What stays out: which images a cohort has (``data``), which of them are
usable (``data.integrity``), and the networks (``encoders``, ``embeddings``).
"""
