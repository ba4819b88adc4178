"""Where Iceberg tables are registered: in the database of the positions, or in any catalog that pyiceberg knows."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from pyiceberg.catalog import Catalog, MetastoreCatalog, load_catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog, SqlCatalogBaseTable
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.database.mappers import configure_alone
from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.sinks.sink import Connections

log = logging.getLogger(__name__)

_STORAGE = ("s3.", "gcs.", "adls.", "hdfs.", "hf.", "client.", "py-io-impl")
"""What the properties of a catalog begin with that concern files."""


class PositionsCatalog(SqlCatalog):
    """A SQL catalog over the connection of a transaction: what it commits, the transaction commits.

    SQLAlchemy's sessions, which the superclass opens, take part in a transaction that their connection is in, and leave
    its COMMIT to its owner.
    """

    def __init__(self, name: str, conn: Connection, **properties: str) -> None:
        # Not the superclass, which would make an engine of a URL, and create tables.
        MetastoreCatalog.__init__(self, name, **properties)
        configure_alone(SqlCatalogBaseTable.registry)
        self.engine = conn  # type: ignore[assignment]
        columns = {column["name"] for column in sa.inspect(conn).get_columns(IcebergTables.__tablename__)}
        self._schema_version = "v1" if IcebergTables.iceberg_type.key in columns else "v0"

    def lock(self, identifier: str) -> None:
        """Wait for other writers of a table, and let them wait until the end of the transaction: then they see what it
        committed.
        """
        *namespace, name = self.identifier_to_tuple(identifier)
        row = IcebergTables.__table__.c
        self.engine.execute(  # type: ignore[attr-defined]
            sa.select(row.metadata_location)
            .where(
                row.catalog_name == self.name,
                row.table_namespace == self.namespace_to_string(tuple(namespace)),
                row.table_name == name,
            )
            .with_for_update()
        )


def has_catalog(conn: Connection) -> bool:
    """Return whether a database has the tables of a catalog."""
    names = [table.name for table in SqlCatalogBaseTable.metadata.tables.values()]
    return all(sa.inspect(conn).has_table(name) for name in names)


def create_catalog(conn: Connection) -> None:
    """Create the tables of a catalog."""
    SqlCatalogBaseTable.metadata.create_all(conn)


def open_catalog(name: str, properties: Mapping[str, Any]) -> Catalog:
    """Return a catalog by its properties.

    :raises ConfigurationError: pyiceberg knows no such catalog
    :raises TargetError: it cannot be reached
    """
    configure_alone(SqlCatalogBaseTable.registry)
    try:
        catalog = load_catalog(name, **{key: str(value) for key, value in properties.items()})
    except (ValueError, NotImplementedError, KeyError, ModuleNotFoundError) as error:
        raise ConfigurationError(f"pyiceberg cannot open catalog {name!r}: {_text(error, properties)}") from None
    except Exception as error:
        raise TargetError(f"Catalog {name!r} cannot be reached: {_text(error, properties)}") from None
    if isinstance(catalog, SqlCatalog):
        # A task asks its catalog a few times in an hour.
        pooled = catalog.engine
        catalog.engine = sa.create_engine(pooled.url, poolclass=sa.NullPool, hide_parameters=True)
        pooled.dispose()
    return catalog


def find_table(catalog: Catalog, identifier: str) -> Table | None:
    """Return a table; None where the catalog has none."""
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        return None


def catalog_properties(conn_id: str, connections: Connections) -> dict[str, Any]:
    """Return the properties of a catalog from a connection: its extra, and `uri` and `credential` from other fields.

    :raises ConfigurationError: the connection is not known
    """
    if conn_id not in connections:
        raise ConfigurationError(f"Connection {conn_id!r} is not known here: pass what it holds in connections=")
    connection = connections[conn_id]
    properties = dict(connection.get("extra") or {})
    host, login = connection.get("host"), connection.get("login")
    if host:
        uri = host if "://" in host else f"{connection.get('schema') or 'https'}://{host}"
        properties.setdefault("uri", f"{uri}:{connection['port']}" if connection.get("port") else uri)
    if login:
        properties.setdefault("credential", f"{login}:{connection.get('password') or ''}")
    return properties


def storage_of(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return the properties that Spark's tasks need to write files."""
    return {name: str(value) for name, value in properties.items() if name.startswith(_STORAGE)}


def _text(error: Exception, properties: Mapping[str, Any]) -> str:
    """Return the message of an error without what the properties hold."""
    text = f"{type(error).__name__}: {error}"
    for value in sorted(map(str, properties.values()), key=len, reverse=True):
        if len(value) > 2:
            text = text.replace(value, "…")
    return text
