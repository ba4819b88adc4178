"""An Iceberg table in its catalog: how both are opened, and created.

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
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog, SqlCatalogBaseTable
from pyiceberg.exceptions import (
    NoSuchTableError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    ValidationError,
)
from pyiceberg.table import Table
from requests.exceptions import SSLError
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.addresses import is_relative
from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.database.errors import database_message, is_outage
from airflow_kafka_offsets.database.libpq import check_libpq
from airflow_kafka_offsets.database.mappers import configure_alone
from airflow_kafka_offsets.database.transactions import transact
from airflow_kafka_offsets.database.weakness import warn_of_weakness
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DatabaseUnavailableError,
    KafkaOffsetsError,
    LedgerError,
    TargetError,
)
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS, parse_ddl
from airflow_kafka_offsets.sinks.iceberg.checked_metadata import UnfitMetadataError
from airflow_kafka_offsets.sinks.iceberg.places import may_be_local, names_code
from airflow_kafka_offsets.sinks.iceberg.private import (
    STORAGE,
    keep_to_given,
    load_known_catalog,
    with_account,
)
from airflow_kafka_offsets.sinks.iceberg.shapes import create_table, parsed_term
from airflow_kafka_offsets.sinks.iceberg.snapshot import IcebergSnapshot
from airflow_kafka_offsets.sinks.lake.sink import dataset_name
from airflow_kafka_offsets.sinks.lake.storage import (
    pyiceberg_properties,
    refuse_identity,
    warn_of_plain_http,
    warn_of_plain_store,
)
from airflow_kafka_offsets.sinks.lake.table import LakeTable
from airflow_kafka_offsets.sinks.sink import Connections
from airflow_kafka_offsets.sinks.table import Dataset

if TYPE_CHECKING:
    from airflow_kafka_offsets.sinks.iceberg.table import IcebergTable


# Of SQL catalogs; and what the URIs of REST and Hive catalogs begin with.
_KNOWN_DRIVERS = frozenset(
    """
    sqlite sqlite+pysqlite postgresql postgresql+psycopg postgresql+psycopg2 mysql+pymysql mariadb+pymysql
    http https thrift
    """.split()  # noqa: SIM905
)

_NO_ANSWER = (OSError, ServerError, ServiceUnavailableError, TooManyRequestsError)
"""What pyiceberg raises if a REST catalog or a storage does not answer, or not now."""


class PositionsCatalog(SqlCatalog):
    """A SQL catalog over the connection of a transaction, with which its changes are committed.

    The superclass opens sessions of SQLAlchemy, which join the transaction of their connection, and leave its COMMIT to
    the owner.
    """

    def __init__(self, name: str, conn: Connection, **properties: str) -> None:
        # Not the superclass, which would make an engine of a URL, and create tables.
        MetastoreCatalog.__init__(self, name, **properties)
        keep_to_given(self)
        configure_alone(SqlCatalogBaseTable.registry)
        self.engine = conn  # type: ignore[assignment]
        columns = {column["name"] for column in sa.inspect(conn).get_columns(IcebergTables.__tablename__)}
        self._schema_version = "v1" if IcebergTables.iceberg_type.key in columns else "v0"

    def lock(self, identifier: str) -> None:
        """Wait for other writers of a table, and block them until the end of the transaction: then they see its
        changes.
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


@lru_cache(maxsize=16)
def open_catalog(name: str, *pairs: tuple[str, str]) -> Catalog:
    """Return the catalog for some properties; equal properties return the same one.

    :param pairs: names and values of properties
    :raises ConfigurationError: pyiceberg knows no such catalog
    :raises DatabaseUnavailableError: it does not answer
    :raises TargetError: it cannot be opened
    """
    configure_alone(SqlCatalogBaseTable.registry)
    properties = dict(pairs)
    if "uri" in properties:
        properties["uri"] = _checked_url(properties["uri"])
    try:
        catalog = _load_catalog(name, properties)
    except (ValueError, NotImplementedError, KeyError, ModuleNotFoundError) as error:
        raise ConfigurationError(f"pyiceberg cannot open catalog {name!r}: {_text(error, properties)}") from None
    except Exception as error:
        raise _failure(error)(f"Catalog {name!r} cannot be opened: {_text(error, properties)}") from None
    if isinstance(catalog, SqlCatalog):
        # A task asks its catalog a few times in an hour.
        pooled = catalog.engine
        catalog.engine = sa.create_engine(pooled.url, poolclass=sa.NullPool, hide_parameters=True)
        warn_of_weakness(catalog.engine, f"Catalog {name!r}")
        pooled.dispose()
    return catalog


def _load_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    # pyiceberg creates the tables of a SQL catalog. Another process may create each of them at the same moment.
    for _ in SqlCatalogBaseTable.metadata.tables:
        try:
            return load_known_catalog(name, properties)
        except sa.exc.DBAPIError as error:
            if is_outage(error):
                raise
    return load_known_catalog(name, properties)


def _checked_url(uri: str) -> str:
    """Return the URI of a catalog; where it is a SQL catalog's with a root certificate, one that asks for TLS.

    :raises ConfigurationError: by its driver or an option code would be loaded, or files of this machine sent
    """
    try:
        url = sa.make_url(uri)
        kind = url.get_backend_name()
    except sa.exc.ArgumentError:  # of another kind of catalog
        return uri
    except ValueError:
        # Its message has what it takes for the port, such as the rest of a password with @ or :.
        raise ConfigurationError(
            "The URL of the catalog cannot be read: write @, : and / in its user and password as %40, %3A and %2F"
        ) from None
    if url.drivername not in _KNOWN_DRIVERS:
        raise ConfigurationError(
            f"The URL of the catalog begins with {url.drivername}://: a SQL catalog may be in SQLite, Postgres "
            "(postgresql+psycopg://…), MariaDB or MySQL (mysql+pymysql://…), as drivers of other databases can be made "
            "to load libraries"
        )
    if kind == "postgresql":
        check_libpq(url.query, "The URL of the catalog")
        if "sslrootcert" in url.query and "sslmode" not in url.query:
            # libpq would accept a server without TLS.
            return url.update_query_dict({"sslmode": "verify-full"}).render_as_string(hide_password=False)
    if kind in ("mysql", "mariadb") and {"local_infile", "read_default_file"} & url.query.keys():
        raise ConfigurationError(
            "A MySQL server can ask its clients for files: the URL of a catalog in MySQL or MariaDB must be without "
            "local_infile and read_default_file"
        )
    return uri


def find_table(catalog: Catalog, identifier: str) -> Table | None:
    """Return a table; None where the catalog has none.

    :raises TargetError: its metadata is not Iceberg's
    """
    try:
        return catalog.load_table(identifier)
    except NoSuchTableError:
        return None
    except (ValidationError, ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, UnfitMetadataError) else type(error).__name__
    # Outside of the handler: the error quotes a file, which may be any that the worker can read, as catalogs name it.
    raise TargetError(
        f"The metadata of table {identifier!r} is not Iceberg's ({reason}): correct the file that its catalog names. "
        "Nothing was written"
    )


def catalog_properties(conn_id: str, connections: Connections) -> dict[str, Any]:
    """Return the properties of a catalog from a connection: its extra, and `uri` and `credential` from other fields.

    :raises ConfigurationError: the connection is not known
    """
    if conn_id not in connections:
        raise ConfigurationError(f"Connection {conn_id!r} is unknown: pass its contents in connections=")
    connection = connections[conn_id]
    properties = dict(connection.get("extra") or {})
    host, login = connection.get("host"), connection.get("login")
    if host:
        uri = host if "://" in host else f"{connection.get('schema') or 'https'}://{host}"
        properties.setdefault("uri", f"{uri}:{connection['port']}" if connection.get("port") else uri)
    if login:
        properties.setdefault("credential", f"{login}:{connection.get('password') or ''}")
    return properties


def _failure(error: Exception) -> type[LedgerError | TargetError]:
    """Return the class of the error for what a catalog or its storage raised: whether a retry can help."""
    if isinstance(error, sa.exc.DBAPIError):
        passes = is_outage(error)
    else:
        refused = (SSLError, FileNotFoundError, PermissionError)
        passes = isinstance(error, _NO_ANSWER) and not isinstance(error, refused)
    return DatabaseUnavailableError if passes else TargetError


def _text(error: Exception, properties: Mapping[str, str]) -> str:
    """Return the message of an error without what the properties hold."""
    text = f"{type(error).__name__}: {error}"
    for value in sorted(properties.values(), key=len, reverse=True):
        if len(value) > 2:
            text = text.replace(value, "…")
    return text


@dataclass(frozen=True)
class ConnectedIcebergTable(LakeTable):
    """An Iceberg table; see `LakeTable`.

    :param engine: of the database of the positions
    :param properties: of the catalog and its files; hold secrets
    """

    kind: ClassVar[str] = "iceberg"
    restored_by: ClassVar[str] = " (register_table of its last metadata file, under this name)"

    sink: IcebergTable
    engine: Engine
    properties: Mapping[str, Any]

    @classmethod
    def of(cls, sink: IcebergTable, engine: Engine, connections: Connections) -> ConnectedIcebergTable:
        """Return the table with what its connections hold."""
        properties: dict[str, Any] = {"warehouse": sink.warehouse} if sink.warehouse else {}
        if isinstance(sink.catalog, Mapping):
            properties |= sink.catalog
        of_connections: dict[str, Any] = {}
        if sink.catalog_conn_id is not None:
            of_connections |= catalog_properties(sink.catalog_conn_id, connections)
            properties |= of_connections
        if sink.commits_externally:
            warn_of_plain_http(f"The catalog of {sink.name}", properties)
        if sink.storage_conn_id is not None:
            of_connections |= pyiceberg_properties(sink.storage_conn_id, connections)
            properties |= of_connections
        elif "s3.endpoint" not in properties:
            warn_of_plain_store(sink.warehouse or "s3://")
        if sink.conn_ids:
            refuse_identity(sink.conn_ids[0], of_connections)
        if named := [name for name, value in properties.items() if names_code(name, value)]:
            raise ConfigurationError(
                f"{sink.name} has {', '.join(named)} among the properties of its catalog and storage, which name code: "
                "remove them"
            )
        return cls(sink, engine, properties)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sink!r})"

    def check_parameters(self) -> pa.Schema | None:
        sink = self.sink
        for what in ("partition_by", "sort_by"):
            value = getattr(sink, what)
            if isinstance(value, str) or not all(isinstance(term, str) for term in value):
                raise ConfigurationError(f"{what} must be several texts, such as ('day(created)',); got {value!r}")
        for term in sink.partition_by:
            parsed_term(term)
        self._check_catalog()
        if sink.columns is None:
            return None
        declared = parse_ddl(sink.columns, binary=True)
        return pa.schema([*declared, *(each for each in ORIGIN_COLUMNS if each.name not in declared.names)])

    def _check_catalog(self) -> None:
        catalog = self._catalog() if self.sink.commits_externally else None
        if catalog is not None and not isinstance(catalog, SqlCatalog):
            return  # its warehouse may be a name that a service knows
        warehouse = self.properties.get("warehouse")
        if warehouse and is_relative(str(warehouse)):
            raise ConfigurationError(
                f"The warehouse of {self.sink.name} must be an absolute path or a URI, so that all find its files; got "
                f"{warehouse!r}"
            )
        engines = [catalog.engine, self.engine] if catalog is not None else []
        files = [Path(each.url.database or "").absolute() for each in engines if each.dialect.name == "sqlite"]
        if len(files) == 2 and files[0] == files[1]:
            raise ConfigurationError(
                f"The catalog of {self.sink.name} is in the SQLite file of the positions, which takes one writer at a "
                "time: leave out catalog=, so that both are committed together"
            )

    def snapshot(self, conn: Connection | None = None, *, lock: bool = False) -> IcebergSnapshot | None:
        if self.sink.commits_externally:
            return self._snapshot(self._load)
        with self.engine.connect() if conn is None else nullcontext(conn) as over:
            return self._snapshot(partial(self._load_over, over, lock=lock))

    def _snapshot(self, load: Callable[[], Table | None]) -> IcebergSnapshot | None:
        table, sink = load(), self.sink
        if table is None:
            return None
        is_local = may_be_local(self.properties)
        return IcebergSnapshot(sink.name, table, load, is_external=sink.commits_externally, may_be_local=is_local)

    def _load_over(self, conn: Connection, *, lock: bool) -> Table | None:
        if not all(sa.inspect(conn).has_table(name) for name in SqlCatalogBaseTable.metadata.tables):
            return None
        catalog = PositionsCatalog(self.sink.catalog_name, conn, **self.properties)
        if lock:
            catalog.lock(self.sink.identifier)
        return find_table(catalog, self.sink.identifier)

    def _load(self) -> Table | None:
        try:
            return find_table(self._catalog(), self.sink.identifier)
        except KafkaOffsetsError:
            raise
        except Exception as error:
            reason, failure = f"{type(error).__name__}: {shortened(str(error))}", _failure(error)
        # Outside of the handler: its error may hold secrets.
        raise failure(f"{self.sink.name} cannot be read: {reason}. Nothing was written")

    def _catalog(self) -> Catalog:
        return open_catalog(
            self.sink.catalog_name, *sorted((name, str(each)) for name, each in self.properties.items())
        )

    def create(self, columns: pa.Schema) -> IcebergSnapshot:
        if self.sink.commits_externally:
            self._create_there(columns)
        else:
            self._create_here(columns)
        snapshot = self.snapshot()
        if snapshot is None:
            raise TargetError(f"{self.sink.name} disappeared; nothing was written")
        return snapshot

    def _create_there(self, columns: pa.Schema) -> None:
        # If another process creates the namespace at the same moment, catalogs answer in many ways.
        for _ in range(2):
            try:
                return create_table(self._catalog(), self.sink, columns)
            except KafkaOffsetsError:
                raise
            except Exception as error:
                reason, failure = f"{type(error).__name__}: {shortened(str(error))}", _failure(error)
        # Outside of the handler: its error may hold secrets.
        raise failure(f"{self.sink.name} cannot be created: {reason}. Nothing was written")

    def _create_here(self, columns: pa.Schema) -> None:
        sink = self.sink
        if sink.warehouse is None:
            raise ConfigurationError(
                f"{sink.name} does not exist: to create it, set warehouse= to a directory that all machines share, or "
                "to a URI such as s3://bucket/warehouse"
            )

        def work(conn: Connection) -> None:
            SqlCatalogBaseTable.metadata.create_all(conn)
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
        properties = with_account(self.properties) if table is None else table.io.properties
        return {name: str(value) for name, value in properties.items() if name.startswith(STORAGE)}

    def datasets(self) -> list[Dataset]:
        snapshot = self.snapshot()
        if snapshot is None:
            return []
        fields = [(field.name, str(field.field_type)) for field in snapshot.table.schema().fields]
        symlink = (f"iceberg://{self.sink.catalog_name}", str(self.sink.identifier))
        return [Dataset(*dataset_name(snapshot.table.location()), fields, symlink)]
