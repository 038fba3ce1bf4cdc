"""The report: one HTML file made of a published warehouse, to be read without crsbench and without a network."""
