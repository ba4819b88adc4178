"""The sink for tables of Delta Lake. DAG files import it: what is heavy is imported where it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from airflow_kafka_offsets.sinks.lake.sink import DirectorySink, LakeSink
from airflow_kafka_offsets.sinks.sink import Connections

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.sinks.delta.format import ConnectedDeltaTable


@dataclass(frozen=True)
class DeltaTable(DirectorySink, LakeSink):
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

    As for `DirectorySink`: `uri`, `conn_id`, `storage_conn_id`, `partition_by`, `columns`, `sort_by`, `file_bytes`,
    `storage`.

    :param properties: of a table that is created, such as `{"delta.logRetentionDuration": "interval 60 days"}`
        (templated)
    """

    scheme: ClassVar[str] = "delta+"
    template_fields: ClassVar[tuple[str, ...]] = (*DirectorySink.template_fields, "properties")

    properties: Mapping[str, str] = field(default_factory=dict, hash=False)

    def connect(self, engine: Engine, connections: Connections | None = None) -> ConnectedDeltaTable:
        from airflow_kafka_offsets.sinks.delta.format import ConnectedDeltaTable

        return ConnectedDeltaTable(self.connected(connections))
