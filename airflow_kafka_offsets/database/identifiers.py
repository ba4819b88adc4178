"""Names of tables and columns: whether a database keeps them whole, and how they are quoted in SQL that is text."""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Dialect
from sqlalchemy.engine.default import DefaultDialect

from airflow_kafka_offsets.database.mysql import is_mariadb


def is_too_long(name: str, dialect: Dialect) -> bool:
    """Return whether a name is longer than the database keeps. Postgres counts bytes, and truncates without an
    error.
    """
    size = len(name.encode()) if dialect.name == "postgresql" else len(name)
    return size > dialect.max_identifier_length


def without_placeholders(dialect: Dialect) -> Dialect:
    """Return the dialect for SQL in messages, and for SQL that goes to the server unchanged.

    With the placeholders of some drivers, such as `%s`, every percent sign in a name is doubled.
    """
    plain: type[DefaultDialect] = type(dialect)  # type: ignore[assignment]  # as every dialect is
    # SQLAlchemy's dialect of MySQL is also that of MariaDB, once it has connected to one.
    options: dict[str, Any] = {"is_mariadb": is_mariadb(dialect)} if dialect.name == "mysql" else {}
    return plain(paramstyle="named", **options)
