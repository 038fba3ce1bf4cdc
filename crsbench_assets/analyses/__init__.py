"""What the scores rest on and how far they carry: one module per analysis, each named for its table.

What lives here: pure functions from polars frames and a panel to the rows of one table. What stays out: fitting and
metrics (``probes``, ``metrics``), whose records are summarised here, and pages about them (``report``).
Source: protocol page, section 8.
"""
