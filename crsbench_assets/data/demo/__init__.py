"""Cohorts of drawn images in the official layouts, for those who have no licensed data at hand."""
