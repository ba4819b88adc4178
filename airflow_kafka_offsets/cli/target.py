"""`airflow kafka-offsets replay` and `verify`: a range of records, loaded into a table beside the loads; the proof of what was loaded."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace

from airflow_kafka_offsets.cli.command import command, database, offset_bounds, usage, whole_topics
from airflow_kafka_offsets.cli.output import note, show
from airflow_kafka_offsets.exceptions import ConfigurationError, VerificationError
from airflow_kafka_offsets.formats.json_format import Json
from airflow_kafka_offsets.formats.raw import Raw
from airflow_kafka_offsets.hooks.connections import kafka_config, make_launcher
from airflow_kafka_offsets.ledger.batch_rows import current_user
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.replaying.bounds import BatchBounds, Bounds, TimeBounds
from airflow_kafka_offsets.replaying.replay import replay as replay_range
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification import verify as verification


@command("replay")
def replay(args: Namespace) -> None:
    """Load a range, and print the result."""
    bounds = _bounds(args)
    topics = whole_topics(args, "partitions are named with their offsets: --offsets TOPIC:PARTITION:START-END")
    with database(args) as ledger:
        pipeline = replace(
            make_pipeline(args, topics, ledger.tables),
            on_bad_record=args.on_bad_record,
            isolation_level=args.isolation_level,
        )
        result = replay_range(
            pipeline,
            bounds,
            kafka_config=kafka_config(args.kafka_conn_id),
            engine=ledger.engine,
            launcher=make_launcher(args.spark_conn_id, name=f"replay.{args.group}"),
            max_records=args.max_records,
            on_data_loss=args.on_data_loss,
            replace=args.replace,
            reason=args.reason,
            who=args.who or current_user(),
        )
    show([asdict(result)], args.output)


def make_pipeline(args: Namespace, topics: Sequence[str], tables: Tables) -> Pipeline:
    """Return the pipeline into the table of the arguments."""
    return Pipeline(
        group_id=args.group,
        topics=tuple(topics),
        value_format=Json(args.columns) if args.columns is not None else Raw(),
        sink=SqlTable(args.table, args.table_schema, upsert_key=tuple(args.upsert_key or ())),
        transform=args.transform,
        staging_dir=args.staging_dir,
        tables=tables,
    )


@command("verify")
def verify(args: Namespace) -> None:
    """Print what was proved, or else every violation.

    :raises VerificationError: something is wrong
    """
    config = kafka_config(args.kafka_conn_id) if args.kafka_conn_id is not None else None
    sink = SqlTable(args.table, args.table_schema, upsert_key=tuple(args.upsert_key or ()))
    with database(args) as ledger:
        try:
            coverage = verification.verify(
                args.group,
                sink=sink,
                engine=ledger.engine,
                tables=ledger.tables,
                kafka_config=config,
                isolation_level=args.isolation_level,
            )
        except VerificationError as error:
            show([asdict(violation) for violation in error.violations], args.output)
            raise
        show([asdict(coverage)], args.output)
        if not coverage.output_checked:
            with ledger.connect() as conn:
                note(verification.describe_unchecked(sink.rows(conn).limit))


@usage()
def _bounds(args: Namespace) -> Bounds:
    """Return the range to replay.

    :raises ConfigurationError: no range is given, or more than one
    """
    between = args.since is not None or args.until is not None
    if (args.offsets is not None) + between + (args.batch is not None) != 1:
        raise ConfigurationError("A replay takes either --offsets, or --since and --until, or --batch")
    if args.all_records and args.since is None:
        raise ConfigurationError("--all-records needs --since: it takes the records of a span of time")
    if args.batch is not None:
        return BatchBounds(args.batch)
    if between:
        if args.since is None:
            raise ConfigurationError("--until needs --since: where the replay begins")
        return TimeBounds(args.since, args.until, args.all_records)
    return offset_bounds(args.offsets)
