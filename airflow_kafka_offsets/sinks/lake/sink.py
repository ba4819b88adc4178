"""The base of sinks for tables of files, and their names in other programs: the URI of an Airflow asset, the dataset
and its fields in OpenLineage.

DAG files import it: heavy modules are imported where they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self
from urllib.parse import quote, unquote, urlsplit

from airflow_kafka_offsets.core.addresses import is_relative
from airflow_kafka_offsets.core.templates import holds_template, with_values
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.sinks.sink import Connections, Sink
from airflow_kafka_offsets.sinks.target_names import STORE_SCHEMES


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


@dataclass(frozen=True)
class DirectorySink(Sink):
    """A sink whose files are below a URI.

    All parameters are templated.

    :param uri: an absolute path that all machines share, or a URI such as `s3://bucket/path`
    :param conn_id: the Airflow connection of the database that holds the positions
    :param storage_conn_id: the Airflow connection of the object store, of type `aws`, `wasb`, `google_cloud_platform`
        or `generic`; without one, the environment of the worker and of Spark's executors has the credentials
    :param partition_by: the partition columns of a created table
    :param columns: the columns of a created table in Spark DDL, for a DataFrame transform, whose columns are not known
        before it runs; the origin columns are added
    :param sort_by: the columns by which the rows of a file are sorted
    :param file_bytes: the size at which a data file is complete; for a sorted file, its size in memory
    :ivar storage: the contents of the connection of the object store
    """

    scheme: ClassVar[str]
    template_fields: ClassVar[tuple[str, ...]] = (
        "uri",
        "conn_id",
        "storage_conn_id",
        "partition_by",
        "columns",
        "sort_by",
        "file_bytes",
    )

    uri: str
    conn_id: str | None = None
    storage_conn_id: str | None = None
    partition_by: Sequence[str] = ()
    columns: str | None = None
    sort_by: Sequence[str] = ()
    file_bytes: int = 128 << 20
    storage: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False, init=False)

    def __post_init__(self) -> None:
        if not holds_template(self.uri) and (not self.uri or is_relative(self.uri)):
            raise ConfigurationError(f"{type(self).__name__} needs an absolute path or a URI; got uri={self.uri!r}")

    @property
    def name(self) -> str:
        return self.scheme + (self.uri if "://" in self.uri else f"file://{self.uri}").rstrip("/")

    @property
    def commits_externally(self) -> bool:
        return True

    @property
    def writes_files(self) -> bool:
        return True

    @property
    def conn_ids(self) -> tuple[str, ...]:
        return () if self.storage_conn_id is None else (self.storage_conn_id,)

    def uris(self, engine: Any) -> list[str]:
        return [asset_uri(self.uri)]

    def connected(self, connections: Connections | None) -> Self:
        """Return the sink with the options of its object store."""
        from airflow_kafka_offsets.sinks.lake.storage import object_store_options, warn_of_plain_store

        if self.storage_conn_id is None:
            warn_of_plain_store(self.uri)
            return self
        return with_values(self, storage=object_store_options(self.storage_conn_id, connections or {}))


def asset_uri(uri: str) -> str:
    """Return the URI of a directory of files, as Airflow's assets have it.

    :param uri: of the table, or an absolute path
    """
    scheme, _, place = uri.rpartition("://")
    return f"{STORE_SCHEMES.get(scheme, scheme)}://{place}" if scheme else f"file://{quote(place)}"


def dataset_name(uri: str) -> tuple[str, str]:
    """Return the namespace and the name of a directory: `file` and a path, or the bucket and the key."""
    parts = urlsplit(uri)
    scheme = STORE_SCHEMES.get(parts.scheme, parts.scheme)
    if scheme in ("", "file"):
        return "file", unquote(parts.path).rstrip("/") or "/"
    user, _, server = parts.netloc.rpartition("@")
    # The container of an Azure account is where other URIs have a login, of which nothing is shown.
    is_container = scheme.startswith(("abfs", "wasb")) and ":" not in user
    namespace = f"{scheme}://{parts.netloc if is_container else server}"
    path = parts.path.rstrip("/")
    return namespace, path if scheme == "hdfs" else path.lstrip("/") or "/"


def fields_of(columns: Iterable[Any]) -> list[tuple[str, str]]:
    """Return the names and the types of columns."""
    return [(column.name, str(column.type)) for column in columns]
