"""`airflow kafka-offsets doctor`: the table of its checks, which are in `doctor_checks`; runs them, and prints what
they found.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from airflow_kafka_offsets.cli.command import command, describe_error, one_line
from airflow_kafka_offsets.cli.doctor_checks import CheckContext
from airflow_kafka_offsets.cli.doctor_database import CheckFailedError, CheckSkipped, CheckWarning
from airflow_kafka_offsets.cli.output import show
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.database.errors import database_message
from airflow_kafka_offsets.exceptions import ConfigurationError, KafkaOffsetsError

_SECRET_WORDS = ("password", "secret", "token", "passphrase", "key.pem", "jaas")


class _Check(NamedTuple):
    """A check.

    :param fix: what the user can do if it fails or warns, unless the failure has a better answer
    :param needs: the checks that must be ok, and why this one is skipped otherwise; an empty reason leaves it out
    """

    name: str
    look: Callable[[CheckContext], str]
    fix: str
    needs: Mapping[str, str]


_DATABASE = {"database": "the database is not reached"}
_KAFKA = {"Kafka connection": "there is no configuration"}
_SPARK = {"Spark connection": "there is no connection"}
_TOPICS = {**_KAFKA, "Kafka topics": "the topics are not read"}
_FIX_KAFKA = "correct bootstrap.servers, security.protocol and the credentials, or start the broker"
_FIX_SECURITY = "see SECURITY.md"

_CHECKS = (
    _Check("versions", CheckContext.versions, "reinstall airflow-kafka-offsets", {}),
    _Check("database", CheckContext.database, "correct the connection, or start the database", {}),
    _Check("database security", CheckContext.database_security, _FIX_SECURITY, _DATABASE),
    _Check(
        "state tables",
        CheckContext.state_tables,
        "ask a user who may run DDL to apply the output of 'airflow kafka-offsets init --show-sql'",
        _DATABASE,
    ),
    _Check(
        "rights",
        CheckContext.rights,
        "GRANT the missing rights to the user",
        {**_DATABASE, "state tables": "there are no state tables to check"},
    ),
    _Check(
        "target",
        CheckContext.target,
        "GRANT what is missing, create the table, or name another one with --table and --table-schema",
        _DATABASE,
    ),
    _Check(
        "between commits",
        CheckContext.between_commits,
        "if no task works on it right now, run the load once more: it looks what the target has, and does the rest",
        {"state tables": ""},
    ),
    _Check("binary COPY", CheckContext.binary_copy, "pip install 'airflow-kafka-offsets[postgres]'", {"database": ""}),
    _Check(
        "Kafka connection",
        CheckContext.kafka_connection,
        "add a connection of type kafka whose extra has 'bootstrap.servers'",
        {},
    ),
    _Check("Kafka security", CheckContext.kafka_security, _FIX_SECURITY, _KAFKA),
    _Check("Kafka cluster", CheckContext.kafka_cluster, _FIX_KAFKA, _KAFKA),
    _Check(
        "Kafka topics",
        CheckContext.kafka_topics,
        "correct the name, add the ACL Read on the topic, or start the broker",
        {**_KAFKA, "Kafka cluster": "the cluster is not reached"},
    ),
    _Check(
        "headroom in time",
        CheckContext.headroom,
        "for a min_headroom that is a duration, add the ACL DescribeConfigs on the topics",
        _TOPICS,
    ),
    _Check("PySpark", CheckContext.pyspark, "pip install 'airflow-kafka-offsets[spark]'", {}),
    _Check("Java", CheckContext.java, "install a Java runtime, and set JAVA_HOME if it is not on the PATH", {}),
    _Check(
        "Spark connection",
        CheckContext.spark_connection,
        "add a connection of type spark, with the master as its host: local[*], spark://…, yarn, k8s://…; or of type "
        "spark_connect",
        {},
    ),
    _Check(
        "spark-submit",
        CheckContext.spark_submit,
        "install the extra [spark], and correct the connection's extra",
        {**_SPARK, "Java": "it needs Java"},
    ),
    _Check("Spark security", CheckContext.spark_security, _FIX_SECURITY, _SPARK),
    _Check("Spark master", CheckContext.spark_master, "start the master, or correct the connection", _SPARK),
)


@command("doctor")
def doctor(args: Namespace) -> None:
    """Run all checks, and fail if one of them did. No check ends the command, and no finding contains a secret."""
    machine = CheckContext(args)
    secrets = [*_secrets(args.conn_id), *_secrets(args.kafka_conn_id), *_secrets(args.spark_conn_id)]
    results: dict[str, str] = {}
    rows = []
    for check in _CHECKS:
        missing = next((reason for needed, reason in check.needs.items() if results[needed] != "ok"), None)
        if missing == "":
            continue
        result, found, fix = ("skipped", missing, None) if missing else _run(check, machine)
        for secret in secrets:
            found = found.replace(secret, "***")
        results[check.name] = result
        rows.append({"check": check.name, "result": result, "found": one_line(found), "fix": fix})
    show(rows, args.output)
    failed = [check for check, result in results.items() if result == "failed"]
    if failed:
        raise ConfigurationError(
            f"{count(len(failed), 'check')} failed: {', '.join(failed)}; the column FIX says what to do"
        )


def _run(check: _Check, machine: CheckContext) -> tuple[str, str, str | None]:
    """Run a check, and return its result, what it found, and how to mend what failed."""
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
    except (AirflowException, KafkaOffsetsError, SQLAlchemyError, ImportError) as error:
        return "failed", describe_error(error, machine.connections), check.fix
    except Exception as error:
        # The message of an unexpected error may contain anything.
        return "failed", f"an unexpected error: {type(error).__module__}.{type(error).__name__}", check.fix


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
