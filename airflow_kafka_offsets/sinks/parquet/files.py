"""The sink for plain Parquet files. DAG files import it: heavy modules are imported where they are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.core.libraries import require_library
from airflow_kafka_offsets.core.shared_docs import complete_docs
from airflow_kafka_offsets.sinks.lake.sink import DirectorySink
from airflow_kafka_offsets.sinks.sink import Connections

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.sinks.parquet.table import ParquetTable


@complete_docs(DirectorySink)
@dataclass(frozen=True)
class ParquetFiles(DirectorySink):
    """Write rows into plain Parquet files, for readers without a table format: Athena and Hive, Snowpipe, loads of
    BigQuery and Redshift, DuckDB.

    The files of a batch are `<column>=<value>/…/<batch>-<number>.parquet`, with a directory for each partition column.
    Spark's tasks write them below `_staging`, with names that do not end with `.parquet`: readers skip the directory or
    these names. The commit copies each file to its final name (a server-side copy in object stores), and then the
    positions move, in their database.

    * A file appears once, complete, and its name never changes. A loader that remembers names loads each file once.
    * A reader that lists the files while a batch is being published may see only some of its files.
    * If the process dies in between, the next attempt copies the same files to the same names. If the staged files were
      lost, the batch is staged again: its published files are replaced, or removed if there is no new one.
    * A rewind or a replay with `replace` removes the files of whole batches, and is refused for parts of a batch.
    * The commit lists all files: one request to the object store for a thousand.
    * Each state database needs a separate directory.

    As for `DirectorySink`: `uri`, `conn_id`, `storage_conn_id`, `partition_by`, `columns`, `sort_by`, `file_bytes`.
    """

    scheme: ClassVar[str] = "parquet+"

    def connect(self, engine: Engine, connections: Connections | None = None) -> ParquetTable:
        require_library("ParquetFiles", "obstore", "parquet")
        from airflow_kafka_offsets.sinks.parquet.table import ParquetTable

        return ParquetTable(self.connected(connections))
