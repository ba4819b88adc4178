"""A sink that commits externally: an archive in a separate database.

It can die after its commit, and before that of the positions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.schema import CreateTable

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.database.transactions import transaction
from airflow_kafka_offsets.exceptions import OlderLedgerError
from airflow_kafka_offsets.sinks.sink import Connections
from airflow_kafka_offsets.sinks.table import Output, Table, Target
from airflow_kafka_offsets.sinks.target_rows import Removed, ReplacedOffsets
from airflow_kafka_offsets.staging.rows import StagedRows, TargetColumns
from tests.support.archive import Archive, ArchivedRows, ArchiveTable, OpenArchive

_METADATA = sa.MetaData()
PUBLICATIONS = sa.Table(
    "publications",
    _METADATA,
    sa.Column("series", sa.Text, primary_key=True),
    sa.Column("number", sa.BigInteger),
    sa.Column("did", sa.Text),
)


class ProcessDiedError(Exception):
    """The process is gone: nothing catches it."""


@dataclass(frozen=True)
class ExternalArchiveTable(ArchiveTable):
    """An archive that commits externally."""

    sink: ExternalArchive

    def last_number(self, output: Output) -> int:
        return self.sink.last_number(output)

    def retire(self, output: Output) -> list[Removed]:
        return self.sink.retire(output)


@dataclass(frozen=True)
class ExternalArchive(Archive):
    """An archive in another database.

    :param path: of the SQLite file
    :param dies: whether the process dies between the two commits; `before` the first one, or `after` it
    """

    path: str = ""
    dies: str | None = None

    @property
    def name(self) -> str:
        return f"elsewhere://{self.archive}"

    @property
    def commits_externally(self) -> bool:
        return True

    def connect(self, engine: Engine, connections: Connections | None = None) -> Table:
        return ExternalArchiveTable(self, engine)

    def database(self) -> Engine:
        return sa.create_engine(f"sqlite:///{self.path}", poolclass=sa.NullPool)

    def prepare(self, engine: Engine) -> TargetColumns:
        with transaction(self.database()) as other:
            for table in (PUBLICATIONS, self.blobs):
                other.execute(CreateTable(table, if_not_exists=True))
        return TargetColumns(self.name, None)

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, output: Output) -> None:
        # Rows of this batch may be its own, once it began to be published.
        is_other = sa.or_(batches.c.batch_id != output.batch_id, batches.c.publish_started_at.is_not(None))
        known = set(conn.scalars(sa.select(batches.c.batch_id).where(is_other)))
        with self.database().connect() as other:
            unknown = [batch for batch, _ in self.read(other) if batch not in known]
        if unknown:
            raise OlderLedgerError(
                f"{self.name} holds rows of batch {min(unknown)}, which the state tables do not know"
            )

    def open(self, conn: Connection, output: Output) -> AbstractContextManager[Any]:
        return self._opened(output, conn)

    @contextmanager
    def _opened(self, output: Output, conn: Connection) -> Iterator[Target]:
        with transaction(self.database()) as other:
            did = self._did(other, output)
            if did is not None:
                yield PublishedArchive(did)
                return
            target = Recording(OpenArchive(self, other, conn))
            yield target
            if self.dies == "before":
                raise ProcessDiedError
            self._store(other, output, {"rows": target.rows, "removed": target.gone})
        if self.dies == "after":
            raise ProcessDiedError

    def _did(self, other: Connection, output: Output) -> dict[str, object] | None:
        row = other.execute(
            sa.select(PUBLICATIONS).where(
                PUBLICATIONS.c.series == output.series, PUBLICATIONS.c.number >= output.batch_id
            )
        ).one_or_none()
        return None if row is None else dict(json.loads(row.did))

    def _store(self, other: Connection, output: Output, did: object) -> None:
        other.execute(PUBLICATIONS.delete().where(PUBLICATIONS.c.series == output.series))
        values = {"series": output.series, "number": output.batch_id, "did": json.dumps(did)}
        other.execute(PUBLICATIONS.insert(), values)

    def last_number(self, output: Output) -> int:
        number = sa.select(PUBLICATIONS.c.number).where(PUBLICATIONS.c.series == output.series)
        with self.database().connect() as other:
            return other.scalar(number) or -1

    def retire(self, output: Output) -> list[Removed]:
        with transaction(self.database()) as other:
            records = dict(self.read(other)).get(output.batch_id, [])
            self.put(other, output.batch_id, [])
            self._store(other, output, {"rows": 0, "removed": []})
            places = [TopicPartition(record["_kafka_topic"], record["_kafka_partition"]) for record in records]
            return [Removed(output.batch_id, tp, places.count(tp)) for tp in sorted(set(places))]

    def rows(self, conn: Connection) -> ArchivedRows:
        return ArchivedRows(self, self.database().connect(), conn)

    def connection(self, engine: Engine) -> AbstractContextManager[Connection]:
        return self.database().begin()


@dataclass
class Recording(Target):
    """The archive in a transaction of its own, and what was done to it."""

    target: OpenArchive
    rows: int = 0
    gone: tuple[Removed, ...] = ()

    def add_columns(self, columns: pa.Schema) -> list[str]:
        return []

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        removed = self.target.remove(replaced)
        self.gone += tuple(removed)
        return removed

    def write(self, rows: StagedRows) -> int:
        self.rows = self.target.write(rows)
        return self.rows


@dataclass
class PublishedArchive(Target):
    """An archive that has the batch already."""

    did: dict[str, object]

    def add_columns(self, columns: pa.Schema) -> list[str]:
        return []

    def remove(self, replaced: ReplacedOffsets) -> list[Removed]:
        parts = list(self.did["removed"])  # type: ignore[call-overload]
        return [Removed(batch, TopicPartition(*tp), count) for batch, tp, count in parts]

    def write(self, rows: StagedRows) -> int:
        return int(str(self.did["rows"]))
