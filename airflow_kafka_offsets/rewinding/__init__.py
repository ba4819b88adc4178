"""Positions moved on purpose: previewed, executed, audited and undone."""
