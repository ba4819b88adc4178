"""`kafka-offsets show`, `lag` and `plan`: how far behind a group is, and what its next batch would load.

They print what `lag.measure` and `loading.plan` return.
"""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_kafka_offsets.cli.command import cluster, database, scope, usage, whole_topics
from airflow_kafka_offsets.cli.output import note, show
from airflow_kafka_offsets.core.instants import check_start
from airflow_kafka_offsets.core.log_identity import check_cluster
from airflow_kafka_offsets.core.options import Limits
from airflow_kafka_offsets.core.parameters import check
from airflow_kafka_offsets.core.text import count, first_reason
from airflow_kafka_offsets.escaping import command_line
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    KafkaOffsetsError,
    KafkaUnavailableError,
    NoPositionError,
)
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.lag.measure import group_states, measure_lag
from airflow_kafka_offsets.lag.report import LagQuestion, LagReport, measures
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.install import check_installed
from airflow_kafka_offsets.ledger.tables import Ledger

# `show` and `lag` are to answer at once: what loads need is imported where a load is planned.
if TYPE_CHECKING:
    from airflow_kafka_offsets.loading.pipeline import LoadOptions
    from airflow_kafka_offsets.loading.plan import PlanPreview


def show_group(args: Namespace) -> None:
    """Print every partition of a group."""
    report = _report(args)
    rows = [
        {
            "group": args.group,
            "topic": partition.topic,
            "partition": partition.partition,
            "current_offset": partition.position,
            "log_end_offset": partition.end,
            "lag": partition.lag,
            "beginning_offset": partition.beginning,
            **measures(partition),
            "flags": partition.flags,
            "error": partition.error,
        }
        for partition in report.partitions
    ]
    columns = () if report.errors or not rows else [key for key in rows[0] if key != "error"]
    show(rows, args.output, columns, nothing="")
    _check_complete(args, report)


def lag(args: Namespace) -> None:
    """Print the lag of a group, by topic and in total."""
    report = _report(args)
    rows = [
        {
            "group": args.group,
            "topic": topic,
            "partitions": len(total.partitions),
            **measures(total),
            "complete": total.complete and bool(total.partitions),
            "flags": total.flags,
        }
        for topic, total in [*report.by_topic().items(), (None, report)]
    ]
    if args.output in ("table", "plain"):
        rows[-1]["topic"] = "TOTAL"
    show(rows, args.output)
    _check_complete(args, report)


def _report(args: Namespace) -> LagReport:
    with usage():
        check_start(args.start)
    question = LagQuestion(args.group, scope(args), args.start, times=True)
    kafka = cluster(args)
    with database(args) as ledger:
        try:
            report = measure_lag(ledger, kafka, question)
        except KafkaUnavailableError as error:
            export = command_line("export", args.group)
            raise KafkaUnavailableError(f"{error}. '{export}' prints the positions without Kafka") from error
        if not report.partitions and (topics := _known_topics(ledger, args.group)):
            note(f"No position of group {args.group!r} is stored yet: these are the topics of its open batch")
            report = measure_lag(ledger, kafka, replace(question, scope=dict.fromkeys(topics)))
    if report.unknown_headroom is not None:
        note(f"The headroom in time is unknown: {report.unknown_headroom}")
    return report


def _check_complete(args: Namespace, report: LagReport) -> None:
    """Refuse a report that is incomplete or empty.

    :raises KafkaOffsetsError: partitions have errors, or there are no partitions
    """
    if not report.partitions:
        with database(args) as ledger:
            raise NoPositionError(_unknown(ledger, args.group))
    if report.errors:
        first = first_reason(partition.error for partition in report.errors)
        raise KafkaOffsetsError(
            f"the lag of group {args.group!r} is incomplete, {len(report.errors):,} of "
            f"{count(len(report.partitions), 'partition')} {'has' if len(report.errors) == 1 else 'have'} an error: "
            f"{first}"
        )


def plan(args: Namespace) -> None:
    """Print the open batch of a group, or the batch that a load would plan now."""
    from airflow_kafka_offsets.loading.plan import next_batch

    options = _options(args)
    named = whole_topics(args, "a load plans all of their partitions")
    kafka = cluster(args)
    with database(args) as ledger:
        topics = _topics(args, named, ledger, kafka)
        outlook = next_batch(
            ledger, kafka, args.group, topics, options, slice_offsets=args.slice_offsets, writes_files=args.lake_table
        )
    if (batch := outlook.open_batch) is not None:
        note(
            f"Group {args.group!r} has the open batch {batch.batch_id} ({batch.state}): a load finishes it first, "
            "then plans the rest. This is the open batch"
        )
    elif (batch := outlook.expired_batch) is not None:
        note(f"The records of the open batch {batch.batch_id} expired: a load abandons it, and plans a new one")
    rows = [
        {
            "topic": range_.topic,
            "partition": range_.partition,
            "start": range_.start,
            "end": range_.end,
            "offsets": len(range_),
            "bytes": expected_bytes,
            "slices": slices,
            "target": range_.target,
            "skipped": skipped,
            "how": range_.how,
            "batch_id": outlook.open_batch.batch_id if outlook.open_batch is not None else None,
        }
        for range_, slices, skipped, expected_bytes in outlook.partitions
    ]
    show(rows, args.output, nothing="")
    note(_summary(args, outlook, topics))


@usage()
def _options(args: Namespace) -> LoadOptions:
    """Return the options that decide the ranges of a load.

    :raises ConfigurationError: an option cannot work
    """
    from airflow_kafka_offsets.loading.parameters import PIPELINE_RULES
    from airflow_kafka_offsets.loading.pipeline import LoadOptions

    check({"group_id": args.group} | ({"topics": args.topics} if args.topics else {}), PIPELINE_RULES)
    options = LoadOptions(
        start=args.start,
        until=args.until,
        limits=Limits(max_records=args.max_records, max_bytes=args.max_bytes),
        on_data_loss=args.on_data_loss,
    )
    options.check()
    return options


def _topics(args: Namespace, named: list[str], ledger: Ledger, kafka: Cluster) -> list[str]:
    """Return the topics of the load: those of --topic, else those that the state tables have of the group.

    :param named: those of --topic
    :raises ConfigurationError: the group is not known, or nothing is stored of it, and --topic names no topics
    """
    with ledger.connect() as conn:
        check_installed(conn, ledger.tables)
        if not named:
            cluster_of(conn, ledger.tables, args.group)  # its error names the groups that exist
        group = group_states(conn, ledger.tables, [args.group])[args.group]
    if group.known:
        check_cluster(args.group, group.cluster_id, kafka.cluster_id())
    else:
        note(f"The state tables have no group {args.group!r}: this is what its first run would load")
    topics = named or _known_topics(ledger, args.group)
    if not topics:
        raise ConfigurationError(_unknown(ledger, args.group))
    return topics


def _unknown(ledger: Ledger, group: str) -> str:
    """Return why a group has no positions, and what to do."""
    from airflow_kafka_offsets.ledger.group_changes import without_positions

    with ledger.connect() as conn:
        return without_positions(conn, ledger.tables, group, "name the topics of its load with --topic")


def _known_topics(ledger: Ledger, group: str) -> list[str]:
    from airflow_kafka_offsets.loading.plan import known_topics

    return list(known_topics(ledger, group))


def _summary(args: Namespace, outlook: PlanPreview, topics: list[str]) -> str:
    partitions = [partition for partition in outlook.partitions if len(partition.range)]
    if not partitions:
        return f"Nothing to load for group {args.group!r} in {', '.join(topics)}"
    slices = sum(partition.slices for partition in partitions)
    skipped = sum(partition.skipped for partition in outlook.partitions)
    lost = f"; {count(skipped, 'offset')} {'is' if skipped == 1 else 'are'} lost, and skipped" if skipped else ""
    return (
        f"{count(sum(len(partition.range) for partition in partitions), 'offset')} of "
        f"{count(len(partitions), 'partition')}, about {sum(partition.expected_bytes for partition in partitions):,} "
        f"bytes, in {count(slices, 'slice')}{lost}"
    )
