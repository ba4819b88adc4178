"""Bounded ranges loaded again or into another table, beside the positions."""
