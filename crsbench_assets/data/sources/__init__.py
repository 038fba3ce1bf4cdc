"""Readers of cohorts: one module per layout, all returning :class:`cohort.Cohort`."""
