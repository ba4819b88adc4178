"""The Airflow plugin: `macros.kafka_offsets` in templates."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin


def positions(conn_id: str, group_id: str, schema: str | None = None, prefix: str = "") -> dict[str, dict[int, int]]:
    """Return the stored positions of a group, for templates: `{{ macros.kafka_offsets.positions('warehouse', 'orders') }}`.

    :param conn_id: the Airflow connection of the database
    :param group_id: the group
    :param schema: the database schema of the state tables
    :param prefix: prefix of the names of the state tables
    :return: the next offset to read, by topic and partition; empty for an unknown group
    """
    from airflow_kafka_offsets.hooks.connections import open_database
    from airflow_kafka_offsets.ledger.positions import read_positions
    from airflow_kafka_offsets.ledger.tables import Ledger, Tables

    with open_database(conn_id) as engine:
        stored = read_positions(Ledger(engine, Tables.of(schema, prefix)), group_id)
    offsets: dict[str, dict[int, int]] = {}
    for tp, position in sorted(stored.items()):
        offsets.setdefault(tp.topic, {})[tp.partition] = position.offset
    return offsets


class KafkaOffsetsPlugin(AirflowPlugin):
    """The plugin that Airflow loads by its entry point `airflow.plugins`."""

    name = "kafka_offsets"
    macros = [positions]  # noqa: RUF012 - Airflow declares it as a list on the class
