"""Types of columns that keep every value and tell all values apart, on every database.

On MySQL and MariaDB that takes more than SQLAlchemy's generic types say: texts of any size and character, compared by
each character and space; bytes of any size; microseconds.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import TypeCompiler

from airflow_kafka_offsets.database.mysql import is_mariadb

_MYSQL = ("mysql", "mariadb")


class ExactString(sa.String):
    """A text of at most a number of characters."""

    inherit_cache = True


class ExactText(sa.Text):
    """A text of any length."""

    inherit_cache = True


class AnyBytes(sa.LargeBinary):
    """Bytes of any number."""

    inherit_cache = True


class Moment(sa.DateTime):
    """A date and time with microseconds.

    With `timezone` it is an instant; MySQL and SQLite have it in UTC, without a time zone.
    """

    inherit_cache = True


@compiles(ExactString, *_MYSQL)
def _string(type_: ExactString, compiler: TypeCompiler, **_: object) -> str:
    return f"VARCHAR({type_.length}) {_collation(compiler)}"


@compiles(ExactText, *_MYSQL)
def _text(_: ExactText, compiler: TypeCompiler, **__: object) -> str:
    return f"LONGTEXT {_collation(compiler)}"


@compiles(AnyBytes, *_MYSQL)
def _bytes(*_: object, **__: object) -> str:
    return "LONGBLOB"


@compiles(Moment, *_MYSQL)
def _moment(*_: object, **__: object) -> str:
    return "DATETIME(6)"


def _collation(compiler: TypeCompiler) -> str:
    # The other binary collations ignore spaces at the end.
    collation = "utf8mb4_nopad_bin" if is_mariadb(compiler.dialect) else "utf8mb4_0900_bin"
    return f"CHARACTER SET utf8mb4 COLLATE {collation}"
