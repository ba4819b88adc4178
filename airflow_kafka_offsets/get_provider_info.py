"""The provider's metadata. Standard library only, because Airflow reads it while it loads its configuration."""

from __future__ import annotations

from typing import Any

from airflow_kafka_offsets import __version__

_NAME = "Kafka offsets"


def get_provider_info() -> dict[str, Any]:
    """Return the metadata in the form of Airflow's `provider_info.schema.json`."""
    return {
        "package-name": "airflow-kafka-offsets",
        "name": _NAME,
        "description": "Load Kafka topics in batches with Spark: output and offsets in one database transaction.",
        "versions": [__version__],
        "integrations": [
            {
                "integration-name": _NAME,
                "external-doc-url": "https://github.com/airflow-kafka-offsets/airflow-kafka-offsets",
                "tags": ["apache"],
            }
        ],
        "task-decorators": [
            {"class-name": "airflow_kafka_offsets.operators.task_decorator.kafka_batch_task", "name": "kafka_batch"}
        ],
        "operators": _modules("operators", "batch", "positions"),
        "sensors": _modules("sensors", "lag"),
        "triggers": _modules("triggers", "lag"),
        "hooks": _modules("hooks", "connections", "spark"),
        "extra-links": [
            f"airflow_kafka_offsets.hooks.links.{name}" for name in ("GroupLink", "BatchLink", "RewindLink")
        ],
        "plugins": [{"name": "kafka_offsets", "plugin-class": "airflow_kafka_offsets.plugin.KafkaOffsetsPlugin"}],
        "config": {
            "kafka_offsets": {
                "description": "Settings of the provider airflow-kafka-offsets.",
                "options": {
                    "conn_ids": {
                        "description": "Databases whose groups the web interface shows, besides those that tasks of "
                        "DAGs name: ids of connections, separated by commas, each with ?schema=, &prefix= and "
                        "&kafka_conn_id= where the state tables are not in the default schema, or the topics not in "
                        "the cluster of kafka_default.",
                        "version_added": None,
                        "type": "string",
                        "example": "warehouse,lake?schema=orders_team&kafka_conn_id=kafka_eu",
                        "default": "",
                    },
                    "rewind_in_web_interface": {
                        "description": "Whether positions can be moved in the web interface, by who may edit a DAG of "
                        "their group. Without it, that needs the command line or a task.",
                        "version_added": None,
                        "type": "boolean",
                        "example": None,
                        "default": "True",
                    },
                    "class_archives": {
                        "description": "Where 'airflow kafka-offsets archive-classes' writes the classes of Spark, "
                        "and loads find them: a directory that only root and the user of the workers may write to. By "
                        "default airflow-kafka-offsets in the user's cache directory.",
                        "version_added": None,
                        "type": "string",
                        "example": "/opt/airflow/classes",
                        "default": "",
                    },
                    "spark_environment": {
                        "description": "Environment variables of the worker that spark-submit inherits besides those "
                        "that Spark, Java, Python and object stores need: names, with * for any letters, separated by "
                        "commas. Their values must not be secrets of Airflow: a transform can read them.",
                        "version_added": None,
                        "type": "string",
                        "example": "OUR_REGION,FEATURE_*",
                        "default": "",
                    },
                },
            }
        },
        "cli": ["airflow_kafka_offsets.cli.get_commands"],
    }


def _modules(package: str, *names: str) -> list[dict[str, Any]]:
    modules = [f"airflow_kafka_offsets.{package}.{name}" for name in names]
    return [{"integration-name": _NAME, "python-modules": modules}]
