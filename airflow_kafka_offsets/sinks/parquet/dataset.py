"""The sink for directories of Parquet files. DAG files import it: what is heavy is imported where it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.sinks.lake.table_sink import FileTableSink

if TYPE_CHECKING:
    import pyarrow as pa
    import sqlalchemy as sa
    from sqlalchemy.engine import Connection

    from airflow_kafka_offsets.sinks.parquet.snapshot import ParquetSnapshot
    from airflow_kafka_offsets.sinks.parquet.target import ParquetTarget
    from airflow_kafka_offsets.sinks.table import Output


@dataclass(frozen=True)
class ParquetDataset(FileTableSink):
    """Append rows to a directory of Parquet files. Columns are matched by name; a missing directory is created.

    Spark's tasks write the data files of an attempt into a directory of its own, `attempt=<name>`, with a directory for
    each value of a partition column in it, as Hive has them. One manifest below `_manifests` names them, and is written
    only if it is not there: the batch is in the dataset once, whatever dies or is repeated. Then the positions move, in
    their database.

    * `committed_files` and `read_committed` read what is committed, and nothing else.
    * Who merely lists the files also sees those of attempts that failed, and rows that a replay or a rewind replaced. A
      directory whose files are committed has the marker `_SUCCESS`, soon after the commit; it is taken away when none
      of its files counts any more.
    * Only this package may write there: files that no manifest names are none of the dataset's.

    As for `FileTableSink`: `uri`, `conn_id`, `storage_conn_id`, `partition_by`, `columns`, `sort_by`, `file_bytes`,
    `storage`.
    """

    scheme: ClassVar[str] = "parquet+"
    format: ClassVar[str] = "parquet"

    def snapshot(self) -> ParquetSnapshot | None:
        """Return the dataset as it is now; None where there is none."""
        from airflow_kafka_offsets.sinks.parquet.snapshot import ParquetSnapshot

        return ParquetSnapshot.read(self.name, self.uri, self.storage)

    def create(self, columns: pa.Schema) -> ParquetSnapshot:
        """Create the dataset; see `FileTableSink.create`."""
        from airflow_kafka_offsets.sinks.lake.creation import created_columns
        from airflow_kafka_offsets.sinks.parquet.snapshot import ParquetSnapshot

        return ParquetSnapshot.create(
            self.name, self.uri, self.storage, created_columns(self, columns), self.partition_by
        )

    def check_history(self, conn: Connection, batches: sa.Table, batch_id: int, snapshot: ParquetSnapshot) -> None:
        """Nobody takes a manifest back."""

    def target(self, conn: Connection | None, output: Output) -> ParquetTarget:
        """Return the dataset as a batch is published in it."""
        from airflow_kafka_offsets.sinks.parquet.target import ParquetTarget

        return ParquetTarget(self, self.snapshot(), conn, output)
