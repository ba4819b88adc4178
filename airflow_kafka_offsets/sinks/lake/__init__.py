"""Shared code of the sinks for tables of files: columns, reading rows, and removing rows."""
