"""Whether the rows of a batch fit the columns of a table of files: by name, and by type."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from airflow_kafka_offsets.core.origin import BATCH_ID
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
    faults = []
    for field in columns:
        if field.name not in table.names:
            if not may_grow:
                faults.append(f"it has no column {field.name!r}")
        elif not may_hold(table.field(field.name).type, field.type):
            faults.append(f"column {field.name!r} is {table.field(field.name).type}, the rows hold {field.type}")
    if missing := [column for column in required if column not in columns.names and column != BATCH_ID]:
        faults.append(f"it needs a value for {', '.join(map(repr, missing))}, which the rows do not hold")
    if faults:
        raise TargetError(f"Table {name!r} does not fit the rows: {'; '.join(faults)}")
