"""What the steps of a load share: the target and its checks, the records in Kafka, and the results of a batch and of a
load.

The target is checked once, and not for each batch. The search for unknown rows may read everything that was appended to
the table since its last vacuum, and reflecting a table takes a dozen queries. Each transaction matches rows with the
columns of the table in any case. Staged files hold rows only, so the records that the target refuses are read from
Kafka again.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core import log_identity
from airflow_kafka_offsets.core.offsets import Slice, TopicPartition
from airflow_kafka_offsets.core.origin import RECORD, RESERVED_PREFIX, TIMESTAMP
from airflow_kafka_offsets.core.slices import split
from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.database.tables import check_rights
from airflow_kafka_offsets.exceptions import (
    LAKE,
    ConfigurationError,
    DatabaseUnavailableError,
    DataLossError,
    LogTruncatedError,
    TargetError,
    TopicRecreatedError,
    UnknownTopicError,
    about,
)
from airflow_kafka_offsets.formats.read_schemas import has_schema_ids
from airflow_kafka_offsets.formats.record_format import BadRecord, Connections
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.consumer import consumer_config
from airflow_kafka_offsets.kafka.reader import read
from airflow_kafka_offsets.ledger.batch_rows import Batch, Recipe
from airflow_kafka_offsets.ledger.dead_letters import DECODED
from airflow_kafka_offsets.ledger.groups import is_known
from airflow_kafka_offsets.ledger.install import create_missing
from airflow_kafka_offsets.ledger.positions import Reads
from airflow_kafka_offsets.ledger.publications import Publication
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.sinks.table import Output, Table
from airflow_kafka_offsets.sinks.target_names import TargetNames
from airflow_kafka_offsets.spark.job import Launcher
from airflow_kafka_offsets.staging.dead_letters import SCHEMA, dead_letters_of
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.rows import Record, StagedRows, TargetColumns

log = logging.getLogger(__name__)


@dataclass
class TargetChecks:
    """The checks of a load, or of a replay. An external target may be rolled back by other programs at any time, so it
    is checked for each batch.
    """

    ledger: Ledger
    table: Table
    may_grow: bool
    _known_after: int | None = field(default=None, init=False)
    _prepared: pa.Schema | None = field(default=None, init=False)

    def refuse_unknown_rows(self, conn: Connection, output: Output) -> None:
        """Raise if the target holds rows of a batch that the state tables do not know; see `Table.refuse_unknown_rows`.

        :param output: of the batch that is about to be written
        :raises OlderLedgerError: there are such rows
        """
        batch_id = output.batch_id
        # Batches of a load are numbered upwards. A number that comes again is of state tables that somebody restored
        # within the load.
        if self._known_after is None or batch_id <= self._known_after or self._may_change:
            self.table.refuse_unknown_rows(conn, self.ledger.tables.offset_batches, output)
            self._known_after = batch_id - 1

    def note_committed(self, batch_id: int) -> None:
        """Take note that a batch is committed, after which another one follows."""
        self._known_after = batch_id

    def prepare(self, columns: pa.Schema) -> None:
        """Check that staged rows can be written, and create the target if it is missing; see `Table.prepare` for
        errors.

        :param columns: those of the rows, which may be a transform's
        """
        if columns != self._prepared or self._may_change:
            self.table.prepare(columns, may_grow=self.may_grow)
            self._prepared = columns

    @property
    def _may_change(self) -> bool:
        return self.table.sink.commits_externally or self.table.sink.writes_files


# Records of one partition that are nearer to each other are read by one consumer: to start another takes longer.
_NEAR = 10_000

_GONE = (DataLossError, LogTruncatedError, TopicRecreatedError, UnknownTopicError)

_NO_RECORD = "; Kafka no longer has the record, and the value is what it was decoded to, as JSON"


def with_refused(reads: Reads, refused: Mapping[Record, str]) -> Reads:
    """Return what was read of each range, with the refused records among its dead letters."""
    counts = Counter(TopicPartition(record.topic, record.partition) for record in refused)
    return {tp: replace(read, dead_letters=read.dead_letters + counts[tp]) for tp, read in reads.items()}


def _slices(records: Mapping[Record, str]) -> Iterator[Slice]:
    """Yield slices that hold the records, as few as possible, and none much larger than necessary."""
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
    for batch in rows.of_records(reasons):
        columns = map(_python_values, batch.columns)
        for row in (dict(zip(batch.schema.names, row, strict=True)) for row in zip(*columns, strict=True)):
            record = Record(*(row[name] for name in RECORD))
            timestamps[record] = row.get(TIMESTAMP)
            values[record].append({name: value for name, value in row.items() if not name.startswith(RESERVED_PREFIX)})
    dead_letters = [
        {
            **record._asdict(),
            "value": _json(values[record]),
            "timestamp": timestamps.get(record),
            "error_class": DECODED,
            "error": reason + _NO_RECORD,
        }
        for record, reason in reasons.items()
    ]
    return pa.RecordBatch.from_pylist(dead_letters, schema=SCHEMA)


def _python_values(column: pa.Array) -> list[Any]:
    """Return the values of a column, as texts if some are of no year that Python has; nested ones are null then."""
    values: list[Any] = [None] * len(column)
    try:
        values = column.to_pylist()
    except (OverflowError, ValueError):
        with suppress(pa.ArrowNotImplementedError):
            values = column.cast(pa.string()).to_pylist()
    return values


def _json(rows: Sequence[dict[str, Any]]) -> bytes:
    def plain(value: object) -> str:
        return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)

    return json.dumps(rows[0] if len(rows) == 1 else rows, default=plain).encode()


class Commit(NamedTuple):
    """A committed batch.

    :param kind: `load` or `replay`
    :param records: number of loaded records by topic, dead letters included
    :param dead_letters: number of dead-lettered records by topic
    :param rows: number of written rows
    :param duration: from the start of planning, or from when this attempt resumed the batch, to the end of the commit
    """

    group_id: str
    kind: str
    records: Mapping[str, int]
    dead_letters: Mapping[str, int]
    rows: int
    duration: timedelta


OnCommit = Callable[[Commit], None]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What a load or a replay did.

    :param batches: the ids of the committed batches, in order; another run may have planned the first one
    :param records: how many records were read, dead letters included
    :param rows: how many rows were written
    :param dead_letters: how many records were dead-lettered
    :param complete: False where the time budget was used up before everything was loaded
    """

    batches: tuple[int, ...] = ()
    records: int = 0
    rows: int = 0
    dead_letters: int = 0
    complete: bool = True

    def __add__(self, other: LoadResult) -> LoadResult:
        """Return the sum of two results, the earlier one first."""
        return LoadResult(
            self.batches + other.batches,
            self.records + other.records,
            self.rows + other.rows,
            self.dead_letters + other.dead_letters,
            self.complete and other.complete,
        )


@dataclass(frozen=True, kw_only=True)
class BatchContext(ABC):
    """The context in which batches are staged and committed, wherever their records are.

    :param columns: of a decoded row, with those that say which record it came from
    :param table: the target
    :param target: its columns
    :param recipe: how records become rows; its fingerprint is a hash of everything that decides this
    :param checks: of the target, which a load makes once
    :param on_commit: called after each commit
    :param replace: whether a commit first removes what earlier batches wrote of the same offsets
    :param skips_lost: whether it does so with output of records that Kafka no longer has
    :param connections: of the formats; they hold secrets
    """

    records_are_staged: ClassVar[bool] = False
    """Whether `slices` writes the records into the staging directory."""

    pipeline: Pipeline
    ledger: Ledger
    launcher: Launcher
    table: Table
    columns: pa.Schema
    target: TargetColumns
    recipe: Recipe
    checks: TargetChecks
    on_commit: OnCommit | None = None
    replace: bool = False
    skips_lost: bool = False
    connections: Connections = field(default_factory=dict, repr=False)
    kafka_config: Mapping[str, Any] = field(default_factory=dict, repr=False)  # holds secrets, too

    def publication(self, batch: Batch, kind: str, attempt: str = "") -> Publication:
        """Return a batch on its way into the target; see `Publication.of`."""
        return Publication.of(self.ledger, self.table, batch, kind, attempt)

    @abstractmethod
    def slices(self, batch: Batch, directory: StagingDirectory) -> Sequence[Slice]:
        """Return the slices of a batch for Spark; if their records are not in Kafka, write them first."""

    @abstractmethod
    def check_logs(self, batch: Batch) -> None:
        """Check that the records of a batch are still those that it was planned for.

        :raises TopicRecreatedError: a topic was recreated
        :raises LogTruncatedError: a log was truncated
        """

    @abstractmethod
    def refused_dead_letters(self, batch: Batch, rows: StagedRows) -> Iterator[pa.RecordBatch]:
        """Yield dead letters of the records that the target refuses.

        :return: record batches with the columns of `staging.dead_letters.SCHEMA`
        """

    @classmethod
    def connect(
        cls, pipeline: Pipeline, columns: pa.Schema, engine: Engine, connections: Connections | None, **others: Any
    ) -> Self:
        """Connect to the target, and create it where it is missing.

        :param columns: what `Pipeline.check` returned
        :param others: the other fields
        """
        ledger, table = Ledger(engine, pipeline.tables), pipeline.sink.connect(engine, connections)
        prepare = partial(_prepared, table, pipeline.result_columns(columns), may_grow=pipeline.adds_columns)
        if pipeline.sink.writes_files:
            with ledger.connect() as conn:
                table.refuse_lost(conn, ledger.tables.offset_batches, pipeline.group_id)
        try:
            target = prepare()
        except TargetError:
            # An attempt that failed before its first row may have created it with columns that were a mistake.
            if _is_written(ledger, pipeline.sink.name) or not table.drop_unused():
                raise
            target = prepare()
        return cls(
            pipeline=pipeline,
            ledger=ledger,
            table=table,
            columns=columns,
            target=target,
            recipe=Recipe(pipeline.sink.name, pipeline.transform_name, pipeline.fingerprint(columns)),
            checks=TargetChecks(ledger, table, pipeline.adds_columns),
            connections=connections or {},
            **others,
        )


def _prepared(table: Table, columns: pa.Schema | None, *, may_grow: bool) -> TargetColumns:
    """Prepare a target; see `Table.prepare`.

    :raises DatabaseUnavailableError: its object store does not answer, or refuses the request
    """
    try:
        return table.prepare(columns, may_grow=may_grow)
    except DatabaseUnavailableError as error:
        error.about = error.about or (LAKE if table.sink.conn_ids else ())
        raise
    except OSError as error:
        # Of deltalake's: a tree of lines, in colours.
        reason = shortened(" ".join(re.sub(r"\x1b\[\d*m|\u21b3", "", str(error)).split()))
    # Outside of the handler: the error may hold secrets.
    with about(*LAKE):
        raise DatabaseUnavailableError(
            f"{table.sink.name} cannot be opened: {reason}. Check the name of the bucket, and storage_conn_id, which "
            "names the connection of the object store. Nothing was written"
        )


def _check_topics(cluster: Cluster, pipeline: Pipeline, *, is_new: bool) -> None:
    """Check that the topics of a new group exist, and for any group that of its dead letters.

    :raises UnknownTopicError: of a new group, so that a misspelt topic leaves no group and no table behind; for another
        one the topic of its dead letters is only warned of
    """
    dead_letters = None if pipeline.dead_letters is None else pipeline.dead_letters.topic
    topics = [*(pipeline.topics if is_new else ()), *(() if dead_letters is None else (dead_letters,))]
    try:
        if topics:
            cluster.topic_ids(topics)
    except (UnknownTopicError, ConfigurationError) as error:
        if f"topic {dead_letters!r}" in error.args[0]:
            advice = f"Create the topic of DeadLetters(topic={dead_letters!r}), or correct its name"
            error.args = (f"{advice}: {error.args[0]}",)
        if is_new:
            raise
        log.warning("New dead letters of group %r stay in the state tables. %s", pipeline.group_id, error)


def _is_written(ledger: Ledger, name: str) -> bool:
    """Return whether the history has a committed batch of a target."""
    batches = ledger.tables.offset_batches.c
    with ledger.connect() as conn:
        names = TargetNames(conn, ledger.tables.offset_batches)
        written = conn.scalars(sa.select(batches.target_table).where(batches.row_count.is_not(None)).distinct())
        return any(names.may_hold(other, name) for other in written)


@dataclass(frozen=True, kw_only=True)
class LoadContext(BatchContext):
    """A load or a replay that is ready to run: its records are in Kafka."""

    cluster: Cluster
    cluster_id: str

    def slices(self, batch: Batch, directory: StagingDirectory) -> Sequence[Slice]:
        """Return the slices that Spark reads of a batch."""
        return split(batch.ranges, self.pipeline.staging.slice_offsets, writes_files=self.pipeline.sink.writes_files)

    def check_logs(self, batch: Batch) -> None:
        """Check that no topic of a batch was recreated, and that no log was truncated before its ranges."""
        log_identity.check_ranges(batch.ranges, self.cluster.logs_of_ranges(batch.ranges))

    def refused_dead_letters(self, batch: Batch, rows: StagedRows) -> Iterator[pa.RecordBatch]:
        """Yield dead letters of the refused records, as Kafka holds them; if a record is gone, its row is the value."""
        missing = dict(rows.refused.reasons)
        if not missing:
            return
        with_schema_ids = has_schema_ids(self.pipeline.record_format)
        for slice_, records in self._read_again(batch, missing):
            offsets = records.column("offset").to_pylist()
            found = {row: Record(slice_.topic, slice_.partition, offset) for row, offset in enumerate(offsets)}
            bad = [BadRecord(row, missing.pop(record), "target") for row, record in found.items() if record in missing]
            if bad:
                yield dead_letters_of(records, slice_, bad, with_schema_ids)
        if missing:
            yield _of_rows(rows, missing)

    def _read_again(self, batch: Batch, wanted: Mapping[Record, str]) -> Iterator[tuple[Slice, pa.RecordBatch]]:
        """Yield what Kafka has of wanted records, and of some between them."""
        reading = self.pipeline.reading
        config = consumer_config(self.kafka_config, self.pipeline.group_id, reading.isolation_level)
        idle_timeout = reading.idle_timeout.total_seconds()
        topics = {record.topic for record in wanted}
        with suppress(*_GONE):
            ranges = [range_ for range_ in batch.ranges if range_.topic in topics]
            logs = self.cluster.logs_of_ranges(ranges)
            # Another topic of the same name holds other records.
            log_identity.check_ranges(ranges, logs)
            for slice_ in _slices(wanted):
                beginning = logs[TopicPartition(slice_.topic, slice_.partition)].beginning
                if slice_.end > beginning:
                    kept = replace(slice_, start=max(slice_.start, beginning))
                    with suppress(*_GONE):  # since the logs were looked at
                        for records in read(kept, config, with_headers=True, idle_timeout=idle_timeout):
                            yield kept, records

    @classmethod
    def prepare(
        cls,
        pipeline: Pipeline,
        columns: pa.Schema,
        *,
        kafka_config: Mapping[str, Any],
        engine: Engine,
        connections: Connections | None,
        **others: Any,
    ) -> LoadContext:
        """Ask Kafka for its cluster, and create the state tables and the target where they are missing.

        :param columns: what `Pipeline.check` returned
        :param others: the other fields
        """
        cluster = Cluster(kafka_config, isolation_level=pipeline.reading.isolation_level)
        cluster_id = cluster.cluster_id()
        ledger = Ledger(engine, pipeline.tables)
        create_missing(ledger)
        if pipeline.dead_letters is not None and pipeline.dead_letters.retention is not None:
            with ledger.connect() as conn:
                check_rights(conn, ledger.tables.dead_letters, ("UPDATE",), "drop old dead letters of table {table!r}")
        with ledger.connect() as conn:
            _check_topics(cluster, pipeline, is_new=not is_known(conn, ledger.tables, pipeline.group_id))
        others |= {"cluster": cluster, "cluster_id": cluster_id, "kafka_config": kafka_config}
        return cls.connect(pipeline, columns, engine, connections, **others)
