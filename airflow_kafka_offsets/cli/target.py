"""`kafka-offsets replay` loads a range of records, in addition to the loads; `verify` proves what was loaded."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict, replace

from airflow_kafka_offsets.cli.command import check_change, confirm, database, offset_bounds, usage, whole_topics
from airflow_kafka_offsets.cli.load_target import check_target, pipeline_of, target_of, unparsed
from airflow_kafka_offsets.cli.output import note, show
from airflow_kafka_offsets.core.options import DeadLetters, Limits
from airflow_kafka_offsets.escaping import command_line
from airflow_kafka_offsets.exceptions import ConfigurationError, VerificationError
from airflow_kafka_offsets.ledger.batch_rows import current_user
from airflow_kafka_offsets.loading.parameters import OnBadRecord
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.replaying.bounds import BatchBounds, Bounds, TimeBounds
from airflow_kafka_offsets.replaying.replay import replay as replay_range
from airflow_kafka_offsets.verification import verify as verification


def replay(args: Namespace) -> None:
    """Load a range, and print the result."""
    bounds = _bounds(args)
    check_target(args, "A replay")
    topics = whole_topics(args, "partitions are named with their offsets: --offsets TOPIC:PARTITION:START-END")
    with usage():
        if not topics and args.dag_id is None:
            raise ConfigurationError("A replay needs --topic, or --dag-id and --task-id of the load")
    check_change(args, needs_reason=args.replace)
    with database(args) as ledger:
        pipeline, kafka_conn_id, spark, connections = pipeline_of(args, topics)
        reading = replace(pipeline.reading, isolation_level=args.isolation_level or pipeline.reading.isolation_level)
        pipeline = replace(pipeline, on_bad_record=_on_bad_record(args, pipeline), reading=reading)
        rows = "rows of it that are there stay, and without an upsert key are duplicated"
        if args.replace:
            rows = "the earlier rows of it, and their dead letters, are removed in the same transaction"
        confirm(args, f"The range is loaded into {pipeline.sink.name!r}{unparsed(args)}: {rows}")
        result = replay_range(
            pipeline,
            bounds,
            kafka_config=args.connections.kafka_config(kafka_conn_id),
            engine=ledger.engine,
            launcher=args.connections.launcher(*spark, name=f"replay.{args.group}"),
            limits=Limits(max_records=args.max_records),
            on_data_loss=args.on_data_loss,
            replace=args.replace,
            reason=args.reason,
            who=args.who or current_user(),
            connections=connections,
        )
    show([asdict(result)], args.output)


def verify(args: Namespace) -> None:
    """Print what was proved, or else the first violations, each with the number of all.

    :raises VerificationError: something is wrong
    """
    check_target(args, "A proof")
    config = args.connections.kafka_config() if args.connections.names_kafka else None
    sink, isolation_level, connections = target_of(args, args.table)
    with database(args) as ledger:
        try:
            coverage = verification.verify(
                args.group,
                sink=sink,
                engine=ledger.engine,
                tables=ledger.tables,
                kafka_config=config,
                isolation_level=args.isolation_level or isolation_level,
                connections=connections,
            )
        except VerificationError as error:
            show([asdict(violation) | {"violations": error.count} for violation in error.violations], args.output)
            raise
        show([asdict(coverage)], args.output)
        if coverage.output_checked:
            note(
                f"Proved: every record of group {args.group!r} before its positions was loaded into {sink.name!r} "
                f"exactly once, or dead-lettered ({coverage.text})"
            )
            if coverage.rows_after:
                words = ["rewind", args.group, "--to-current", "--replace", *([args.table] if args.table else [])]
                for name in ("table_schema", "dag_id", "task_id", "conn_id", "schema", "prefix"):
                    if value := getattr(args, name, None):
                        words += [f"--{name.replace('_', '-')}", value]
                note(
                    f"Before the next load, {command_line(*words)} counts the rows that it would duplicate; with "
                    "--execute --reason WHY, it removes them"
                )
        else:
            with ledger.connect() as conn:
                note(verification.describe_unchecked(sink.connect(ledger.engine, connections).rows(conn)))


def _on_bad_record(args: Namespace, pipeline: Pipeline) -> OnBadRecord:
    if args.on_bad_record == "dead-letters":
        return pipeline.dead_letters or DeadLetters()
    return args.on_bad_record or pipeline.on_bad_record


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
        between_instants = TimeBounds(args.since, args.until, args.all_records)
        between_instants.span()  # raises before the replay is confirmed
        return between_instants
    return offset_bounds(args.offsets)
