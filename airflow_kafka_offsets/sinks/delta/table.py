"""The sink for tables of Delta Lake. DAG files import it: what is heavy is imported where it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.core.libraries import require_library
from airflow_kafka_offsets.core.shared_docs import complete_docs
from airflow_kafka_offsets.sinks.lake.sink import DirectorySink, LakeSink
from airflow_kafka_offsets.sinks.sink import Connections

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.sinks.delta.format import ConnectedDeltaTable


@complete_docs(DirectorySink)
@dataclass(frozen=True)
class DeltaTable(DirectorySink, LakeSink):
    """Append rows to a table of Delta Lake. Columns are matched by name; a missing table is created from the rows'
    columns.

    Spark's tasks write the data files. One Delta commit adds them, with the batch id as an application transaction: the
    batch is in the table exactly once, also after a crash or a retry. Then the positions move, in their database.

    * Other writers may append, delete, OPTIMIZE and VACUUM at any time; the retention of VACUUM must be longer than a
      load takes.
    * After a RESTORE to a version before the group's last load, the next load is refused: rows before the positions are
      gone.
    * Tables with deletion vectors, column mapping or another unsupported feature are refused.
    * In a partition column, Delta stores an empty text as null.

    As for `DirectorySink`: `uri`, `conn_id`, `storage_conn_id`, `partition_by`, `columns`, `sort_by`, `file_bytes`.

    :param properties: the properties of a created table, such as `{"delta.logRetentionDuration": "interval 60 days"}`
        (templated)
    """

    scheme: ClassVar[str] = "delta+"
    template_fields: ClassVar[tuple[str, ...]] = (*DirectorySink.template_fields, "properties")

    properties: Mapping[str, str] = field(default_factory=dict, hash=False)

    def connect(self, engine: Engine, connections: Connections | None = None) -> ConnectedDeltaTable:
        require_library("DeltaTable", "deltalake", "delta")
        from airflow_kafka_offsets.sinks.delta.format import ConnectedDeltaTable

        return ConnectedDeltaTable(self.connected(connections))
