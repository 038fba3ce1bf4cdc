"""The shape of every table, written once: columns, grain, keys, versions; DDL, checks and docs come from it."""
