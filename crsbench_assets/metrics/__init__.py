"""The numbers of one run record: discrimination, calibration, accuracy, and their test-image uncertainty.

What lives here: pure functions from stored logits, labels and groups to numbers.
What stays out: fitting (``probes``), averaging over seeds (``aggregates``), the score (``scores``), tables
and files (``tables``, ``storage``).
Source: protocol page, section 5.
"""
