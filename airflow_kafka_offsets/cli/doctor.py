"""`airflow kafka-offsets doctor`: prints whether loads can run here, check by check."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from airflow_kafka_offsets.cli.checks import Checks
from airflow_kafka_offsets.cli.command import command
from airflow_kafka_offsets.cli.output import show
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.exceptions import ConfigurationError


@command("doctor")
def doctor(args: Namespace) -> None:
    """Run all checks, and fail if one of them did."""
    # Imported here, so that a missing package does not end the command before its first check.
    from airflow_kafka_offsets.cli import doctor_checks

    checks = Checks((args.conn_id, args.kafka_conn_id, args.spark_conn_id))
    doctor_checks.check_versions(checks)
    topics = doctor_checks.check_database(checks, args.conn_id, args.schema, args.prefix)
    doctor_checks.check_kafka(checks, args.kafka_conn_id, args.topics or topics)
    doctor_checks.check_spark(checks, args.spark_conn_id)
    show([asdict(finding) for finding in checks.findings], args.output)
    failed = [finding.check for finding in checks.findings if finding.result == "failed"]
    if failed:
        raise ConfigurationError(
            f"{count(len(failed), 'check')} failed: {', '.join(failed)}; the column FIX says what to do"
        )
