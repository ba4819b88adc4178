"""Sinks: the targets of rows."""
