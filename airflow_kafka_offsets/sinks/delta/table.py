"""The sink for tables of Delta Lake. DAG files import it: what is heavy is imported where it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.exceptions import ConfigurationError, OlderLedgerError

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa
    from sqlalchemy.engine import Connection, Engine

    from airflow_kafka_offsets.sinks.delta.snapshot import DeltaSnapshot
    from airflow_kafka_offsets.sinks.lake.rows import LakeRows
    from airflow_kafka_offsets.sinks.lake.target import LakeTarget
    from airflow_kafka_offsets.sinks.sink import Output, Removed, ReplacedOffsets
    from airflow_kafka_offsets.staging.rows import TargetColumns
    from airflow_kafka_offsets.writers.delta_writer import DeltaWriter

SCHEME = "delta+"


@dataclass(frozen=True)
class DeltaTable:
    """Append rows to a table of Delta Lake. Columns are matched by name; a missing table is created from the rows' columns.

    Spark's tasks write the data files. One commit of Delta adds them, with the number of the batch as an application transaction: the
    batch is in the table once, whatever dies or is repeated. Then the positions move, in their database.

    * Others may append, delete, OPTIMIZE and VACUUM at any time, but VACUUM with a retention that is shorter than a load takes.
    * After a RESTORE to a version before the group's last load, the next load is refused: rows are gone that the positions say are
      there.
    * Tables with deletion vectors, column mapping or another feature that is not known here are refused.
    * In a partition column, Delta has no empty text: it is null.

    :param uri: an absolute path that all machines share, or a URI such as `s3://bucket/path`
    :param conn_id: the Airflow connection of the database that holds the positions
    :param storage_conn_id: the Airflow connection of the object store, of type `aws` or `generic`; without one, the environment of the
        worker and of Spark's executors says how to log in
    :param partition_by: columns of a table that is created
    :param columns: of a table that is created, in Spark's DDL; for a DataFrame transform, which does not say them before it runs.
        Those that say where a row came from are added
    :param sort_by: columns by which the rows of a file are in order
    :param properties: of a table that is created, such as `{"delta.logRetentionDuration": "interval 60 days"}`
    :param file_bytes: the size at which a data file is complete
    """

    uri: str
    conn_id: str | None = None
    storage_conn_id: str | None = None
    partition_by: Sequence[str] = ()
    columns: str | None = None
    sort_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    file_bytes: int = 128 << 20
    storage: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name for messages and the history."""
        return SCHEME + (self.uri if "://" in self.uri else f"file://{self.uri}").rstrip("/")

    @property
    def replaces_rows(self) -> bool:
        return False

    @property
    def conn_ids(self) -> tuple[str, ...]:
        return () if self.storage_conn_id is None else (self.storage_conn_id,)

    def connected(self, connections: Mapping[str, Mapping[str, Any]]) -> DeltaTable:
        """Return the sink with the options of its object store."""
        from airflow_kafka_offsets.sinks.lake.storage import storage_options

        if self.storage_conn_id is None:
            return self
        return replace(self, storage=storage_options(self.storage_conn_id, connections[self.storage_conn_id]))

    def storage_options(self) -> Mapping[str, Any]:
        return self.storage

    def snapshot(self) -> DeltaSnapshot | None:
        """Return the table as it is now; None where there is none."""
        from airflow_kafka_offsets.sinks.delta.snapshot import DeltaSnapshot

        return DeltaSnapshot.read(self.name, self.uri, self.storage)

    def prepare(self, engine: Engine, columns: pa.Schema | None, *, may_grow: bool = False) -> TargetColumns:
        """Check that rows can be written; create the table where it is missing. See `Sink.prepare`."""
        from airflow_kafka_offsets.sinks.delta.columns import check_partitions
        from airflow_kafka_offsets.sinks.delta.creation import check_parameters, create
        from airflow_kafka_offsets.sinks.lake.columns import match
        from airflow_kafka_offsets.staging.rows import TargetColumns

        declared = check_parameters(self)
        snapshot = self.snapshot()
        if snapshot is None:
            wanted = declared or columns
            if wanted is None:
                return TargetColumns(self.name, None)
            snapshot = create(self, wanted)
        snapshot.check()
        check_partitions(self.name, snapshot, self.partition_by)
        if columns is not None:
            match(self.name, snapshot.columns, snapshot.required, columns, may_grow=may_grow)
        required = tuple(name for name in snapshot.required if name != BATCH_ID)
        return TargetColumns(self.name, tuple(snapshot.columns.names), required, may_grow)

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, batch_id: int) -> None:
        """Raise if the state tables are older than the table, or if the table was restored to a state before the last load.

        :raises TargetError: rows of the group were taken away by a RESTORE
        :raises OlderLedgerError: there are rows of batches that the state tables do not know
        """
        import sqlalchemy as sa

        from airflow_kafka_offsets.core.history import REWIND_KINDS
        from airflow_kafka_offsets.sinks.delta.restores import refuse_restored

        snapshot = self.snapshot()
        if snapshot is None:
            return
        row = conn.execute(
            sa.select(batches.c.kind, batches.c.consumer_group).where(batches.c.batch_id == batch_id)
        ).one_or_none()
        if row is not None and row.kind == "load":
            rewinds = batches.c.kind.in_(REWIND_KINDS) & (batches.c.consumer_group == row.consumer_group)
            last_rewind = conn.scalar(sa.select(sa.func.max(batches.c.committed_at)).where(rewinds))
            refuse_restored(snapshot, row.consumer_group, last_rewind)
        later = snapshot.batch_ids(batch_id)
        # Rows of this batch may be its own, once it began to be published.
        is_other = sa.or_(batches.c.batch_id != batch_id, batches.c.publishing_at.is_not(None))
        unknown = later.difference(
            conn.scalars(sa.select(batches.c.batch_id).where(is_other, batches.c.batch_id >= batch_id)) if later else ()
        )
        if unknown:
            raise OlderLedgerError(
                f"Table {self.name!r} holds rows of batch {min(unknown)}, which the state tables do not know; the next batch would be "
                f"{batch_id}. The state tables were restored from an older backup than the table, or created again. Nothing was "
                f"written: their records would be loaded again. Restore both to the same moment, or delete the rows with "
                f"{BATCH_ID} >= {batch_id}, which this load then brings back."
            )

    def writer(self, engine: Engine, columns: pa.Schema | None, output: Output) -> DeltaWriter:
        """Return what writes data files in Spark's tasks.

        :raises ConfigurationError: there is no table, and the columns are not known
        """
        from airflow_kafka_offsets.sinks.lake.staged import writer_fields
        from airflow_kafka_offsets.writers.delta_writer import DeltaWriter

        snapshot = self.snapshot()
        if snapshot is None:
            raise ConfigurationError(
                f"There is no table {self.name!r}, and it cannot be created: what the transform returns is known only when it ran. "
                'Declare the columns, as in DeltaTable(…, columns="id BIGINT, name STRING"), or create the table'
            )
        return DeltaWriter(**writer_fields(self, snapshot, columns, output))

    def open(self, conn: Connection, output: Output) -> AbstractContextManager[LakeTarget[DeltaSnapshot]]:
        """Open the table. Its commit is made at the end of the block."""
        from airflow_kafka_offsets.sinks.delta.target import DeltaTarget

        return DeltaTarget.opened(self, self.snapshot(), conn, output)

    def is_published(self, engine: Engine, output: Output) -> bool:
        """Return whether the table has the rows of a batch."""
        snapshot = self.snapshot()
        return snapshot is not None and snapshot.last_number(output.series) >= output.batch_id

    def retire(self, engine: Engine, output: Output) -> list[Removed]:
        """Take the rows of an abandoned batch back, and its number, so that nobody else publishes it."""
        from airflow_kafka_offsets.sinks.delta.target import DeltaTarget

        return DeltaTarget(self, self.snapshot(), None, output).retire()

    def removable(self, conn: Connection, replaced: ReplacedOffsets) -> list[Removed]:
        """Return what `DeltaTarget.remove` would delete now."""
        from airflow_kafka_offsets.sinks.lake.removal import plan_removal
        from airflow_kafka_offsets.sinks.lake.replaced import ReplacedRows, as_removed

        snapshot = self.snapshot()
        if snapshot is None:
            return []
        return as_removed(plan_removal(snapshot, ReplacedRows.read(conn, self.name, replaced)).counts)

    def rows(self, conn: Connection) -> LakeRows:
        """Return the rows as `verify` reads them."""
        from airflow_kafka_offsets.sinks.lake.rows import LakeRows

        return LakeRows(conn, self.name, self.snapshot())
