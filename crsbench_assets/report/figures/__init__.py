"""What the report draws: from published rows to the traces of its plots."""
