"""The sink of an Iceberg table whose catalog is in the database of the positions: rows and positions are committed in
one transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.sinks.sink import Connections, Sink

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa
    import sqlalchemy as sa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from sqlalchemy.engine import Connection, Engine

    from airflow_kafka_offsets.sinks.iceberg.target import IcebergTarget
    from airflow_kafka_offsets.sinks.lake.connected import ConnectedLakeTable
    from airflow_kafka_offsets.sinks.lake.rows import LakeRows
    from airflow_kafka_offsets.sinks.table import Dataset, Output, Target
    from airflow_kafka_offsets.staging.rows import TargetColumns
    from airflow_kafka_offsets.writers.lake_writer import LakeWriter

Properties = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class IcebergSink(Sink):
    """What sinks of Iceberg tables share; as it is, with the catalog in the database of the positions. See
    `IcebergTable`.
    """

    template_fields: ClassVar[tuple[str, ...]] = (
        "identifier",
        "catalog",
        "conn_id",
        "catalog_conn_id",
        "catalog_name",
        "warehouse",
        "storage_conn_id",
        "partition_by",
        "sort_by",
        "properties",
        "columns",
        "upsert_key",
    )

    identifier: str = field(kw_only=False)
    catalog: Properties | str | None = field(default=None, repr=False, kw_only=False)
    conn_id: str | None = None
    catalog_conn_id: str | None = None
    catalog_name: str = "default"
    warehouse: str | None = None
    storage_conn_id: str | None = None
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    properties: Properties = field(default_factory=dict)
    columns: str | None = None
    upsert_key: tuple[str, ...] = ()
    connections: Mapping[str, Properties] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name for messages and the history."""
        return f"iceberg://{self.catalog_name}/{self.identifier}"

    @property
    def replaces_rows(self) -> bool:
        """Whether a record that is written again replaces its row."""
        return bool(self.upsert_key)

    @property
    def conn_ids(self) -> tuple[str, ...]:
        """The connections of the catalog and the storage."""
        return tuple(conn_id for conn_id in (self.catalog_conn_id, self.storage_conn_id) if conn_id is not None)

    @property
    def writes_files(self) -> bool:
        return True

    def connect(self, engine: Engine, connections: Connections | None = None) -> ConnectedLakeTable:
        """Return the table with its catalog and its storage."""
        from airflow_kafka_offsets.sinks.lake.connected import ConnectedLakeTable

        return ConnectedLakeTable(self.connected(connections) if connections else self, engine)

    def uris(self, engine: Engine) -> list[str]:
        from urllib.parse import quote

        return [f"iceberg://{quote(self.catalog_name, safe='')}/{quote(self.identifier, safe='.').replace('.', '/')}"]

    def datasets(self, engine: Engine) -> list[Dataset]:
        """Return the table as OpenLineage names it: by its location, which the catalog knows."""
        from airflow_kafka_offsets.sinks.lake.names import dataset_name
        from airflow_kafka_offsets.sinks.table import Dataset

        if (table := self.find(engine)) is None:
            return []
        fields = [(field.name, str(field.field_type)) for field in table.schema().fields]
        symlink = (f"iceberg://{self.catalog_name}", str(self.identifier))
        return [Dataset(*dataset_name(table.location()), fields, symlink)]

    def connected(self, connections: Mapping[str, Properties]) -> IcebergSink:
        """Return the sink with what its connections hold."""
        return replace(self, connections={conn_id: connections[conn_id] for conn_id in self.conn_ids})

    def storage_options(self) -> Properties:
        """Return what Spark's tasks need to reach the files."""
        from airflow_kafka_offsets.sinks.iceberg.catalogs import storage_of

        return storage_of(self.catalog_properties())

    def catalog_properties(self) -> dict[str, Any]:
        """Return what pyiceberg needs to open the catalog and its files; holds secrets."""
        from airflow_kafka_offsets.sinks.iceberg.connections import catalog_properties, storage_properties

        properties: dict[str, Any] = {"warehouse": self.warehouse} if self.warehouse else {}
        if isinstance(self.catalog, Mapping):
            properties |= self.catalog
        if self.catalog_conn_id is not None:
            properties |= catalog_properties(self.catalog_conn_id, self.connections)
        if self.storage_conn_id is not None:
            properties |= storage_properties(self.storage_conn_id, self.connections)
        return properties

    def prepare(self, engine: Engine, columns: pa.Schema | None, *, may_grow: bool = False) -> TargetColumns:
        """Check, before Spark starts, that the rows can be written; create the table where it is missing.

        :param columns: the columns of the rows, or None where a transform decides them
        :param may_grow: whether the commit adds columns that the table lacks
        :raises TargetError: the table does not fit, or cannot be created
        :raises ConfigurationError: a parameter cannot be used, or `upsert_key` does not fit the rows
        """
        from airflow_kafka_offsets.sinks import upsert_key
        from airflow_kafka_offsets.sinks.iceberg.shapes import arrow_columns, check_names, required_columns, written
        from airflow_kafka_offsets.sinks.lake.columns import match
        from airflow_kafka_offsets.staging.rows import TargetColumns

        self._check()
        if self.upsert_key:
            upsert_key.check_names(self.upsert_key, columns)
        created = self._declared() or columns
        table = self.find(engine)
        if table is None:
            if created is None:
                return TargetColumns(self.name, None)
            table = self.create(engine, created)
        schema = table.schema()
        required = required_columns(schema, self.upsert_key)
        if columns is not None:
            if may_grow:
                check_names(self.name, schema, columns)
            match(self.name, arrow_columns(schema), required, written(schema, columns), may_grow=may_grow)
        # The tasks write final files: columns that are not known before they run cannot be added.
        return TargetColumns(self.name, tuple(schema.column_names), tuple(required), may_grow and columns is not None)

    def refuse_unknown_rows(self, conn: Connection, batches: sa.Table, batch_id: int) -> None:
        """Raise if the state tables are older than the target; see `Table.refuse_unknown_rows`."""
        from airflow_kafka_offsets.sinks.iceberg.unknown_rows import refuse_unknown_rows

        table = self.find_over(conn)
        if table is not None:
            refuse_unknown_rows(conn, self.name, table, batches, batch_id)

    def writer(self, engine: Engine, columns: pa.Schema | None, output: Output) -> LakeWriter:
        """Return the writer of data files.

        :raises ConfigurationError: the columns are not known, and there is no table that has them
        :raises TargetError: somebody set the table back
        """
        from dataclasses import asdict

        import pyarrow as pa

        from airflow_kafka_offsets.sinks.iceberg.publication import refuse_rollback
        from airflow_kafka_offsets.sinks.iceberg.shapes import arrow_columns, shape_of
        from airflow_kafka_offsets.staging.rows import schema_text
        from airflow_kafka_offsets.writers.lake_writer import LakeWriter

        table = self.find(engine)
        if table is None and columns is None:
            raise ConfigurationError(
                f"{self.name} does not exist, and its columns are not known before Spark starts, as a transform of "
                "DataFrames decides them: declare them, as in IcebergTable(…, columns='id BIGINT, name STRING'), or "
                "create the table"
            )
        if table is None:
            raise TargetError(f"{self.name} disappeared; nothing was written")
        refuse_rollback(table, output.group_id)
        shape = shape_of(table, columns)
        if columns is None:
            columns = pa.schema([each for each in arrow_columns(table.schema()) if each.name != BATCH_ID])
        return LakeWriter(
            "iceberg", self.name, schema_text(columns), asdict(shape), output.batch_id, output.attempt, self.upsert_key
        )

    def open(self, conn: Connection, output: Output) -> AbstractContextManager[Target]:
        """Open the table over the connection of a transaction, which commits what the block does."""
        return self._opened(conn, output)

    @contextmanager
    def _opened(self, conn: Connection, output: Output) -> Iterator[IcebergTarget]:
        from airflow_kafka_offsets.sinks.iceberg.publication import refuse_rollback
        from airflow_kafka_offsets.sinks.iceberg.target import Changes, IcebergTarget

        table = self.find_over(conn, lock=True)
        if table is not None:
            refuse_rollback(table, output.group_id)
        target = IcebergTarget(conn, self.name, table, Changes(output), self.upsert_key)
        yield target
        if table is not None and not target.changes.is_empty:
            target.changes.commit(table)

    def rows(self, conn: Connection) -> LakeRows:
        """Return the rows as `verify` reads them."""
        from airflow_kafka_offsets.sinks.iceberg.source import IcebergSource
        from airflow_kafka_offsets.sinks.lake.rows import LakeRows

        table = self.find_over(conn)
        return LakeRows(conn, self.name, None if table is None else IcebergSource(table), self.replaces_rows)

    def remove_leftovers(self, engine: Engine, batch_id: int, before: datetime) -> int:
        """Remove what attempts to stage a batch left; see `Table.remove_leftovers`."""
        from airflow_kafka_offsets.sinks.iceberg.left_files import remove_leftovers

        table = self.find(engine)
        return 0 if table is None else remove_leftovers(table, batch_id, before)

    def find(self, engine: Engine) -> Table | None:
        """Return the table as it is now; None where there is none."""
        with engine.connect() as conn:
            return self.find_over(conn)

    def find_over(self, conn: Connection, *, lock: bool = False) -> Table | None:
        """Return the table as a transaction sees it; None where there is none.

        :param lock: whether other writers have to wait for the end of the transaction
        """
        from airflow_kafka_offsets.sinks.iceberg.catalogs import PositionsCatalog, find_table, has_catalog

        if not has_catalog(conn):
            return None
        catalog = PositionsCatalog(self.catalog_name, conn, **self.catalog_properties())
        if lock:
            catalog.lock(self.identifier)
        return find_table(catalog, self.identifier)

    def create(self, engine: Engine, columns: pa.Schema) -> Table:
        """Create the table, and the catalog's own tables where these are missing."""
        import sqlalchemy as sa

        from airflow_kafka_offsets.database.errors import database_message, is_outage
        from airflow_kafka_offsets.database.transactions import transact
        from airflow_kafka_offsets.sinks.iceberg.catalogs import PositionsCatalog, create_catalog

        if self.warehouse is None:
            raise ConfigurationError(
                f"{self.name} does not exist, and is created where warehouse= says: a directory that all machines "
                "share, or a URI such as s3://bucket/warehouse"
            )

        def work(conn: Connection) -> Table:
            create_catalog(conn)
            return self._created(PositionsCatalog(self.catalog_name, conn, **self.catalog_properties()), columns)

        try:
            return transact(engine, work)
        except sa.exc.DBAPIError as error:
            if is_outage(error):
                raise
            if (table := self.find(engine)) is not None:  # created by another process, at the same moment
                return table
            raise TargetError(f"{self.name} cannot be created: {database_message(error)}") from error

    def _created(self, catalog: Catalog, columns: pa.Schema) -> Table:
        from airflow_kafka_offsets.sinks.iceberg.creation import create_table

        return create_table(
            catalog,
            self.identifier,
            columns,
            location=None,
            partition_by=self.partition_by,
            sort_by=self.sort_by,
            properties={name: str(value) for name, value in self.properties.items()},
        )

    def _declared(self) -> pa.Schema | None:
        if self.columns is None:
            return None
        import pyarrow as pa

        from airflow_kafka_offsets.formats.spark_ddl import parse_ddl
        from airflow_kafka_offsets.sinks.iceberg.creation import ORIGIN

        declared = parse_ddl(self.columns, binary=True)
        return pa.schema([*declared, *(each for each in ORIGIN if each.name not in declared.names)])

    def _check(self) -> None:
        from airflow_kafka_offsets.sinks.iceberg.creation import check_terms

        if not isinstance(self.identifier, str) or not all(self.identifier.split(".")) or "." not in self.identifier:
            raise ConfigurationError(
                f"IcebergTable needs namespace and name, such as 'shop.orders'; got {self.identifier!r}"
            )
        for what in ("partition_by", "sort_by"):
            value = getattr(self, what)
            if isinstance(value, str) or not all(isinstance(term, str) for term in value):
                raise ConfigurationError(f"{what} must be several texts, such as ('day(created)',); got {value!r}")
        check_terms(self.partition_by)
