"""What stages and commits dead letters of a batch: their records are in the state tables, and not in Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import ClassVar

import pyarrow as pa
import sqlalchemy as sa

from airflow_kafka_offsets.core.chunks import chunks
from airflow_kafka_offsets.core.offsets import Slice, TopicPartition
from airflow_kafka_offsets.dead_letters.selection import (
    DeadLetter,
    DeadLetterFilter,
    can_be_replayed,
    read_dead_letters,
)
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.loading.context import BatchContext
from airflow_kafka_offsets.staging.arrow_files import SCHEMA, write_records
from airflow_kafka_offsets.staging.dead_letters import SCHEMA as DEAD_LETTERS
from airflow_kafka_offsets.staging.dead_letters import headers_of
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.rows import Record, StagedRows


@dataclass(frozen=True, kw_only=True)
class DeadLetterContext(BatchContext):
    """A replay of dead letters that is ready to run.

    :param letters: which ones are replayed
    :param corrected: values to decode instead of theirs; only these records are replayed then
    """

    records_are_staged: ClassVar[bool] = True

    letters: DeadLetterFilter
    corrected: Mapping[Record, bytes | None] | None

    def wanted(self) -> sa.ColumnElement[bool]:
        """Return the condition for the dead letters that are replayed, of which `is_chosen` tells more."""
        return can_be_replayed(self.ledger.tables, self.letters, self.corrected)

    def is_chosen(self, record: Record) -> bool:
        """Return whether a record is replayed."""
        return self.corrected is None or record in self.corrected

    def slices(self, batch: Batch, directory: StagingDirectory) -> Sequence[Slice]:
        """Write the dead letters of a batch as records, and return a slice for each of its ranges."""
        slices = {
            range_.topic_partition: Slice(index, *range_.topic_partition, range_.start, range_.end)
            for index, range_ in enumerate(batch.ranges)
        }
        unwritten = {slice_.index for slice_ in slices.values()}
        with self.ledger.connect() as conn:
            letters = read_dead_letters(conn, self.ledger.tables, self.letters, replayed_by=batch.batch_id)
            for tp, of_partition in groupby(letters, lambda letter: TopicPartition(letter.topic, letter.partition)):
                write_records(directory, slices[tp].index, self._as_records(of_partition))
                unwritten.remove(slices[tp].index)
        for index in unwritten:
            # They were removed meanwhile, which the commit refuses.
            write_records(directory, index, ())
        return tuple(slices.values())

    def check_logs(self, batch: Batch) -> None:
        """Do nothing: dead letters stay what they are, whatever happens to their topic."""

    def refused_dead_letters(self, batch: Batch, rows: StagedRows) -> Iterator[pa.RecordBatch]:
        """Yield dead letters of the records that the target refuses, without what they hold: it is stored already."""
        refused = [
            {**record._asdict(), "error_class": "target", "error": reason}
            for record, reason in rows.refused.reasons.items()
        ]
        if refused:
            yield pa.RecordBatch.from_pylist(refused, schema=DEAD_LETTERS)

    def _as_records(self, letters: Iterable[DeadLetter]) -> Iterator[pa.RecordBatch]:
        """Yield dead letters as Kafka's reader yields records."""

        def size(letter: DeadLetter) -> int:
            return len(letter.key or b"") + len(letter.value or b"") + len(letter.headers or "")

        for some in chunks(iter(letters), size):
            rows = [
                {
                    "key": letter.key,
                    "value": letter.value if self.corrected is None else self.corrected[letter.record],
                    "offset": letter.offset,
                    "timestamp": letter.timestamp,
                    "headers": [{"key": key, "value": value} for key, value in headers_of(letter.headers)],
                }
                for letter in some
            ]
            yield pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
