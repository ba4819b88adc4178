"""Whether the rows of a batch fit the columns of a lake table: by name, and by type."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD, RESERVED_PREFIX
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.writers.fitting import may_hold


def match(
    name: str, table: pa.Schema, required: Collection[str], columns: pa.Schema, *, may_grow: bool = False
) -> None:
    """Check that rows fit a table by their types. The tasks that write its files refuse single values
    (`writers.fitting`).

    :param name: of the table, for the message
    :param required: the columns of the table that may not be null
    :param columns: of the rows, without the batch's id
    :param may_grow: whether columns that the table lacks are added
    :raises TargetError: a column is missing, or has another type
    """
    new = [] if may_grow else lacking(table, columns)
    faults = [fault for field in columns if (fault := _fault(field, table, is_missing=field in new)) is not None]
    if missing := [column for column in required if column not in columns.names and column != BATCH_ID]:
        faults.append(f"it needs a value for {', '.join(map(repr, missing))}, which the rows do not hold")
    if faults:
        raise TargetError(f"Table {name!r} does not fit the rows: {'; '.join(faults)}")
    match_new(name, table, columns)


def _fault(field: pa.Field, table: pa.Schema, *, is_missing: bool) -> str | None:
    if is_missing:
        return f"it has no column {field.name!r}"
    if field.name not in table.names or may_hold(table.field(field.name).type, field.type):
        return None
    return f"column {field.name!r} is {table.field(field.name).type}, the rows hold {field.type}"


def match_new(name: str, table: pa.Schema, columns: pa.Schema) -> None:
    """Check that the columns which a table lacks have names of their own, also for engines to which upper and lower
    case are the same.

    :raises TargetError: they have not
    """
    existing = {column.lower(): column for column in table.names}
    for field in lacking(table, columns):
        if (other := existing.get(field.name.lower())) is not None:
            raise TargetError(
                f"Table {name!r} has a column {other!r}, and gets no column {field.name!r}, whose name differs in case "
                "only: rename the column, or the field by a transform"
            )


def lacking(table: pa.Schema, columns: pa.Schema) -> list[pa.Field]:
    """Return the columns of rows that a table lacks. Columns that this package adds to rows are left out instead."""
    return [field for field in columns if field.name not in table.names and not is_added(field.name)]


def is_added(name: str) -> bool:
    """Return whether this package adds a column to rows."""
    return name.startswith(RESERVED_PREFIX) or name == BATCH_ID


def required_columns(name: str, table: pa.Schema, required: Sequence[str], key: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that may not be null: where rows are replaced by a key, also its own, and those that name the
    record.

    :raises TargetError: the table lacks one of these, or values of the key cannot be compared exactly
    """
    needed = [*key, *(RECORD if key else ())]
    if missing := [column for column in needed if column not in table.names]:
        raise TargetError(
            f"Table {name!r} has no column {first_few(missing)}, which upsert_key needs: add it (ALTER TABLE … ADD "
            "COLUMN), or append, without upsert_key"
        )
    if unusable := [column for column in key if not _is_exact(table.field(column).type)]:
        raise TargetError(
            f"upsert_key names {first_few(unusable)}, whose values cannot be compared exactly: it takes columns of "
            "whole numbers, decimals, texts, bytes, booleans, dates and times"
        )
    return tuple(dict.fromkeys(column for column in (*required, *needed) if column != BATCH_ID))


def _is_exact(kind: pa.DataType) -> bool:
    return not (pa.types.is_floating(kind) or pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))
