"""A lake table with its connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.sinks.table import Dataset, NotPublished, Output, PublicationState, Published, Table, Target
from airflow_kafka_offsets.sinks.target_rows import Removed, TargetRows
from airflow_kafka_offsets.staging.rows import TargetColumns
from airflow_kafka_offsets.writers.row_writer import RowWriter


@dataclass(frozen=True)
class ConnectedLakeTable(Table):
    """A lake table; see `Table`.

    :param sink: with what its connections hold
    """

    sink: Any
    engine: Engine

    def prepare(self, columns: pa.Schema | None, *, may_grow: bool = False) -> TargetColumns:
        return self.sink.prepare(self.engine, columns, may_grow=may_grow)  # type: ignore[no-any-return]

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, batch_id: int) -> None:
        self.sink.refuse_unknown_rows(conn, batches, batch_id)

    def writer(self, columns: pa.Schema | None, output: Output) -> RowWriter:
        return self.sink.writer(self.engine, columns, output)  # type: ignore[no-any-return]

    def storage_options(self) -> Mapping[str, Any]:
        return self.sink.storage_options()  # type: ignore[no-any-return]

    def publish(self, conn: Connection, output: Output) -> AbstractContextManager[Target]:
        return self.sink.open(conn, output)  # type: ignore[no-any-return]

    def state(self, output: Output) -> PublicationState:
        return Published(0) if self.sink.is_published(self.engine, output) else NotPublished()

    def retire(self, output: Output) -> list[Removed]:
        return self.sink.retire(self.engine, output)  # type: ignore[no-any-return]

    def rows(self, conn: Connection) -> TargetRows:
        return self.sink.rows(conn)  # type: ignore[no-any-return]

    def remove_leftovers(self, batch_id: int, before: datetime) -> int:
        return self.sink.remove_leftovers(self.engine, batch_id, before)  # type: ignore[no-any-return]

    def datasets(self) -> Sequence[Dataset]:
        return self.sink.datasets(self.engine)  # type: ignore[no-any-return]
