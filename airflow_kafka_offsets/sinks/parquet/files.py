"""The sink for plain Parquet files. DAG files import it: heavy modules are imported where they are used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.sinks.lake.sink import DirectorySink
from airflow_kafka_offsets.sinks.sink import Connections

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.sinks.parquet.table import ParquetTable


@dataclass(frozen=True)
class ParquetFiles(DirectorySink):
    """Write rows into plain Parquet files, for readers without a table format: Athena and Hive, Snowpipe, loads of
    BigQuery and Redshift, DuckDB.

    The files of a batch are `<column>=<value>/…/<batch>-<number>.parquet`, with a directory for each partition column.
    Spark's tasks write them below `_staging`, which readers leave out, as all names that begin with an underscore. The
    commit copies each file to its name, in object stores on the server, and then the positions move, in their database.

    * A file appears once, and whole; its name never changes. A loader that remembers names loads each file once.
    * A reader that lists the files while a batch is being published may see some of them.
    * If the process dies in between, the next attempt copies the same files to the same names. Only if the staged files
      were lost, the batch is staged again: then its published files are replaced, and those without a new one removed.
    * A rewind or a replay with `replace` removes the files of whole batches. Where only some offsets of a batch are to
      be replaced, it is refused.
    * The commit lists all files, a thousand in a request of an object store.
    * Each state database needs a separate directory.

    As for `DirectorySink`: `uri`, `conn_id`, `storage_conn_id`, `partition_by`, `columns`, `sort_by`, `file_bytes`,
    `storage`.
    """

    scheme: ClassVar[str] = "parquet+"

    def connect(self, engine: Engine, connections: Connections | None = None) -> ParquetTable:
        from airflow_kafka_offsets.sinks.parquet.table import ParquetTable

        return ParquetTable(self.connected(connections))
