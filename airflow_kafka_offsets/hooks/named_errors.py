"""How a task raises the errors of this package: with the parameter that named the connection, and without the
tracebacks of what caused them, which Airflow would log before the message.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

from airflow.providers.common.compat.sdk import AirflowNotFoundException

from airflow_kafka_offsets.exceptions import KafkaOffsetsError

Method = TypeVar("Method", bound=Callable[..., Any])

# What names connections, besides the task itself.
_HOLDERS = ("sink", "replace", "spark", "value_format", "extra_columns.key_format")

_PARAMETERS = ("kafka_conn_id", "conn_id", "registry_conn_id", "storage_conn_id", "catalog_conn_id")

_MISSING = (
    "there is no such connection. Correct the name, or add the connection ('airflow connections add', or Admin > "
    "Connections); a secrets backend that does not answer looks the same"
)

_ID = re.compile(r"Connection '[^']*'(: )?")


def with_named_connections(method: Method) -> Method:
    """Return a method of a task that raises errors with the parameter that named the connection, and logs at debug
    level what caused them.
    """

    @wraps(method)
    def named(task: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return method(task, *arguments, **options)
        except (KafkaOffsetsError, AirflowNotFoundException) as error:
            task.log.debug("The traceback of the error", exc_info=True)
            raised = with_names(task, error)
        # Outside of the handlers: the error is raised without those that caused it.
        raise raised.with_traceback(None) from None

    return cast("Method", named)


def with_names(task: Any, error: Exception) -> Exception:
    """Return an error with the parameters of a task that named the connection that it is about."""
    about = getattr(error, "about", ())
    named = _named_by(task, about, str(error))
    if isinstance(error, KafkaOffsetsError):
        if named and not error.named and (found := _ID.match(message := str(error))) is not None:
            # The name of the parameter says it.
            error.args = (f"{'' if found[1] else 'The connection'}{message[found.end() :]}",)
        error.named = error.named or named
        conn_id = _value(task, "sink.conn_id") or _value(task, "conn_id")
        if isinstance(conn_id, str):
            # Of a command to run: only the task knows it.
            option = f"--conn-id {shlex.quote(conn_id)}"
            error.args = tuple(
                each.replace("--conn-id CONN_ID", option) if isinstance(each, str) else each for each in error.args
            )
    elif named:
        return AirflowNotFoundException(f"{named}{_MISSING}")
    return error


def _named_by(task: Any, about: tuple[str, ...], message: str) -> str:
    """Return the parameters that name the connection of a message, as its beginning.

    :param about: see `KafkaOffsetsError`; empty where the message may quote the id of a connection
    """
    given = {
        f"{holder}.{parameter}".removeprefix("."): conn_id
        for holder in ("", *_HOLDERS)
        for parameter in _PARAMETERS
        if isinstance(conn_id := _value(task, f"{holder}.{parameter}"), str)
    }
    found = [
        f"{name}={conn_id!r}"
        for name, conn_id in given.items()
        if (name.rpartition(".")[2] in about and name != "spark.conn_id")
        or (not about and (f"Connection {conn_id!r}" in message or f"`{conn_id}`" in message))
    ]
    return f"{', '.join(found)}: " if found else ""


def _value(task: Any, path: str) -> Any:
    value = task
    for name in path.split("."):
        value = getattr(value, name, None) if name else value
    return value
