"""What the sinks of lake tables share. DAG files import it: heavy modules are imported where they are used."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from airflow_kafka_offsets.sinks.sink import Connections, Sink

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.sinks.lake.table import LakeTable
    from airflow_kafka_offsets.sinks.lake.table_format import TableFormat


class LakeSink(Sink):
    """A table whose data files Spark's tasks write, and whose commit adds them."""

    __slots__ = ()

    @property
    def writes_files(self) -> bool:
        return True

    @property
    def upsert_key(self) -> tuple[str, ...]:
        """The columns by which rows are replaced; without them all rows are appended."""
        return ()

    def connect(self, engine: Engine, connections: Connections | None = None) -> LakeTable:
        from airflow_kafka_offsets.sinks.lake.table import LakeTable

        return LakeTable(self, self.table_format(engine, connections or {}))

    @abstractmethod
    def table_format(self, engine: Engine, connections: Connections) -> TableFormat:
        """Return the table by its format; see `Sink.connect`."""
