"""Any Airflow SQL connection as an engine."""

from __future__ import annotations

from airflow.sdk import BaseHook
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import ConfigurationError


def database_engine(conn_id: str) -> Engine:
    """The engine of a connection's own hook, so that its provider's way to log in is kept.

    :raises AirflowNotFoundException: there is no such connection
    :raises ConfigurationError: its hook gives no SQLAlchemy engine
    """
    connection = BaseHook.get_connection(conn_id)
    hook = connection.get_hook()  # type: ignore[no-untyped-call]
    if not hasattr(hook, "get_sqlalchemy_engine"):
        raise ConfigurationError(
            f"Connection {conn_id!r} is of type {connection.conn_type!r}, which is no SQL database: the target and the "
            "positions have to live in one"
        )
    # Values of rows and positions do not belong into error texts.
    engine: Engine = hook.get_sqlalchemy_engine(engine_kwargs={"hide_parameters": True})
    return engine
