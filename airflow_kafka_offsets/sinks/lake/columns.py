"""The columns of a table of files: those that it is created with, and whether the rows of a batch fit it, by name and
by type.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_kafka_offsets.core.addresses import URI_OPTIONS, holds_credentials, is_local
from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS, parse_ddl, type_name
from airflow_kafka_offsets.sinks.sink import TO_FIT
from airflow_kafka_offsets.writers.table_rows import file_columns, is_added, may_hold

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.lake.sink import DirectorySink


def match(
    name: str, table: pa.Schema, required: Collection[str], columns: pa.Schema, *, may_grow: bool = False
) -> None:
    """Check that rows fit a table by their types. The tasks that write its files refuse single values
    (`writers.table_rows`).

    :param name: of the table, for the message
    :param required: the columns of the table that may not be null
    :param columns: of the rows, without the batch's id
    :param may_grow: whether columns that the table lacks are added
    :raises TargetError: a column is missing, or has another type
    """
    new = set() if may_grow else {field.name for field in lacking(table, columns)}
    faults = [fault for field in columns if (fault := _fault(field, table, is_missing=field.name in new)) is not None]
    held = {*columns.names, BATCH_ID}
    if missing := [column for column in required if column not in held]:
        faults.append(f"it needs a value for {', '.join(map(repr, missing))}, which the rows do not hold")
    if faults:
        raise TargetError(f"Table {name!r} does not fit the rows: {'; '.join(faults)}. {TO_FIT}")
    match_new(name, table, columns)


def _fault(field: pa.Field, table: pa.Schema, *, is_missing: bool) -> str | None:
    if is_missing:
        return f"it has no column {field.name!r}"
    if table.get_field_index(field.name) < 0 or may_hold(table.field(field.name).type, field.type):
        return None
    return f"column {field.name!r} is {type_name(table.field(field.name).type)}, the rows hold {type_name(field.type)}"


def match_new(name: str, table: pa.Schema, columns: pa.Schema) -> None:
    """Check that the columns which a table lacks have unique names, also in engines that ignore case.

    :param table: its columns; none if it is created
    :raises TargetError: names are not unique
    """
    known = {column.lower(): column for column in table.names}
    for field in lacking(table, columns):
        if (other := known.setdefault(field.name.lower(), field.name)) != field.name:
            raise TargetError(
                f"Table {name!r} cannot have the columns {other!r} and {field.name!r}, whose names differ in case "
                "only: rename one of them, or the field by a transform"
            )


def lacking(table: pa.Schema, columns: pa.Schema) -> list[pa.Field]:
    """Return the columns of rows that a table lacks, except those that this package adds to rows."""
    known = set(table.names)
    return [field for field in columns if field.name not in known and not is_added(field.name)]


def required_columns(name: str, table: pa.Schema, required: Sequence[str], key: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that may not be null; with an upsert key, also its columns and the origin columns.

    :raises TargetError: the table lacks such a column, or values of the key cannot be compared exactly
    """
    needed = [*key, *((*RECORD, BATCH_ID) if key else ())]
    if missing := [column for column in needed if column not in table.names]:
        raise TargetError(
            f"Table {name!r} has no column {first_few(missing)}, which upsert_key needs: add it (ALTER TABLE … ADD "
            "COLUMN), or append, without upsert_key"
        )
    if unusable := [column for column in key if not _is_exact(table.field(column).type)]:
        raise TargetError(
            f"upsert_key names {first_few(unusable)}, whose values cannot be compared exactly: use columns of whole "
            "numbers, decimals, texts, bytes, booleans, dates and times"
        )
    return tuple(dict.fromkeys(column for column in (*required, *needed) if column != BATCH_ID))


def _is_exact(kind: pa.DataType) -> bool:
    return not (pa.types.is_floating(kind) or pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def check_parameters(sink: DirectorySink) -> pa.Schema | None:
    """Check the parameters of a sink, without its table.

    :return: the declared columns
    :raises ConfigurationError: a parameter is wrong
    """
    if not is_local(sink.uri) and holds_credentials(sink.uri):
        raise ConfigurationError(
            "uri must not hold credentials, which the history of batches would store, and takes only the options "
            f"{', '.join(sorted(URI_OPTIONS))}"
        )
    if sink.file_bytes <= 0:
        raise ConfigurationError(f"file_bytes must be positive; got file_bytes={sink.file_bytes!r}")
    for parameter, names in (("partition_by", sink.partition_by), ("sort_by", sink.sort_by)):
        if isinstance(names, str):
            raise ConfigurationError(f"{parameter} is a sequence of columns; got {parameter}={names!r}")
    if sink.columns is None:
        return None
    declared = parse_ddl(sink.columns, binary=True)
    return pa.schema([*declared, *(each for each in ORIGIN_COLUMNS if each.name not in declared.names)])


def created_columns(sink: DirectorySink, columns: pa.Schema) -> pa.Schema:
    """Return the columns of a table that is created.

    :param columns: the columns of the rows, or the declared ones
    :raises ConfigurationError: `partition_by` or `sort_by` names a missing or unsuitable column
    """
    schema = pa.schema([*columns, pa.field(BATCH_ID, pa.int64())])
    for parameter, names in (("partition_by", sink.partition_by), ("sort_by", sink.sort_by)):
        if unknown := [name for name in names if name not in schema.names]:
            raise ConfigurationError(
                f"{parameter} names {', '.join(unknown)}, which the rows do not hold: {', '.join(schema.names)}"
            )
    if unfit := [name for name in sink.partition_by if not can_partition(schema.field(name).type)]:
        raise ConfigurationError(
            f"partition_by names {', '.join(unfit)}: a table cannot be partitioned by floating, binary or nested "
            "columns"
        )
    # In a partition column an empty text is null.
    fields = [each.with_nullable(True) if each.name in sink.partition_by else each for each in schema]
    return file_columns(pa.schema(fields))


def check_partitions(name: str, columns: pa.Schema, found: Sequence[str], wanted: Sequence[str]) -> None:
    """Check that a table has the partition columns of the sink, and that this package can write them.

    :raises TargetError: it has others
    """
    if wanted and list(wanted) != list(found):
        raise TargetError(
            f"Table {name!r} is partitioned by {', '.join(found) or 'nothing'}, and not by {', '.join(wanted)}: leave "
            "out partition_by, which is for created tables only, or create another table"
        )
    if unfit := [column for column in found if not can_partition(columns.field(column).type)]:
        raise TargetError(f"Table {name!r} is partitioned by {', '.join(unfit)}, whose types cannot be written exactly")


def can_partition(kind: pa.DataType) -> bool:
    """Return whether values of a type are written exactly, as texts, and read by all."""
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_floating(kind))
