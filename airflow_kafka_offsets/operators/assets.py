"""Topics and tables as assets of Airflow, and the events of what was loaded.

Where a topic and a table are is in connections, which are not read when a DAG file is parsed. So the outlet that a DAG
shows is an alias, and the task adds the assets to it once it knows their URIs: those that Airflow's providers for Kafka
and databases define.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import Asset, AssetAlias
from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType

from airflow_kafka_offsets.core.templates import holds_template

if TYPE_CHECKING:
    from airflow.sdk import Context
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.sinks.sink import Sink

_KAFKA_PORT = 9092

_PORTS = {"postgres": 5432, "mysql": 3306}

SCHEMES = {"postgresql": "postgres", "mariadb": "mysql", "s3a": "s3", "s3n": "s3"}


def alias_of(group_id: object, task_id: str) -> AssetAlias:
    """Return the alias of all that a group loads; of a group that a template names, that of the task."""
    is_known = isinstance(group_id, str) and not holds_template(group_id)
    name = str(group_id) if is_known else task_id
    # Airflow on MySQL refuses other names.
    return AssetAlias(f"kafka_offsets:{name if name.isascii() else quote(name)}")


def topic_uris(servers: str, topics: Iterable[str]) -> list[str]:
    """Return the URIs of topics.

    :param servers: `bootstrap.servers`, of which the first one names the cluster
    """
    first = servers.split(",")[0].strip().rpartition("://")[2]
    has_port = first.rpartition(":")[2].isdecimal()
    return [f"kafka://{first if has_port else f'{first}:{_KAFKA_PORT}'}/{quote(topic, safe='')}" for topic in topics]


def target_uris(sink: Sink, engine: Engine) -> list[str]:
    """Return the URIs of what a sink writes to; a function writes to what it alone knows, but for the table that it
    names.
    """
    # Here and not above: DAG files are parsed every few seconds.
    from airflow_kafka_offsets.sinks.fan_out import FanOut
    from airflow_kafka_offsets.sinks.function import FunctionSink
    from airflow_kafka_offsets.sinks.iceberg.sink import IcebergSink
    from airflow_kafka_offsets.sinks.lake.table_sink import FileTableSink
    from airflow_kafka_offsets.sinks.sql.table import SqlTable

    match sink:
        case FanOut():
            return [uri for branch in sink.branches for uri in target_uris(branch.sink, engine)]
        case SqlTable() | FunctionSink(table=str()):
            return [_table_uri(str(sink.table), sink.schema, engine)]
        case FileTableSink():
            scheme, _, place = sink.uri.rpartition("://")
            return [f"{SCHEMES.get(scheme, scheme)}://{place}" if scheme else f"file://{quote(place)}"]
        case IcebergSink():
            return [
                f"iceberg://{quote(sink.catalog_name, safe='')}/{quote(sink.identifier, safe='.').replace('.', '/')}"
            ]
        case _:
            return []


def _table_uri(table: str, schema: str | None, engine: Engine) -> str:
    url = engine.url
    scheme = SCHEMES.get(engine.dialect.name, engine.dialect.name)
    if scheme == "sqlite":
        return f"sqlite:///{quote((url.database or '').lstrip('/'))}/{quote(table, safe='')}"
    if scheme == "mysql":
        # A schema is a database there.
        path = [schema or url.database, table]
    else:
        # Known since the first connection of the load.
        path = [url.database, schema or engine.dialect.default_schema_name or "default", table]
    port = url.port or _PORTS.get(scheme)
    host = f"{url.host or 'localhost'}{f':{port}' if port else ''}"
    return f"{scheme}://{host}/{'/'.join(quote(name or '', safe='') for name in path)}"


def announce(context: Context, outlets: Iterable[Any], uris: Iterable[str], extra: Mapping[str, Any]) -> None:
    """Add events to the outlets of a task; Airflow stores them when the task succeeds.

    :param outlets: the assets of the DAG's author get the extra, and aliases get an event of each URI that is none of
        these assets
    :param extra: of the events
    """
    outlets = list(outlets)
    own = [asset for asset in outlets if isinstance(asset, Asset)]
    for asset in own:
        context["outlet_events"][asset].extra.update(extra)
    known = {asset.uri for asset in own}
    # Airflow normalises URIs where an asset is constructed.
    for asset in [asset for uri in uris if (asset := Asset(uri=uri)).uri not in known]:
        for alias in outlets:
            if isinstance(alias, AssetAlias):
                _add(context["outlet_events"][alias], asset, dict(extra))


def _add(accessor: Any, asset: Asset, extra: dict[str, Any]) -> None:
    try:
        # Another DAG may know the URI under a name.
        accessor.add(Asset.ref(uri=asset.uri), extra)
    except AirflowRuntimeError as error:
        if error.error.error is not ErrorType.ASSET_NOT_FOUND:
            raise
        accessor.add(asset, extra)
