"""Names of tables and columns: whether a database keeps them whole."""

from __future__ import annotations

from sqlalchemy.engine import Dialect


def is_too_long(name: str, dialect: Dialect) -> bool:
    """Return whether a name is longer than the database keeps. Postgres counts bytes, and truncates without an error."""
    size = len(name.encode()) if dialect.name == "postgresql" else len(name)
    return size > dialect.max_identifier_length
