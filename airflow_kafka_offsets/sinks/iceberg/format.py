"""Iceberg tables in a catalog; a `TableFormat`.

The catalog is in the database of the positions, where it commits over the connection of their transaction, or any other
one that pyiceberg knows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import sqlalchemy as sa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.database.errors import database_message, is_outage
from airflow_kafka_offsets.database.transactions import transact
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.formats.columns import parse_ddl
from airflow_kafka_offsets.sinks.iceberg.catalogs import (
    PositionsCatalog,
    catalog_properties,
    create_catalog,
    find_table,
    has_catalog,
    open_catalog,
    storage_of,
)
from airflow_kafka_offsets.sinks.iceberg.creation import ORIGIN, check_terms, create_table
from airflow_kafka_offsets.sinks.iceberg.snapshot import IcebergSnapshot
from airflow_kafka_offsets.sinks.lake.names import dataset_name
from airflow_kafka_offsets.sinks.lake.storage import pyiceberg_properties
from airflow_kafka_offsets.sinks.lake.table_format import Snapshot
from airflow_kafka_offsets.sinks.sink import Connections
from airflow_kafka_offsets.sinks.table import Dataset

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable


@dataclass(frozen=True)
class IcebergFormat:
    """An Iceberg table; see `TableFormat`.

    :param engine: of the database of the positions
    :param properties: of the catalog and its files; hold secrets
    """

    kind: ClassVar[str] = "iceberg"

    sink: IcebergTable
    engine: Engine
    properties: Mapping[str, Any]

    @classmethod
    def of(cls, sink: IcebergTable, engine: Engine, connections: Connections) -> IcebergFormat:
        """Return the table with what its connections hold."""
        properties: dict[str, Any] = {"warehouse": sink.warehouse} if sink.warehouse else {}
        if isinstance(sink.catalog, Mapping):
            properties |= sink.catalog
        if sink.catalog_conn_id is not None:
            properties |= catalog_properties(sink.catalog_conn_id, connections)
        if sink.storage_conn_id is not None:
            properties |= pyiceberg_properties(sink.storage_conn_id, connections)
        return cls(sink, engine, properties)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sink!r})"

    def check(self) -> pa.Schema | None:
        sink = self.sink
        identifier = sink.identifier
        if not isinstance(identifier, str) or not all(identifier.split(".")) or "." not in identifier:
            raise ConfigurationError(
                f"IcebergTable needs namespace and name, such as 'shop.orders'; got {identifier!r}"
            )
        for what in ("partition_by", "sort_by"):
            value = getattr(sink, what)
            if isinstance(value, str) or not all(isinstance(term, str) for term in value):
                raise ConfigurationError(f"{what} must be several texts, such as ('day(created)',); got {value!r}")
        check_terms(sink.partition_by)
        if sink.commits_externally:
            catalog = self._catalog()
            if isinstance(catalog, SqlCatalog) and _is_same_file(catalog.engine, self.engine):
                raise ConfigurationError(
                    f"The catalog of {sink.name} is in the SQLite file of the positions, which takes one writer at a "
                    "time: leave catalog= out, for one commit of both"
                )
        if sink.columns is None:
            return None
        declared = parse_ddl(sink.columns, binary=True)
        return pa.schema([*declared, *(each for each in ORIGIN if each.name not in declared.names)])

    def snapshot(self, conn: Connection | None = None, *, lock: bool = False) -> IcebergSnapshot | None:
        if self.sink.commits_externally:
            return self._snapshot(self._load)
        with self.engine.connect() if conn is None else nullcontext(conn) as over:
            return self._snapshot(partial(self._load_over, over, lock=lock))

    def _snapshot(self, load: Callable[[], Table | None]) -> IcebergSnapshot | None:
        table, sink = load(), self.sink
        return None if table is None else IcebergSnapshot(sink.name, table, load, is_external=sink.commits_externally)

    def _load_over(self, conn: Connection, *, lock: bool) -> Table | None:
        if not has_catalog(conn):
            return None
        catalog = PositionsCatalog(self.sink.catalog_name, conn, **self.properties)
        if lock:
            catalog.lock(self.sink.identifier)
        return find_table(catalog, self.sink.identifier)

    def _load(self) -> Table | None:
        try:
            return find_table(self._catalog(), self.sink.identifier)
        except Exception as error:
            reason = f"{type(error).__name__}: {shortened(str(error))}"
        # Outside of the handler: its error may hold secrets.
        raise TargetError(f"{self.sink.name} cannot be read: {reason}. Nothing was written")

    def _catalog(self) -> Catalog:
        properties = tuple(sorted((name, str(value)) for name, value in self.properties.items()))
        return _opened_catalog(self.sink.catalog_name, properties)

    def create(self, columns: pa.Schema) -> IcebergSnapshot:
        if self.sink.commits_externally:
            self._create_externally(columns)
        else:
            self._create_here(columns)
        snapshot = self.snapshot()
        if snapshot is None:
            raise TargetError(f"{self.sink.name} disappeared; nothing was written")
        return snapshot

    def _create_externally(self, columns: pa.Schema) -> None:
        try:
            create_table(self._catalog(), self.sink, columns)
        except IntegrityError:
            # The catalog is a database, in which another process created the namespace at the same moment.
            create_table(self._catalog(), self.sink, columns)

    def _create_here(self, columns: pa.Schema) -> None:
        sink = self.sink
        if sink.warehouse is None:
            raise ConfigurationError(
                f"{sink.name} does not exist, and is created where warehouse= says: a directory that all machines "
                "share, or a URI such as s3://bucket/warehouse"
            )

        def work(conn: Connection) -> None:
            create_catalog(conn)
            create_table(PositionsCatalog(sink.catalog_name, conn, **self.properties), sink, columns)

        try:
            transact(self.engine, work)
        except sa.exc.DBAPIError as error:
            if is_outage(error):
                raise
            if self.snapshot() is None:  # otherwise another process created it at the same moment
                raise TargetError(f"{sink.name} cannot be created: {database_message(error)}") from error

    def storage_options(self) -> dict[str, Any]:
        # A catalog may lend credentials for the table.
        table = self._load() if self.sink.commits_externally else None
        return storage_of(self.properties if table is None else table.io.properties)

    def dataset(self, snapshot: Snapshot | None) -> Dataset | None:
        if not isinstance(snapshot, IcebergSnapshot):
            return None
        fields = [(field.name, str(field.field_type)) for field in snapshot.table.schema().fields]
        symlink = (f"iceberg://{self.sink.catalog_name}", str(self.sink.identifier))
        return Dataset(*dataset_name(snapshot.table.location()), fields, symlink)


def _is_same_file(one: Engine, other: Engine) -> bool:
    """Return whether two engines are of one SQLite file."""
    paths = [str(Path(each.url.database or "").absolute()) for each in (one, other) if each.dialect.name == "sqlite"]
    return len(paths) == 2 and paths[0] == paths[1]


@lru_cache(maxsize=16)
def _opened_catalog(name: str, properties: tuple[tuple[str, str], ...]) -> Catalog:
    return open_catalog(name, dict(properties))
