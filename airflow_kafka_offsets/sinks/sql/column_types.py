"""Match Arrow columns with database columns by type, and choose the columns of a created table. Writes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateColumn
from sqlalchemy.types import TypeEngine

from airflow_kafka_offsets.core.origin import BATCH_ID, RESERVED_PREFIX
from airflow_kafka_offsets.core.text import can_be_stored, first_few
from airflow_kafka_offsets.database.mysql import is_mysql
from airflow_kafka_offsets.database.tables import (
    AnyBytes,
    ExactString,
    ExactText,
    Moment,
    is_too_long,
    longest_name,
    without_placeholders,
)
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.formats.columns import type_name
from airflow_kafka_offsets.sinks.sink import TO_FIT
from airflow_kafka_offsets.staging.rows import DECLARED_TYPE

# What SQLite's binary fractions keep of a decimal, always.
EXACT_DIGITS = 15

# MySQL has no keys of texts of any length.
_KEY_LENGTH = 250

# Postgres has these in each table, besides the columns that it was created with.
_SYSTEM_COLUMNS = ("tableoid", "ctid", "xmin", "xmax", "cmin", "cmax")

_BYTES = (sa.LargeBinary, sa.BINARY, sa.VARBINARY, mysql.TINYBLOB, mysql.MEDIUMBLOB, mysql.LONGBLOB)


def is_added(name: str) -> bool:
    """Return whether a column is one that this package adds, and writes only if the target has it."""
    return name.startswith(RESERVED_PREFIX) or name == BATCH_ID


def created_table(name: str, schema: str | None, columns: pa.Schema, key: Sequence[str] = ()) -> sa.Table:
    """Return the table to create where the target is missing.

    :param key: the columns of its primary key
    """
    # The rows hold the key: the database must not number it.
    of_rows = [
        sa.Column(
            field.name,
            _key_type(field) if field.name in key else created_type(field),
            nullable=field.nullable and field.name not in key,
            autoincrement=False,
        )
        for field in columns
    ]
    batch_id = sa.Column(BATCH_ID, sa.BigInteger, nullable=False)
    # Batches come in ascending order: Postgres' block ranges keep them apart at next to no cost.
    index = sa.Index(None, batch_id, postgresql_using="brin")
    primary = [sa.PrimaryKeyConstraint(*key)] if key else []
    engine = "InnoDB"
    # A table that was renamed keeps its index.
    new_name = f"ix_%(column_0_label)s_{token_hex(4)}"  # see is_created
    return sa.Table(
        name,
        sa.MetaData(schema=schema, naming_convention={"ix": new_name}),
        *of_rows,
        batch_id,
        index,
        *primary,
        mysql_engine=engine,
        mariadb_engine=engine,
    )


def is_created(table: sa.Table) -> bool:
    """Return whether a table looks as `created_table` makes it: its index has a name that nobody else chooses."""
    return any(re.search(rf"_{BATCH_ID}_[0-9a-f]{{8}}$", str(index.name)) for index in table.indexes)


def required(table: sa.Table) -> list[str]:
    """Return the columns that the database cannot fill by itself."""
    return [
        column.name
        for column in table.columns
        if not column.nullable
        and column.server_default is None
        and column.identity is None
        and column.computed is None
        and column is not table.autoincrement_column
        and not is_added(column.name)
    ]


def check_names(dialect: Dialect, names: Mapping[str, Sequence[str]]) -> None:
    """Check that the database stores names in full: Postgres truncates them without an error, so that two may become
    equal.

    :param names: names, by what they name
    :raises ConfigurationError: names are too long, have characters that no database takes, or are those of columns that
        the database has itself; names each
    """
    odd = [f"{kind} {name!r}" for kind, all_names in names.items() for name in all_names if not can_be_stored(name)]
    if odd:
        raise ConfigurationError(f"No database takes NUL and lone surrogates in names: {first_few(odd)}. Choose others")
    if dialect.name == "postgresql" and (own := [name for name in _SYSTEM_COLUMNS if name in names.get("column", ())]):
        raise ConfigurationError(
            f"Postgres has a column {', '.join(map(repr, own))} of its own in each table. Choose another name; a "
            "transform can rename columns"
        )
    if is_mysql(dialect) and (quoted := [name for name in names.get("column", ()) if "`" in name]):
        raise ConfigurationError(
            f"SQLAlchemy does not read column {quoted[0]!r} of MySQL as it is. Choose a name without a backtick; a "
            "transform can rename columns"
        )
    long = [f"{kind} {name!r}" for kind, all_names in names.items() for name in all_names if is_too_long(name, dialect)]
    if long:
        unit = "bytes" if dialect.name == "postgresql" else "characters"
        raise ConfigurationError(
            f"Names are longer than the {longest_name(dialect)} {unit} that {dialect.name} keeps: "
            f"{first_few(long)}. Choose shorter ones; a transform can rename columns"
        )


def match(table: sa.Table, columns: pa.Schema, dialect: Dialect) -> pa.Schema:
    """Match columns by name, and return them with the types in which they are handed to the database.

    :param columns: the columns of the rows
    :param dialect: of the database that the table is in
    :return: the columns to write; added ones only where the table has them
    :raises TargetError: columns do not fit; names each, and the statement that would add a missing one
    """
    rows = pa.schema([*columns, pa.field(BATCH_ID, pa.int64(), nullable=False)])
    matched: list[pa.Field] = []
    faults: list[str] = []
    for field in rows:
        column = table.columns.get(field.name)
        if column is None:
            if not is_added(field.name):
                faults.append(f"it has no column {field.name!r} ({add_column(table, field, dialect)})")
            continue
        if (fault := _fault(column, field, dialect)) is None:
            named = {DECLARED_TYPE: str(column.type)}
            matched.append(pa.field(field.name, wire_type(field.type, column.type, dialect), metadata=named))
        else:
            faults.append(fault)
    if missing := [name for name in required(table) if name not in rows.names]:
        faults.append(f"it needs a value for {', '.join(map(repr, missing))}, which the rows do not hold")
    if faults:
        raise TargetError(
            f"Table {table.fullname!r} does not fit the rows: {'; '.join(faults)}. {TO_FIT}. A table without rows can "
            "be dropped, and the next run creates it"
        )
    return pa.schema(matched)


def match_added(table: sa.Table | None, column: pa.Field, dialect: Dialect) -> None:
    """Check that a table can have a column by its name and type, or has one that takes its values.

    :param table: None where it does not exist
    :raises TargetError: it cannot
    :raises ConfigurationError: the database takes no such name
    """
    check_names(dialect, {"column": [column.name]})
    if is_mysql(dialect) and not _is_plain(column.name):
        raise ConfigurationError("MySQL and MariaDB take no such name, or do not keep it as it is")
    created_type(column)
    known = None if table is None else table.columns.get(column.name)
    if known is not None and (fault := _fault(known, column, dialect)) is not None:
        raise TargetError(fault)


def _is_plain(name: str) -> bool:
    """Return whether MySQL keeps a name: its names have 16-bit characters, do not end with white space, and are equal
    to those that differ in case only, by one character for each. SQLAlchemy does not read all others as they are.
    """
    is_kept = name.isprintable() and name == name.strip() and "`" not in name
    return is_kept and all(ord(each) < 1 << 16 and len(each.lower()) == 1 for each in name)


def _fault(column: sa.Column[Any], field: pa.Field, dialect: Dialect) -> str | None:
    """Return why values cannot be written to a column, if they cannot."""
    if type(column.type) is sa.String and dialect.name == "postgresql":
        return f'column {field.name!r} is of the type name or "char", which cut texts without an error'
    if column.computed is not None or (column.identity is not None and column.identity.always):
        return f"column {field.name!r} is GENERATED ALWAYS by the database, and cannot be written"
    if wire_type(field.type, column.type, dialect) is None:
        return f"column {field.name!r} is {column.type}, the rows hold {type_name(field.type)}"
    return None


def wire_type(rows: pa.DataType, column: TypeEngine[Any], dialect: Dialect) -> pa.DataType | None:
    """Return the Arrow type to hand to a column of a database, or None where the two do not fit.

    Widening is free, narrowing is checked for every value. Text is sent unchanged to types without an Arrow counterpart
    (UUID, JSON, INET, …), and the database parses it. SQLite's types differ in name only: each integer has 64 bits, and
    each fraction is a double. Its decimals are text if they have more digits than a double.
    """
    if dialect.name == "sqlite":
        if pa.types.is_decimal(rows) and isinstance(column, sa.String):
            return rows
        if isinstance(column, (sa.Integer, sa.Float)):
            column = sa.BigInteger() if isinstance(column, sa.Integer) else sa.Double()
    if is_mysql(dialect) and isinstance(column, mysql.TINYINT) and pa.types.is_boolean(rows):
        return pa.int16()  # MySQL has no separate type for it
    if isinstance(column, sa.Integer) and getattr(column, "unsigned", False):
        column = sa.Numeric(20, 0) if isinstance(column, sa.BigInteger) else sa.BigInteger()
    for kind, fits, wire in _WIRE_TYPES:
        if isinstance(column, kind):
            return wire(rows, column) if fits(rows) else None
    return pa.string() if pa.types.is_string(rows) else None


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _is_number(kind: pa.DataType) -> bool:
    return _is_exact(kind) or bool(pa.types.is_floating(kind))


def _decimal(rows: pa.DataType, column: Any) -> pa.DataType:
    # The database adds zeros itself, also to more than Arrow's 38 digits.
    scale = rows.scale if pa.types.is_decimal(rows) else 0
    return pa.decimal128(38, scale if column.scale is None else min(scale, column.scale))


def _timestamp(rows: pa.DataType, column: Any) -> pa.DataType:
    return pa.timestamp("us", "UTC" if column.timezone else None)


# Of each type of a column, subtypes first: which types of the rows fit, and the type to hand over.
_WIRE_TYPES: Sequence[tuple[Any, Callable[[pa.DataType], bool], Callable[[pa.DataType, Any], pa.DataType]]] = (
    (sa.Boolean, pa.types.is_boolean, lambda *_: pa.bool_()),
    # It takes the bytes of a text.
    (mysql.BIT, lambda _: False, lambda *_: pa.string()),
    (sa.SmallInteger, pa.types.is_integer, lambda *_: pa.int16()),
    (sa.BigInteger, pa.types.is_integer, lambda *_: pa.int64()),
    (sa.Integer, pa.types.is_integer, lambda *_: pa.int32()),
    ((sa.REAL, mysql.FLOAT), _is_number, lambda *_: pa.float32()),
    (sa.Float, _is_number, lambda *_: pa.float64()),
    (sa.Numeric, _is_exact, _decimal),
    (sa.String, _is_text, lambda *_: pa.string()),
    (sa.Date, pa.types.is_date, lambda *_: pa.date32()),
    (sa.DateTime, pa.types.is_timestamp, _timestamp),
    (_BYTES, _is_bytes, lambda *_: pa.binary()),
)


def add_column(table: sa.Table, field: pa.Field, dialect: Dialect) -> str:
    """Return the statement that adds a column for a field of the rows."""
    column = sa.Column(field.name, created_type(field))
    sa.Table(table.name, sa.MetaData(), column)
    plain = without_placeholders(dialect)
    name, added = plain.identifier_preparer.format_table(table), CreateColumn(column).compile(dialect=plain)
    return f"ALTER TABLE {name} ADD COLUMN {added}"


def _key_type(field: pa.Field) -> TypeEngine[Any]:
    """Return the type of a column of a key."""
    kind = created_type(field)
    return kind.with_variant(ExactString(_KEY_LENGTH), "mysql", "mariadb") if isinstance(kind, sa.Text) else kind


def created_type(field: pa.Field) -> TypeEngine[Any]:
    """Return the type of a column that is created for a field of the rows.

    :raises TargetError: no column can hold its values
    """
    kind = field.type
    if pa.types.is_decimal(kind):
        # SQLite would make a binary fraction of it, and round.
        number = sa.Numeric(kind.precision, kind.scale)
        return number if kind.precision <= EXACT_DIGITS else number.with_variant(sa.Text(), "sqlite")
    if pa.types.is_timestamp(kind):
        return Moment(timezone=kind.tz is not None)
    types: Sequence[tuple[bool, Callable[[], TypeEngine[Any]]]] = (
        (pa.types.is_boolean(kind), sa.Boolean),
        (pa.types.is_int8(kind) or pa.types.is_int16(kind), sa.SmallInteger),
        (pa.types.is_int32(kind), sa.Integer),
        (pa.types.is_int64(kind), sa.BigInteger),
        (pa.types.is_float32(kind), sa.REAL),
        (pa.types.is_float64(kind), sa.Double),
        (_is_text(kind), ExactText),
        (pa.types.is_date(kind), sa.Date),
        (_is_bytes(kind), AnyBytes),
    )
    for fits, created in types:
        if fits:
            return created()
    advice = (
        "SqlTable stores no nested columns. Take it apart in a transform, or declare only the fields that are needed"
    )
    if not pa.types.is_nested(kind):
        advice = "SqlTable has no such type. Cast it in the transform"
    raise TargetError(f"Column {field.name!r} is {type_name(kind)}: {advice}.")
