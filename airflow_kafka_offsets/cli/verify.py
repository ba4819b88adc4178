"""`airflow kafka-offsets verify`."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict

from airflow_kafka_offsets.cli.command import command, database
from airflow_kafka_offsets.cli.output import note, show
from airflow_kafka_offsets.exceptions import VerificationError
from airflow_kafka_offsets.hooks.connections import kafka_config
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification import verify as verification


@command("verify")
def verify(args: Namespace) -> None:
    """Print what was proved, or else every violation.

    :raises VerificationError: something is wrong
    """
    config = kafka_config(args.kafka_conn_id) if args.kafka_conn_id is not None else None
    sink = SqlTable(args.table, args.table_schema, upsert_key=tuple(args.upsert_key or ()))
    with database(args) as (engine, tables):
        try:
            coverage = verification.verify(
                args.group,
                sink=sink,
                engine=engine,
                tables=tables,
                kafka_config=config,
                isolation_level=args.isolation_level,
            )
        except VerificationError as error:
            show([asdict(violation) for violation in error.violations], args.output)
            raise
        show([asdict(coverage)], args.output)
        if not coverage.output_checked:
            with engine.connect() as conn:
                note(verification.describe_unchecked(sink.rows(conn).limit))
