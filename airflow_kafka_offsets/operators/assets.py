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

_KAFKA_PORT = 9092


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
