"""The provider's metadata. Standard library only, because Airflow reads it while it loads its configuration."""

from __future__ import annotations

from typing import Any

from airflow_kafka_offsets import __version__


def get_provider_info() -> dict[str, Any]:
    """Return the metadata in the form of Airflow's `provider_info.schema.json`."""
    name = "Kafka offsets"
    return {
        "package-name": "airflow-kafka-offsets",
        "name": name,
        "description": "Load Kafka topics in batches with Spark: output and offsets in one database transaction.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": name,
                "external-doc-url": "https://github.com/airflow-kafka-offsets/airflow-kafka-offsets",
                "tags": ["apache"],
            }
        ],
        "operators": [
            {
                "integration-name": name,
                "python-modules": [
                    "airflow_kafka_offsets.operators.batch",
                    "airflow_kafka_offsets.operators.replay",
                    "airflow_kafka_offsets.operators.rewind",
                    "airflow_kafka_offsets.operators.verify",
                ],
            }
        ],
        "sensors": [{"integration-name": name, "python-modules": ["airflow_kafka_offsets.sensors.lag"]}],
        "triggers": [{"integration-name": name, "python-modules": ["airflow_kafka_offsets.triggers.lag"]}],
        "hooks": [
            {
                "integration-name": name,
                "python-modules": [
                    "airflow_kafka_offsets.hooks.database",
                    "airflow_kafka_offsets.hooks.kafka",
                    "airflow_kafka_offsets.hooks.spark",
                ],
            }
        ],
        "plugins": [{"name": "kafka_offsets", "plugin-class": "airflow_kafka_offsets.plugin.KafkaOffsetsPlugin"}],
        "cli": ["airflow_kafka_offsets.cli.get_commands"],
    }
