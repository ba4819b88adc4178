"""The Airflow plugin: pages in the web interface, and `macros.kafka_offsets` in templates."""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_kafka_offsets.hooks.links import PAGES

log = logging.getLogger(__name__)


def positions(conn_id: str, group_id: str, schema: str | None = None, prefix: str = "") -> dict[str, dict[int, int]]:
    """Return the stored positions of a group, for templates: `{{ macros.kafka_offsets.positions('warehouse', 'orders')
    }}`.

    :param conn_id: the Airflow connection of the database
    :param group_id: the group
    :param schema: the database schema of the state tables
    :param prefix: prefix of the names of the state tables
    :return: the next offset to read, by topic and partition; empty for an unknown group
    """
    from airflow_kafka_offsets.hooks.connections import open_ledger
    from airflow_kafka_offsets.ledger.positions import read_positions

    with open_ledger(conn_id, schema, prefix) as ledger:
        stored = read_positions(ledger, group_id)
    offsets: dict[str, dict[int, int]] = {}
    for tp, position in sorted(stored.items()):
        offsets.setdefault(tp.topic, {})[tp.partition] = position.offset
    return offsets


class _Apps:
    """The apps of the plugin, created where they are asked for: every process of Airflow imports the plugin, and the
    API server alone serves pages.
    """

    def __get__(self, instance: object, owner: type) -> list[dict[str, Any]]:
        return _apps()


@cache
def _apps() -> list[dict[str, Any]]:
    try:
        from airflow_kafka_offsets.plugin.app import create_app
    except ImportError:
        # Without Airflow's own login there are no pages, but there is an Airflow.
        log.exception("The pages of Kafka offsets cannot be served: something that they import is missing")
        return []
    return [{"app": create_app(), "url_prefix": f"/{PAGES}", "name": "Kafka offsets"}]


class KafkaOffsetsPlugin(AirflowPlugin):
    """The plugin that Airflow loads by its entry point `airflow.plugins`."""

    name = "kafka_offsets"
    macros = [positions]  # noqa: RUF012 - Airflow declares it as a list on the class
    fastapi_apps = _Apps()
    # Relative to the page, which may be below a prefix.
    external_views = [  # noqa: RUF012
        {
            "name": "Kafka offsets",
            "href": f"{PAGES}/",
            "destination": "nav",
            "category": "browse",
            "url_route": PAGES,
        },
        {
            "name": "Kafka offsets",
            "href": f"{PAGES}/dags/{{DAG_ID}}",
            "destination": "dag",
            "url_route": f"{PAGES}-of-dag",
        },
    ]
