"""`airflow kafka-offsets doctor`: whether loads can run here, check by check."""

from __future__ import annotations

from argparse import Namespace
from typing import NoReturn

from airflow_kafka_offsets.cli.checks import Checks, Finding
from airflow_kafka_offsets.cli.command import command
from airflow_kafka_offsets.cli.output import show
from airflow_kafka_offsets.exceptions import ConfigurationError


@command("doctor")
def doctor(args: Namespace) -> None:
    """Make all checks, and fail where one of them did."""
    # Here, so that what is not installed is a finding and not the end.
    from airflow_kafka_offsets.cli import doctor_checks

    checks = Checks((args.conn_id, args.kafka_conn_id, args.spark_conn_id))
    doctor_checks.check_versions(checks)
    topics = doctor_checks.check_database(checks, args.conn_id, args.schema, args.prefix)
    doctor_checks.check_kafka(checks, args.kafka_conn_id, args.topics or topics)
    doctor_checks.check_spark(checks, args.spark_conn_id)
    show([_row(one) for one in checks.findings], args.output)
    failed = [one.check for one in checks.findings if one.result == "failed"]
    if failed:
        _end(failed)


def _row(one: Finding) -> dict[str, str | None]:
    return {"check": one.check, "result": one.result, "found": one.found, "fix": one.fix}


def _end(failed: list[str]) -> NoReturn:
    raise ConfigurationError(
        f"{len(failed)} {'check' if len(failed) == 1 else 'checks'} failed: {', '.join(failed)}; the column FIX says what to do"
    )
