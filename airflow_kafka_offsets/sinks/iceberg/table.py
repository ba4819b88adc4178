"""The sink for Iceberg tables. The catalog decides whether a load makes one commit or two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote

from airflow_kafka_offsets.core.libraries import require_library
from airflow_kafka_offsets.core.templates import holds_template
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.sinks.lake.sink import LakeSink
from airflow_kafka_offsets.sinks.sink import Connections, check_upsert_key

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.sinks.iceberg.format import ConnectedIcebergTable

Properties = Mapping[str, Any]

POSITIONS = "positions"


@dataclass(frozen=True, kw_only=True)
class IcebergTable(LakeSink):
    """Append rows to an Iceberg table, or upsert them: Spark's tasks write its data files, and the commit adds them in
    one snapshot.

    Without `catalog`, the table is registered in the database of the positions, in the tables `iceberg_tables` and
    `iceberg_namespace_properties` of a SQL catalog, as Iceberg's JDBC catalog and pyiceberg know it: rows and positions
    move in one transaction. Other writers of the table wait for it, and go on from its snapshot.

    With `catalog` or `catalog_conn_id`, the table is in any catalog that pyiceberg supports: REST, Glue, Hive, another
    SQL catalog. Then there are two commits. Rows are still loaded exactly once: a property of the table names the last
    published batch of each group.

    A missing table is created, with the columns of the rows and `_batch_id`, all nullable. Columns are matched by name;
    those of the table may be wider or narrower, and `on_bad_record` decides about values that do not fit.

    With `upsert_key`, a row replaces the one with the same key, and the newest wins, as with `SqlTable`. The commit
    rewrites files that hold replaced rows. Columns that the rows do not have become null.

    All parameters are templated, but whether there is a catalog must be known when the DAG is parsed.

    :param identifier: namespace and name, such as `shop.orders`
    :param catalog: the properties of a catalog, as `pyiceberg.catalog.load_catalog` takes them; None or "positions" is
        the database of the positions
    :param conn_id: the Airflow connection of the database of the positions
    :param catalog_conn_id: the Airflow connection of the catalog: its extra has pyiceberg's properties, `uri` and
        `credential` may be its host, login and password
    :param catalog_name: the name under which other programs open the catalog; a SQL catalog stores it. It is part of
        the table's name in the history and of its asset: give each catalog its own
    :param warehouse: the absolute path, or URI, of the directory below which a created table has its files
    :param storage_conn_id: the Airflow connection of the object store, of type `aws`, `wasb`, `adls` or `generic`;
        pyiceberg's own properties, such as `s3.endpoint`, may be in the extra of a generic one
    :param partition_by: the partitions of a created table: columns, or `year(c)`, `month(c)`, `day(c)`, `hour(c)`,
        `bucket(16, c)`, `truncate(4, c)`
    :param sort_by: the sort order of a created table: columns, such as `created` or `id DESC`
    :param properties: the properties of a created table
    :param columns: the columns of a created table in Spark DDL, if a DataFrame transform decides them
    :param upsert_key: the columns that identify a row, for example `("id",)`; without them, all rows are appended
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

    def __post_init__(self) -> None:
        check_upsert_key(self.upsert_key)
        name = self.identifier
        if not holds_template(name) and (not isinstance(name, str) or "." not in name or not all(name.split("."))):
            raise ConfigurationError(f"IcebergTable needs namespace and name, such as 'shop.orders'; got {name!r}")

    @property
    def name(self) -> str:
        return f"iceberg://{self.catalog_name}/{self.identifier}"

    @property
    def commits_externally(self) -> bool:
        return self.catalog not in (None, POSITIONS) or self.catalog_conn_id is not None

    @property
    def replaces_rows(self) -> bool:
        return bool(self.upsert_key)

    @property
    def conn_ids(self) -> tuple[str, ...]:
        """The connections of the catalog and the storage."""
        return tuple(conn_id for conn_id in (self.catalog_conn_id, self.storage_conn_id) if conn_id is not None)

    def uris(self, engine: Engine) -> list[str]:
        return [f"iceberg://{quote(self.catalog_name, safe='')}/{quote(self.identifier, safe='.').replace('.', '/')}"]

    def connect(self, engine: Engine, connections: Connections | None = None) -> ConnectedIcebergTable:
        require_library("IcebergTable", "pyiceberg", "iceberg")
        from airflow_kafka_offsets.sinks.iceberg.format import ConnectedIcebergTable

        return ConnectedIcebergTable.of(self, engine, connections or {})
