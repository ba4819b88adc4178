"""`kafka-offsets doctor`: runs the checks, which are in `doctor_checks`, and prints what they found."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from airflow.sdk import BaseHook
from sqlalchemy.exc import DBAPIError

from airflow_kafka_offsets.cli.command import describe_error, one_line
from airflow_kafka_offsets.cli.doctor_checks import CHECKS, Check, CheckContext
from airflow_kafka_offsets.cli.doctor_database import CheckFailedError, CheckSkipped, CheckWarning
from airflow_kafka_offsets.cli.output import show
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.database.errors import database_message
from airflow_kafka_offsets.exceptions import ConfigurationError

_SECRET_WORDS = ("password", "secret", "token", "passphrase", "key.pem", "jaas")


def doctor(args: Namespace) -> None:
    """Run all checks, and fail if one of them did. No check ends the command, and no finding contains a secret."""
    machine = CheckContext(args)
    secrets = [*_secrets(args.conn_id), *_secrets(args.kafka_conn_id), *_secrets(args.spark_conn_id)]
    results: dict[str, str] = {}
    rows = []
    for check in CHECKS:
        missing = next((reason for needed, reason in check.needs.items() if results[needed] != "ok"), None)
        if missing == "":
            continue
        result, found, fix = ("skipped", missing, None) if missing else _run(check, machine)
        for secret in secrets:
            found = found.replace(secret, "***")
        results[check.name] = result
        rows.append({"check": check.name, "result": result, "found": one_line(found), "fix": fix})
    show(rows, args.output)
    if failed := [check for check, result in results.items() if result == "failed"]:
        raise ConfigurationError(
            f"{count(len(failed), 'check')} failed: {', '.join(failed)}; the column FIX says what to do"
        )


def _run(check: Check, machine: CheckContext) -> tuple[str, str, str | None]:
    """Run a check, and return its result, what it found, and how to fix it."""
    try:
        return "ok", check.look(machine), None
    except CheckSkipped as reason:
        return "skipped", str(reason), None
    except CheckWarning as error:
        return "warning", str(error), check.fix
    except CheckFailedError as error:
        return "failed", str(error), error.fix or check.fix
    except DBAPIError as error:
        # Not as other commands report it: they refer the user to doctor.
        return "failed", f"the database says: {database_message(error)}", check.fix
    except Exception as error:
        # The message of an unexpected error may contain anything.
        unexpected = f"an unexpected error: {type(error).__module__}.{type(error).__name__}"
        return "failed", describe_error(error, machine.connections) or unexpected, check.fix


def _secrets(conn_id: str) -> Iterator[str]:
    """Yield the values of a connection that are secret, by their names."""
    try:
        connection = BaseHook.get_connection(conn_id)
    except Exception:
        return
    if connection.password:
        yield connection.password
    for key, value in connection.extra_dejson.items():
        if isinstance(value, str) and value and any(word in key.lower() for word in _SECRET_WORDS):
            yield value
