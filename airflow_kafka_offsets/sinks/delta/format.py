"""Tables of Delta Lake at a URI; a `TableFormat`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import deltalake
import pyarrow as pa
from deltalake.exceptions import DeltaError, TableNotFoundError
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.delta.columns import delta_schema, skipping_columns
from airflow_kafka_offsets.sinks.delta.snapshot import DeltaSnapshot
from airflow_kafka_offsets.sinks.lake.creation import check_parameters, created_columns
from airflow_kafka_offsets.sinks.lake.directory_sink import DirectorySink
from airflow_kafka_offsets.sinks.lake.fields import fields_of
from airflow_kafka_offsets.sinks.lake.names import dataset_name
from airflow_kafka_offsets.sinks.lake.table_format import Snapshot
from airflow_kafka_offsets.sinks.table import Dataset
from airflow_kafka_offsets.writers.object_files import ObjectFiles, is_local, local_path


@dataclass(frozen=True)
class DeltaFormat:
    """A Delta table; see `TableFormat`.

    :param sink: with the options of its object store
    :param properties: of a table that is created
    """

    kind: ClassVar[str] = "delta"

    sink: DirectorySink
    properties: Mapping[str, str]

    @property
    def _location(self) -> str:
        return local_path(self.sink.uri) if is_local(self.sink.uri) else self.sink.uri

    def check(self) -> pa.Schema | None:
        return check_parameters(self.sink)

    def snapshot(self, conn: Connection | None = None, *, lock: bool = False) -> DeltaSnapshot | None:
        storage = self.sink.storage
        try:
            table = deltalake.DeltaTable(self._location, storage_options=dict(storage) or None)
        except TableNotFoundError:
            return None
        return DeltaSnapshot(self.sink, table, ObjectFiles(self.sink.uri, storage))

    def create(self, columns: pa.Schema) -> DeltaSnapshot:
        sink, failure = self.sink, None
        schema, properties = created_columns(sink, columns), dict(self.properties)
        if "delta.dataSkippingNumIndexedCols" not in properties and (chosen := skipping_columns(schema)):
            properties.setdefault("delta.dataSkippingStatsColumns", chosen)
        try:
            deltalake.DeltaTable.create(
                self._location,
                delta_schema(schema),
                mode="ignore",
                partition_by=list(sink.partition_by),
                configuration=properties,
                storage_options=dict(sink.storage) or None,
            )
        except (DeltaError, OSError) as error:  # perhaps because another process was first
            failure = error
        snapshot = self.snapshot()
        if snapshot is None:
            raise TargetError(f"Table {sink.name!r} does not exist, and cannot be created: {failure}") from failure
        return snapshot

    def storage_options(self) -> Mapping[str, str]:
        return self.sink.storage

    def dataset(self, snapshot: Snapshot | None) -> Dataset:
        return Dataset(*dataset_name(self.sink.uri), None if snapshot is None else fields_of(snapshot.columns))
