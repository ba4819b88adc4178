"""What a load or a replay reports to Airflow: its outcome for XCom, topics and tables as assets, and asset events.

The URIs of topics and tables depend on connections, which are not read when a DAG file is parsed. So the outlet of a
DAG is an asset alias, and the task adds the assets to it. Airflow's providers for Kafka and databases define the URIs.
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

    from airflow_kafka_offsets.ledger.batch_rows import TaskRun
    from airflow_kafka_offsets.ledger.tables import Ledger
    from airflow_kafka_offsets.loading.context import LoadResult
    from airflow_kafka_offsets.loading.pipeline import Pipeline


_KAFKA_PORT = 9092


def alias_of(group_id: object, task_id: str) -> AssetAlias:
    """Return the asset alias of a group; if a template names the group, that of the task."""
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
    aliases = [alias for alias in outlets if isinstance(alias, AssetAlias)]
    for uri in uris:
        # Airflow normalises URIs where an asset is constructed.
        asset = Asset(uri=uri)
        for alias in aliases if asset.uri not in known else ():
            _add(context["outlet_events"][alias], asset, dict(extra))


def _add(accessor: Any, asset: Asset, extra: dict[str, Any]) -> None:
    try:
        # Another DAG may know the URI under a name.
        accessor.add(Asset.ref(uri=asset.uri), extra)
    except AirflowRuntimeError as error:
        if error.error.error is not ErrorType.ASSET_NOT_FOUND:
            raise
        accessor.add(asset, extra)


def outcome(ledger: Ledger, pipeline: Pipeline, result: LoadResult, run: TaskRun, *, kind: str) -> dict[str, Any]:
    """Return what a task instance did in all its tries, as values that JSON can hold.

    :param ledger: has the history
    :param result: of this try
    :param kind: `load` or `replay`
    :return: `group_id`, `target`, `ranges`, `batches` (ids), `records`, `rows`, `dead_letters` and `complete`. `ranges`
        has the start and the end of each partition by topic, as the parameter `offsets` of `KafkaReplayOperator` takes
        them; it is None where there are more than `task_results.MOST` of them. `batches` has the last ones, as many at
        most
    """
    # Imported here because DAG files are parsed every few seconds.
    from airflow_kafka_offsets.database.errors import translated_errors
    from airflow_kafka_offsets.ledger.overview import read_task_result

    what = f"The history of group {pipeline.group_id!r} could not be read"
    first = next(iter(result.batches), None)
    with translated_errors(what, "Run the task again: committed batches are not loaded again."):
        done = read_task_result(ledger, pipeline.group_id, run, kind, first)
    ranges: dict[str, dict[str, list[int]]] | None = None
    if done.ranges is not None:
        ranges = {}
        for tp, span in done.ranges.items():
            ranges.setdefault(tp.topic, {})[str(tp.partition)] = list(span)
    return {
        "group_id": pipeline.group_id,
        "target": pipeline.sink.name,
        "ranges": ranges,
        "batches": list(done.batches),
        "records": done.records,
        "rows": done.rows,
        "dead_letters": done.dead_letters,
        "complete": result.complete,
    }
