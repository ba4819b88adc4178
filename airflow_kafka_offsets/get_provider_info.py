"""The provider's metadata. Standard library only, because Airflow reads it while it loads its configuration."""

from __future__ import annotations

from typing import Any

from airflow_kafka_offsets import __version__

_NAME = "Kafka offsets"

_LINKS = ("GroupLink", "BatchLink", "RewindLink")


def get_provider_info() -> dict[str, Any]:
    """Return the metadata in the form of Airflow's `provider_info.schema.json`."""
    source = "https://github.com/airflow-kafka-offsets/airflow-kafka-offsets"
    return {
        "package-name": "airflow-kafka-offsets",
        "name": _NAME,
        "description": "Load Kafka topics in batches with Spark: output and offsets in one database transaction.",
        "versions": [__version__],
        "integrations": [{"integration-name": _NAME, "external-doc-url": source, "tags": ["apache"]}],
        "task-decorators": [
            {"class-name": "airflow_kafka_offsets.operators.task_decorator.kafka_batch_task", "name": "kafka_batch"}
        ],
        "operators": _modules("operators", "batch", "positions"),
        "sensors": _modules("sensors", "lag"),
        "triggers": _modules("triggers", "lag"),
        "hooks": _modules("hooks", "connections", "spark"),
        "extra-links": [f"airflow_kafka_offsets.hooks.links.{name}" for name in _LINKS],
        "plugins": [{"name": "kafka_offsets", "plugin-class": "airflow_kafka_offsets.plugin.KafkaOffsetsPlugin"}],
        "config": {
            "kafka_offsets": {
                "description": "Settings of the provider airflow-kafka-offsets.",
                "options": _options(),
            }
        },
        "cli": ["airflow_kafka_offsets.cli.airflow_program.get_commands"],
    }


def _options() -> dict[str, dict[str, Any]]:
    return {
        "conn_ids": _option(
            "Databases whose groups the web interface shows, besides those of DAGs: connection ids, separated by "
            "commas, each with ?schema=, &prefix= and &kafka_conn_id= where the state tables are not in the default "
            "schema, or the topics not in the cluster of kafka_default.",
            example="warehouse,lake?schema=orders_team&kafka_conn_id=kafka_eu",
        ),
        "rewind_in_web_interface": _option(
            "Whether users who may edit a DAG of a group can move its positions in the web interface. Otherwise only "
            "the command line and tasks move positions.",
            type="boolean",
            default="True",
        ),
        "class_archives": _option(
            "The directory in which 'kafka-offsets archive-classes' writes the classes of Spark, and loads "
            "find them; only root and the user of the workers may write to it. By default airflow-kafka-offsets in "
            "the user's cache directory.",
            example="/opt/airflow/classes",
        ),
        "spark_environment": _option(
            "Environment variables of the worker that spark-submit inherits besides those that Spark, Java, Python "
            "and object stores need: names, with * for any characters, separated by commas. Their values must not be "
            "secrets of Airflow: a transform can read them.",
            example="OUR_REGION,FEATURE_*",
        ),
    }


def _option(description: str, **others: str) -> dict[str, Any]:
    unless_given = {"version_added": None, "type": "string", "example": None, "default": ""}
    return {"description": description, **unless_given, **others}


def _modules(package: str, *names: str) -> list[dict[str, Any]]:
    modules = [f"airflow_kafka_offsets.{package}.{name}" for name in names]
    return [{"integration-name": _NAME, "python-modules": modules}]
