"""SQLAlchemy engines for Airflow's SQL connections."""

from __future__ import annotations

from airflow.sdk import BaseHook
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import ConfigurationError


def database_engine(conn_id: str) -> Engine:
    """Return the engine of the connection's own hook, which logs in as its provider does.

    :raises AirflowNotFoundException: there is no such connection
    :raises ConfigurationError: its hook has no SQLAlchemy engine
    """
    connection = BaseHook.get_connection(conn_id)
    hook = connection.get_hook()  # type: ignore[no-untyped-call]
    if not hasattr(hook, "get_sqlalchemy_engine"):
        raise ConfigurationError(
            f"Connection {conn_id!r} is of type {connection.conn_type!r}, which is no SQL database: the target and the "
            "positions must be in one"
        )
    # Error messages must not show the values of rows.
    engine: Engine = hook.get_sqlalchemy_engine(engine_kwargs={"hide_parameters": True})
    return engine
