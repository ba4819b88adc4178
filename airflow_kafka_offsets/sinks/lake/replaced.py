"""Which rows of a table of files are of replaced offsets: decided in Arrow, since no query joins them with the state
tables.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.instants import TimeSpan
from airflow_kafka_offsets.core.offsets import Span, TopicPartition
from airflow_kafka_offsets.core.origin import BATCH_ID, OFFSET, PARTITION, RECORD, TIMESTAMP, TOPIC
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.sinks.target_rows import Removed, ReplacedOffsets

_KEYS = (BATCH_ID, TOPIC, PARTITION)

Key = tuple[int, str, int]
"""A batch, a topic and a partition."""


class ReplacedRows(NamedTuple):
    """The offsets of earlier batches whose rows are removed.

    :param target: the name of the table, for messages
    :param ranges: by batch and partition
    :param span: of time, if only the rows of records within it are removed
    """

    target: str
    ranges: Mapping[Key, list[Span]]
    span: TimeSpan | None = None

    @classmethod
    def read(cls, conn: Connection, target: str, replaced: ReplacedOffsets) -> ReplacedRows:
        """Return offsets as plain numbers.

        :param conn: of the database with the state tables
        """
        ranges: dict[Key, list[Span]] = defaultdict(list)
        for row in conn.execute(replaced.ranges):
            ranges[row.batch_id, row.topic, row.partition].append((row.start_offset, row.end_offset))
        return cls(target, dict(ranges), replaced.span)

    @property
    def batch_ids(self) -> list[int]:
        """The batches that wrote some of the rows, in order."""
        return sorted({batch_id for batch_id, _, _ in self.ranges})

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [BATCH_ID, *RECORD, *([TIMESTAMP] if self.span is not None else [])]

    def check_columns(self, table: pa.Schema) -> None:
        """Check that the table says which rows are of these offsets.

        :raises ConfigurationError: a column is missing
        """
        if missing := [name for name in self.columns if name not in table.names]:
            raise ConfigurationError(
                f"Table {self.target!r} has no column {', '.join(missing)}: which of its rows are of the offsets that "
                "are to be replaced is not known. Nothing was changed; delete the rows yourself and rewind without "
                "replacing, or load into a new table."
            )

    def mask(self, rows: pa.RecordBatch | pa.Table) -> pa.ChunkedArray | pa.Array:
        """Return for each row whether it is removed.

        :param rows: at least the columns of `columns`
        :raises ConfigurationError: a row of these batches does not say where it is from, or of which time
        """
        self._refuse_silent(rows)
        found = pc.is_in(rows.column(BATCH_ID), value_set=pa.array([], rows.column(BATCH_ID).type))
        for key in _keys(rows):
            for start, end in self.ranges.get(key, ()):
                offset = rows.column(OFFSET)
                of_key = [pc.equal(rows.column(name), value) for name, value in zip(_KEYS, key, strict=True)]
                of_range = [pc.greater_equal(offset, start), pc.less(offset, end)]
                found = pc.or_(found, all_of([*of_key, *of_range]))
        return found if self.span is None else pc.and_(found, self._is_within(rows, found, self.span))

    def _is_within(self, rows: pa.RecordBatch | pa.Table, found: pa.Array, span: TimeSpan) -> pa.Array:
        timestamp = rows.column(TIMESTAMP)
        silent = pc.sum(pc.and_(found, pc.is_null(timestamp))).as_py()
        if silent:
            raise ConfigurationError(
                f"Table {self.target!r} holds {count(silent, 'row')} of the offsets that are read, without a "
                f"{TIMESTAMP}: whether they are of the span that is to be replaced is not known. Nothing was changed; "
                "replay a range of offsets, or without all_records."
            )
        is_within = pc.greater_equal(timestamp, pa.scalar(span.since, timestamp.type))
        if span.until is not None:
            is_within = pc.and_(is_within, pc.less(timestamp, pa.scalar(span.until, timestamp.type)))
        return is_within

    def _refuse_silent(self, rows: pa.RecordBatch | pa.Table) -> None:
        batches = rows.column(BATCH_ID)
        ours = pc.is_in(batches, value_set=pa.array(self.batch_ids, batches.type))
        for name in RECORD:
            silent = pc.and_(ours, pc.is_null(rows.column(name)))
            if pc.any(silent).as_py():
                batch_id = pc.min(batches.filter(silent)).as_py()
                raise ConfigurationError(
                    f"Table {self.target!r} holds rows of batch {batch_id} that do not say their topic, partition and "
                    "offset: which of them are of the offsets that are to be replaced is not known. Nothing was "
                    "changed; have the transform keep the columns _kafka_topic, _kafka_partition and _kafka_offset, "
                    "and delete these rows yourself."
                )


def count_rows(rows: pa.RecordBatch | pa.Table) -> Counter[Key]:
    """Return how many rows there are of each batch and partition."""
    table = pa.table({name: rows.column(name) for name in _KEYS})
    counts = table.group_by(list(_KEYS)).aggregate([([], "count_all")]).to_pylist()
    return Counter({(row[BATCH_ID], row[TOPIC], row[PARTITION]): row["count_all"] for row in counts})


def as_removed(counts: Mapping[Key, int]) -> list[Removed]:
    """Return counted rows in the form in which a sink reports what it removed."""
    return [
        Removed(batch, TopicPartition(topic, partition), rows) for (batch, topic, partition), rows in counts.items()
    ]


def _keys(rows: pa.RecordBatch | pa.Table) -> Iterable[Key]:
    return count_rows(rows).keys()


def all_of(conditions: list[pa.Array]) -> pa.Array:
    """Return where all conditions are true; where one of them is null, it is not."""
    first, *others = conditions
    for other in others:
        first = pc.and_(first, other)
    return pc.fill_null(first, False)
