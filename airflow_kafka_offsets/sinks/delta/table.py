"""The sink for tables of Delta Lake. DAG files import it: what is heavy is imported where it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.sinks.lake.table_sink import FileTableSink

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa
    from sqlalchemy.engine import Connection

    from airflow_kafka_offsets.sinks.delta.snapshot import DeltaSnapshot
    from airflow_kafka_offsets.sinks.delta.target import DeltaTarget
    from airflow_kafka_offsets.sinks.table import Output


@dataclass(frozen=True)
class DeltaTable(FileTableSink):
    """Append rows to a table of Delta Lake. Columns are matched by name; a missing table is created from the rows'
    columns.

    Spark's tasks write the data files. One commit of Delta adds them, with the number of the batch as an application
    transaction: the batch is in the table once, whatever dies or is repeated. Then the positions move, in their
    database.

    * Others may append, delete, OPTIMIZE and VACUUM at any time, but VACUUM with a retention that is shorter than a
      load takes.
    * After a RESTORE to a version before the group's last load, the next load is refused: rows are gone that the
      positions say are there.
    * Tables with deletion vectors, column mapping or another feature that is not known here are refused.
    * In a partition column, Delta has no empty text: it is null.

    As for `FileTableSink`: `uri`, `conn_id`, `storage_conn_id`, `partition_by`, `columns`, `sort_by`, `file_bytes`,
    `storage`.

    :param properties: of a table that is created, such as `{"delta.logRetentionDuration": "interval 60 days"}`
        (templated)
    """

    scheme: ClassVar[str] = "delta+"
    format: ClassVar[str] = "delta"
    template_fields: ClassVar[tuple[str, ...]] = (*FileTableSink.template_fields, "properties")

    properties: Mapping[str, str] = field(default_factory=dict, hash=False)

    def snapshot(self) -> DeltaSnapshot | None:
        """Return the table as it is now; None where there is none."""
        from airflow_kafka_offsets.sinks.delta.snapshot import DeltaSnapshot

        return DeltaSnapshot.read(self.name, self.uri, self.storage)

    def create(self, columns: pa.Schema) -> DeltaSnapshot:
        """Create the table; see `FileTableSink.create`."""
        from airflow_kafka_offsets.sinks.delta.creation import create

        return create(self, columns)

    def target(self, conn: Connection | None, output: Output) -> DeltaTarget:
        """Return the table as a batch is published in it."""
        from airflow_kafka_offsets.sinks.delta.target import DeltaTarget

        return DeltaTarget(self, self.snapshot(), conn, output)

    def check_history(self, conn: Connection, batches: sa.Table, batch_id: int, snapshot: DeltaSnapshot) -> None:
        """Check that no RESTORE took away what a load published.

        :raises TargetError: rows of the group are gone
        """
        import sqlalchemy as sa

        from airflow_kafka_offsets.core.history import REWIND_KINDS
        from airflow_kafka_offsets.sinks.delta.restores import refuse_restored

        of_batch = sa.select(batches.c.kind, batches.c.consumer_group).where(batches.c.batch_id == batch_id)
        row = conn.execute(of_batch).one_or_none()
        # A replay may be what brings the rows back.
        if row is None or row.kind != "load":
            return
        rewinds = batches.c.kind.in_(REWIND_KINDS) & (batches.c.consumer_group == row.consumer_group)
        last_rewind = conn.scalar(sa.select(sa.func.max(batches.c.committed_at)).where(rewinds))
        refuse_restored(snapshot, row.consumer_group, last_rewind)
