"""Measurements; no tests. Run by hand: `make bench`."""
