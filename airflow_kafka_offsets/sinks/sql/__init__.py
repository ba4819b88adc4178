"""Rows into tables of a SQL database."""
