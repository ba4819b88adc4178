"""Dead letters of records that the target refuses. Staged files have their rows only, so Kafka is asked for them
again.
"""

from __future__ import annotations

import base64
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from airflow_kafka_offsets.core import log_identity
from airflow_kafka_offsets.core.offsets import Slice, TopicPartition
from airflow_kafka_offsets.core.origin import RECORD, RESERVED_PREFIX, TIMESTAMP
from airflow_kafka_offsets.exceptions import DataLossError, LogTruncatedError, TopicRecreatedError, UnknownTopicError
from airflow_kafka_offsets.formats.read_schemas import has_schema_ids
from airflow_kafka_offsets.formats.record_format import BadRecord
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.reader import consumer_config, read
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.positions import Reads
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.staging.dead_letters import SCHEMA, letters_of
from airflow_kafka_offsets.staging.rows import Record, StagedRows

# Records of one partition that are nearer to each other are read by one consumer: to start another takes longer.
_NEAR = 10_000

_GONE = (DataLossError, LogTruncatedError, TopicRecreatedError, UnknownTopicError)

_NO_RECORD = "; Kafka no longer has the record, and the value is what it was decoded to, as JSON"


def refused_dead_letters(
    pipeline: Pipeline, cluster: Cluster, kafka_config: Mapping[str, Any], batch: Batch, rows: StagedRows
) -> Iterator[pa.RecordBatch]:
    """Yield dead letters of the refused records, as Kafka holds them; of one that is gone, with its row for a value.

    :return: record batches with the columns of `staging.dead_letters.SCHEMA`
    """
    missing = dict(rows.refused.reasons)
    if not missing:
        return
    with_schema_ids = has_schema_ids(pipeline.record_format)
    for slice_, records in _records(pipeline, cluster, kafka_config, batch, missing):
        offsets = records.column("offset").to_pylist()
        found = {row: Record(slice_.topic, slice_.partition, offset) for row, offset in enumerate(offsets)}
        bad = [BadRecord(row, missing.pop(record), "target") for row, record in found.items() if record in missing]
        if bad:
            yield letters_of(records, slice_, bad, with_schema_ids)
    if missing:
        yield _of_rows(rows, missing)


def with_refused(reads: Reads, refused: Mapping[Record, str]) -> Reads:
    """Return what was read of each range, with the refused records among its dead letters."""
    counts = Counter(TopicPartition(record.topic, record.partition) for record in refused)
    return {tp: replace(read, dead_letters=read.dead_letters + counts[tp]) for tp, read in reads.items()}


def _records(
    pipeline: Pipeline, cluster: Cluster, kafka_config: Mapping[str, Any], batch: Batch, wanted: Mapping[Record, str]
) -> Iterator[tuple[Slice, pa.RecordBatch]]:
    """Yield what Kafka has of wanted records, and of some between them."""
    config = consumer_config(kafka_config, pipeline.group_id, pipeline.reading.isolation_level)
    topics = {record.topic for record in wanted}
    with suppress(*_GONE):
        logs = cluster.logs(sorted(topics))
        # Another topic of the same name holds other records.
        log_identity.check_ranges([range_ for range_ in batch.ranges if range_.topic in topics], logs)
        for slice_ in _slices(wanted):
            beginning = logs[TopicPartition(slice_.topic, slice_.partition)].beginning
            if slice_.end > beginning:
                kept = replace(slice_, start=max(slice_.start, beginning))
                with suppress(*_GONE):  # since the logs were looked at
                    idle_timeout = pipeline.reading.idle_timeout.total_seconds()
                    for records in read(kept, config, with_headers=True, idle_timeout=idle_timeout):
                        yield kept, records


def _slices(records: Mapping[Record, str]) -> Iterator[Slice]:
    """Yield slices that hold the records, few of them and none much larger than it must be."""
    offsets: dict[TopicPartition, list[int]] = defaultdict(list)
    for record in sorted(records):
        offsets[TopicPartition(record.topic, record.partition)].append(record.offset)
    for tp, sorted_offsets in offsets.items():
        start = end = sorted_offsets[0]
        for offset in sorted_offsets:
            if offset - end > _NEAR:
                yield Slice(0, *tp, start, end)
                start = offset
            end = offset + 1
        yield Slice(0, *tp, start, end)


def _of_rows(rows: StagedRows, reasons: Mapping[Record, str]) -> pa.RecordBatch:
    """Return dead letters with rows as their values."""
    values: dict[Record, list[dict[str, Any]]] = defaultdict(list)
    timestamps: dict[Record, Any] = {}
    for row in rows.of_records(reasons):
        record = Record(*(row[name] for name in RECORD))
        timestamps[record] = row.get(TIMESTAMP)
        values[record].append({name: value for name, value in row.items() if not name.startswith(RESERVED_PREFIX)})
    letters = [
        {
            **record._asdict(),
            "value": _json(values[record]),
            "timestamp": timestamps[record],
            "error_class": "target",
            "error": reason + _NO_RECORD,
        }
        for record, reason in reasons.items()
    ]
    return pa.RecordBatch.from_pylist(letters, schema=SCHEMA)


def _json(rows: Sequence[dict[str, Any]]) -> bytes:
    def plain(value: object) -> str:
        return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)

    return json.dumps(rows[0] if len(rows) == 1 else rows, default=plain).encode()
