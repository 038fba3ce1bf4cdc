"""From run records to what is reported of a cell: spread over seeds and the four axes."""
