"""From the axes of all cells to the Clinical Reliability Score against a reference panel."""
