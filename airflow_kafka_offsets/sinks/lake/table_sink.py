"""What the sinks of tables of Parquet files share. DAG files import it: what is heavy is imported where it is used."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Self

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import ConfigurationError, OlderLedgerError
from airflow_kafka_offsets.sinks.lake.names import asset_uri
from airflow_kafka_offsets.sinks.sink import Connections, Sink

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa
    from sqlalchemy.engine import Connection, Engine

    from airflow_kafka_offsets.sinks.lake.connected import ConnectedLakeTable
    from airflow_kafka_offsets.sinks.lake.file_table import FileTable
    from airflow_kafka_offsets.sinks.lake.rows import LakeRows
    from airflow_kafka_offsets.sinks.lake.target import LakeTarget
    from airflow_kafka_offsets.sinks.table import Dataset, Output
    from airflow_kafka_offsets.sinks.target_rows import Removed
    from airflow_kafka_offsets.staging.rows import TargetColumns
    from airflow_kafka_offsets.writers.lake_writer import LakeWriter


@dataclass(frozen=True)
class FileTableSink(Sink, ABC):
    """A sink whose files Spark's tasks write, and whose commit names them.

    All parameters are templated.

    :param uri: an absolute path that all machines share, or a URI such as `s3://bucket/path`
    :param conn_id: the Airflow connection of the database that holds the positions
    :param storage_conn_id: the Airflow connection of the object store, of type `aws` or `generic`; without one, the
        environment of the worker and of Spark's executors says how to log in
    :param partition_by: columns of a table that is created
    :param columns: of a table that is created, in Spark's DDL; for a DataFrame transform, which does not say them
        before it runs. Those that say where a row came from are added
    :param sort_by: columns by which the rows of a file are in order
    :param file_bytes: the size at which a data file is complete; of a sorted one, in memory
    :param storage: what the connection of the object store holds
    """

    scheme: ClassVar[str]
    format: ClassVar[str]
    template_fields: ClassVar[tuple[str, ...]] = (
        "uri",
        "conn_id",
        "storage_conn_id",
        "partition_by",
        "columns",
        "sort_by",
        "file_bytes",
    )

    uri: str
    conn_id: str | None = None
    storage_conn_id: str | None = None
    partition_by: Sequence[str] = ()
    columns: str | None = None
    sort_by: Sequence[str] = ()
    file_bytes: int = 128 << 20
    storage: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name for messages and the history."""
        return self.scheme + (self.uri if "://" in self.uri else f"file://{self.uri}").rstrip("/")

    @property
    def commits_externally(self) -> bool:
        return True

    @property
    def writes_files(self) -> bool:
        return True

    def connect(self, engine: Engine, connections: Connections | None = None) -> ConnectedLakeTable:
        """Return the table with its object store."""
        from airflow_kafka_offsets.sinks.lake.connected import ConnectedLakeTable

        return ConnectedLakeTable(self.connected(connections or {}), engine)

    def uris(self, engine: Engine) -> list[str]:
        return [asset_uri(self.uri)]

    def datasets(self, engine: Engine) -> list[Dataset]:
        """Return the table as OpenLineage names it."""
        from airflow_kafka_offsets.sinks.lake.fields import fields_of
        from airflow_kafka_offsets.sinks.lake.names import dataset_name
        from airflow_kafka_offsets.sinks.table import Dataset

        snapshot = self.snapshot()
        return [Dataset(*dataset_name(self.uri), fields_of(snapshot.columns) if snapshot is not None else None)]

    @property
    def conn_ids(self) -> tuple[str, ...]:
        return () if self.storage_conn_id is None else (self.storage_conn_id,)

    def connected(self, connections: Mapping[str, Mapping[str, Any]]) -> Self:
        """Return the sink with the options of its object store."""
        from airflow_kafka_offsets.sinks.lake.storage import storage_options

        if self.storage_conn_id is None:
            return self
        if self.storage_conn_id not in connections:
            raise ConfigurationError(
                f"{self.name!r} needs the connection {self.storage_conn_id!r} of its object store, and got "
                f"{', '.join(connections) or 'none'}"
            )
        return replace(self, storage=storage_options(self.storage_conn_id, connections[self.storage_conn_id]))

    def storage_options(self) -> Mapping[str, Any]:
        return self.storage

    @abstractmethod
    def snapshot(self) -> FileTable | None:
        """Return the table as it is now; None where there is none."""

    @abstractmethod
    def create(self, columns: pa.Schema) -> FileTable:
        """Create the table, unless somebody else does at the same moment.

        :param columns: of the rows, or as they were declared
        """

    @abstractmethod
    def target(self, conn: Connection | None, output: Output) -> LakeTarget[Any]:
        """Return the table as a batch is published in it."""

    def prepare(self, engine: Engine, columns: pa.Schema | None, *, may_grow: bool = False) -> TargetColumns:
        """Check that rows can be written; create the table where it is missing. See `Table.prepare`."""
        from airflow_kafka_offsets.sinks.lake.columns import match
        from airflow_kafka_offsets.sinks.lake.creation import check_parameters, check_partitions
        from airflow_kafka_offsets.staging.rows import TargetColumns

        declared = check_parameters(self)
        snapshot = self.snapshot()
        if snapshot is None:
            wanted = columns if declared is None else declared
            if wanted is None:
                return TargetColumns(self.name, None)
            snapshot = self.create(wanted)
        snapshot.check()
        check_partitions(snapshot, self.partition_by)
        required = tuple(name for name in snapshot.required if name != BATCH_ID)
        if columns is not None:
            match(self.name, snapshot.columns, required, columns, may_grow=may_grow)
        return TargetColumns(self.name, tuple(snapshot.columns.names), required, may_grow)

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, batch_id: int) -> None:
        """Raise if the state tables are older than the table.

        :raises OlderLedgerError: there are rows of batches that the state tables do not know
        """
        import sqlalchemy as sa

        snapshot = self.snapshot()
        if snapshot is None:
            return
        self.check_history(conn, batches, batch_id, snapshot)
        later = snapshot.batch_ids(batch_id)
        if not later:
            return
        # Rows of this batch may be its own, once it began to be published.
        is_other = sa.or_(batches.c.batch_id != batch_id, batches.c.publish_started_at.is_not(None))
        known = conn.scalars(sa.select(batches.c.batch_id).where(is_other, batches.c.batch_id >= batch_id))
        if unknown := later.difference(known):
            raise OlderLedgerError(
                f"Table {self.name!r} holds rows of batch {min(unknown)}, which the state tables do not know; the next "
                f"batch would be {batch_id}. The state tables were restored from an older backup than the table, or "
                "created again. Nothing was written: their records would be loaded again. Restore both to the same "
                f"moment, or delete the rows with {BATCH_ID} >= {batch_id}, which this load then brings back."
            )

    @abstractmethod
    def check_history(self, conn: Connection, batches: sa.Table, batch_id: int, snapshot: Any) -> None:
        """Check that the table has not lost what was published in it.

        :raises TargetError: it has
        """

    def writer(self, engine: Engine, columns: pa.Schema | None, output: Output) -> LakeWriter:
        """Return what writes data files in Spark's tasks.

        :raises ConfigurationError: there is no table, and the columns are not known
        """
        from airflow_kafka_offsets.sinks.lake.staged import writer_fields
        from airflow_kafka_offsets.writers.lake_writer import LakeWriter

        snapshot = self.snapshot()
        if snapshot is None:
            raise ConfigurationError(
                f"There is no table {self.name!r}, and it cannot be created: what the transform returns is known only "
                f'when it ran. Declare the columns, as in {type(self).__name__}(…, columns="id BIGINT, name STRING"), '
                "or create the table"
            )
        return LakeWriter(self.format, **writer_fields(self, snapshot, columns, output))

    def open(self, conn: Connection, output: Output) -> AbstractContextManager[LakeTarget[Any]]:
        """Open the table. Its commit is made at the end of the block."""
        return self.target(conn, output).opened()

    def is_published(self, engine: Engine, output: Output) -> bool:
        """Return whether the table has the rows of a batch."""
        snapshot = self.snapshot()
        return snapshot is not None and snapshot.is_taken(output.series, output.batch_id)

    def retire(self, engine: Engine, output: Output) -> list[Removed]:
        """Take the rows of an abandoned batch back, and its number, so that nobody else publishes it."""
        return self.target(None, output).retire()

    def remove_leftovers(self, engine: Engine, batch_id: int, before: datetime) -> int:
        """Remove what attempts to stage a batch left, and no version of the table names."""
        from obstore.exceptions import BaseError

        snapshot = self.snapshot()
        if snapshot is None:
            return 0
        try:
            paths = snapshot.left_files(batch_id, before)
            for path in paths:
                snapshot.files.remove(path)
        except BaseError as error:  # such as a user who may write files, and not delete them
            raise OSError(f"{type(error).__name__}: {shortened(str(error))}") from None
        return len(paths)

    def rows(self, conn: Connection) -> LakeRows:
        """Return the rows as `verify` reads them."""
        from airflow_kafka_offsets.sinks.lake.rows import LakeRows

        return LakeRows(conn, self.name, self.snapshot())
