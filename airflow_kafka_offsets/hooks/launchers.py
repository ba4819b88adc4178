"""The table of launchers, by the type of an Airflow connection.

To add a launcher, write a module with a class that is a `spark.launcher.Launcher` and takes what `make_launcher` passes, and add a
line to `LAUNCHERS`. `SessionLauncher` is not in the table: its caller passes a session, and no connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from airflow_kafka_offsets.exceptions import ConfigurationError

if TYPE_CHECKING:
    from airflow_kafka_offsets.spark.launcher import Launcher

LAUNCHERS = {"spark": "airflow_kafka_offsets.hooks.spark:SparkSubmitLauncher"}
"""The class of the launcher for each type of connection."""


def make_launcher(conn_id: str, *, conf: Mapping[str, Any] | None = None, name: str) -> Launcher:
    """Return the launcher for a connection.

    :param conf: Spark properties; they take precedence over those that the package sets
    :param name: the name of the Spark application
    :raises AirflowNotFoundException: the connection does not exist
    :raises ConfigurationError: the table has no launcher for the type of the connection
    """
    conn_type = BaseHook.get_connection(conn_id).conn_type
    if conn_type not in LAUNCHERS:
        raise ConfigurationError(
            f"Connection {conn_id!r} has type {conn_type!r}; Spark is launched through connections of type {', '.join(LAUNCHERS)}"
        )
    module, _, class_name = LAUNCHERS[conn_type].partition(":")
    launcher: Launcher = getattr(import_module(module), class_name)(conn_id, conf=conf, name=name)
    return launcher
