"""The columns and features of a Delta table, and whether this package can write to it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import deltalake
import pyarrow as pa

from airflow_kafka_offsets.core.origin import BATCH_ID, RECORD, TIMESTAMP
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.writers.table_rows import file_columns

# delta-rs commits to tables that want writers of these versions, of which the last one goes by features; the sixth has
# identity columns.
_WRITERS = (1, 2, 3, 4, 5, 7)

# What these features ask for is checked below, where the table uses them.
_KNOWN = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "generatedColumns",
    "invariants",
    "timestampNtz",
}

_OF_COLUMNS = {
    "delta.columnMapping.id": "maps columns to other names",
    "delta.generationExpression": "has generated columns",
    "delta.invariants": "has columns with invariants",
}

_SPARK_TYPE = "__CHAR_VARCHAR_TYPE_STRING"

_ORIGIN = (BATCH_ID, *RECORD, TIMESTAMP)

# As many columns have statistics unless a property says otherwise.
_MEASURED = 32


def arrow_columns(schema: deltalake.Schema) -> pa.Schema:
    """Return columns with Arrow's types."""
    return file_columns(pa.schema(schema.to_arrow()))


# Of the schema in the log, as JSON: delta-rs reads 128 levels. That of the table itself has three.
_MOST_LEVELS = 120


def _levels(kind: pa.DataType) -> int:
    """Return how many levels of JSON a type has in Delta's log."""
    own = 3 if pa.types.is_struct(kind) else 1
    return own + max((_levels(kind.field(index).type) for index in range(kind.num_fields)), default=0)


def delta_schema(columns: pa.Schema) -> deltalake.Schema:
    """Return columns with Delta's types.

    :raises ConfigurationError: Delta has no such type, or delta-rs could not open a table that has it
    """
    if deep := [field.name for field in columns if _levels(field.type) > _MOST_LEVELS]:
        raise ConfigurationError(f"A Delta table cannot have column {deep[0]!r}, which is nested too deeply")
    try:
        return deltalake.Schema.from_arrow(file_columns(columns))
    except Exception as error:  # the library has no separate class for it
        reason = str(error).partition("\n")[0]  # without the stack of Rust
        raise ConfigurationError(f"A Delta table cannot have these columns: {reason}") from error


def unreadable(table: deltalake.DeltaTable) -> list[str]:
    """Return the reasons why this package cannot read the rows of a table, if any."""
    reasons = _unknown(table.protocol().reader_features)
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        reasons.append("it maps columns to other names")
    return reasons


def _unknown(features: Sequence[str] | None) -> list[str]:
    return [
        f"it has the feature {feature!r}, which is not known here" for feature in sorted({*(features or ())} - _KNOWN)
    ]


def unusable(table: deltalake.DeltaTable) -> list[str]:
    """Return the reasons why this package cannot write to a table, if any."""
    protocol, configuration = table.protocol(), table.metadata().configuration
    reasons = unreadable(table) + _unknown(protocol.writer_features)
    if (version := protocol.min_writer_version) not in _WRITERS:
        reasons.append(f"it wants writers of version {version} of Delta's protocol")
    if configuration.get("delta.enableDeletionVectors", "false").lower() == "true":
        reasons.append("it has deletion vectors")
    if any(name.startswith("delta.constraints.") for name in configuration):
        reasons.append("it has constraints, which Spark's tasks would not check")
    if "delta.setTransactionRetentionDuration" in configuration:
        reasons.append("with delta.setTransactionRetentionDuration it forgets which batches it has")
    keys = {key for column in json.loads(table.schema().to_json())["fields"] for key in _metadata(column)}
    reasons += [f"it {reason}" for key, reason in _OF_COLUMNS.items() if key in keys]
    return list(dict.fromkeys(reasons))


def text_lengths(schema: deltalake.Schema) -> dict[str, int]:
    """Return how many characters a text may have, of the columns that Spark declares as VARCHAR or CHAR."""
    kinds = {
        column["name"]: str(column["metadata"].get(_SPARK_TYPE)) for column in json.loads(schema.to_json())["fields"]
    }
    found = {name: re.fullmatch(r"(?:var)?char\((\d+)\)", kind) for name, kind in kinds.items()}
    return {name: int(kind[1]) for name, kind in found.items() if kind is not None}


def measured(configuration: Mapping[str, str], columns: pa.Schema) -> list[str]:
    """Return the columns with statistics: as many as the table's properties say, and the origin columns.

    :param configuration: the properties of the table
    :raises TargetError: one of them cannot be used
    """
    origin = [name for name in _ORIGIN if name in columns.names]
    if chosen := configuration.get("delta.dataSkippingStatsColumns"):
        wanted = {name.strip().strip("`").partition(".")[0] for name in chosen.split(",")}
        return [name for name in columns.names if name in wanted or name in origin]
    number = configuration.get("delta.dataSkippingNumIndexedCols", _MEASURED)
    try:
        most = int(number)
    except ValueError:
        raise TargetError(
            f"The Delta table's property delta.dataSkippingNumIndexedCols is no number: {number!r}"
        ) from None
    first: list[str] = columns.names if most < 0 else columns.names[:most]
    return [name for name in columns.names if name in first or name in origin]


def skipping_columns(columns: pa.Schema) -> str | None:
    """Return the columns whose statistics readers use, if these would otherwise lack the origin columns."""
    if sum(map(_leaves, columns)) <= _MEASURED:
        return None
    origin = [column for column in columns if column.name in _ORIGIN]
    chosen, rest = list(origin), _MEASURED - len(origin)
    for column in columns:
        rest -= _leaves(column)
        if rest < 0:
            break
        if column not in origin:
            chosen.append(column)
    return ",".join(f"`{column.name}`" for column in chosen)


def _leaves(column: pa.Field) -> int:
    kind = column.type
    return sum(_leaves(kind.field(index)) for index in range(kind.num_fields)) if pa.types.is_struct(kind) else 1


def _metadata(column: dict[str, Any]) -> Iterator[str]:
    yield from column["metadata"]
    kind = column["type"]
    for nested in kind.get("fields", ()) if isinstance(kind, dict) else ():
        yield from _metadata(nested)
