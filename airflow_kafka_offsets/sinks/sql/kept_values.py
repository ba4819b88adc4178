"""Check for values that a database would change without an error or a warning: their records are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.engine import Dialect

from airflow_kafka_offsets.database.mysql import is_mysql
from airflow_kafka_offsets.formats.columns import OUT_OF_YEARS
from airflow_kafka_offsets.sinks.sql.column_types import EXACT_DIGITS
from airflow_kafka_offsets.staging.rows import ValueCheck

_NULL = "it is null, in place of which the database may store another value"

_Change = tuple[Callable[[Any], Any], str]
"""Which values of an array are changed, and how."""


def value_checks(table: sa.Table, columns: pa.Schema, dialect: Dialect) -> Mapping[str, ValueCheck]:
    """Return the checks of the columns that would change values.

    :param columns: the columns to write, with the types in which they are sent
    """
    changes = {field.name: list(_changes(field.type, table.columns[field.name], dialect)) for field in columns}
    return {name: partial(_changed, found) for name, found in changes.items() if found}


def _changed(changes: Sequence[_Change], values: pa.Array) -> dict[int, str]:
    return {row: reason for find, reason in changes for row in pc.indices_nonzero(find(values)).to_pylist()}


def _changes(sent: pa.DataType, column: sa.Column[Any], dialect: Dialect) -> Iterator[_Change]:
    """Yield what a column changes of values.

    :param sent: the type in which they are sent
    """
    kind = column.type
    if is_mysql(dialect):
        if column.autoincrement is True or (isinstance(kind, mysql.TIMESTAMP) and not column.nullable):
            yield pc.is_null, _NULL
        if pa.types.is_floating(sent):
            yield lambda numbers: pc.invert(pc.is_finite(numbers)), "MySQL and MariaDB have no NaN and no infinity"
        # The server takes digits for the place of a value, and any case for the same.
        if isinstance(kind, mysql.ENUM):
            known = pa.array([*kind.enums, None], pa.string())
            yield lambda texts: pc.invert(pc.is_in(texts, known)), "the text is not a value of its ENUM"
        if isinstance(kind, mysql.SET):
            yield lambda texts: _are_other(texts, set(kind.values)), "the text is not of values of its SET"
    elif dialect.name == "sqlite":
        # NOT NULL may have ON CONFLICT REPLACE. Of all primary keys, only one of type INTEGER is numbered.
        is_numbered = column is column.table.autoincrement_column and isinstance(kind, sa.INTEGER)
        if is_numbered or (column.server_default is not None and not column.nullable):
            yield pc.is_null, _NULL
        if pa.types.is_floating(sent):
            yield pc.is_nan, "SQLite has no NaN, and would store null"
        if pa.types.is_decimal(sent) and isinstance(kind, sa.Numeric):
            yield (
                lambda numbers: pa.array(map(_would_be_rounded, numbers.to_pylist()), pa.bool_()),
                f"a decimal of more than {EXACT_DIGITS} digits would be rounded by SQLite, unless the column has type "
                "TEXT",
            )
    elif dialect.name == "postgresql":
        if isinstance(kind, sa.VARCHAR) and (length := kind.length):
            yield (
                lambda texts: pc.and_(pc.greater(pc.utf8_length(texts), length), pc.ends_with(texts, " ")),
                f"spaces at the end of the text would be cut off after {length} characters",
            )
        if isinstance(kind, postgresql.TIMESTAMP) and kind.precision is not None:
            # The last instant that is not rounded to the year 10000.
            last = pa.scalar(datetime.max - timedelta(microseconds=10 ** (6 - kind.precision) // 2), sent)
            yield lambda instants: pc.greater(instants, last), f"{OUT_OF_YEARS}, rounded as its column does"


def _are_other(texts: pa.Array, values: set[str]) -> pa.Array:
    """Return which texts are not values with commas between them."""
    others = [bool(text) and not values.issuperset(text.split(",")) for text in texts.to_pylist()]
    return pa.array(others, pa.bool_())


def _would_be_rounded(number: Decimal | None) -> bool:
    """Return whether SQLite's numbers, of 64 bits or doubles, cannot hold a decimal."""
    if number is None or len(f"{number:f}".replace(".", "").strip("-0")) <= EXACT_DIGITS:
        return False
    return number != number.to_integral_value() or not -(2**63) <= number < 2**63
