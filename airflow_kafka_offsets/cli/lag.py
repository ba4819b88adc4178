"""The commands `airflow kafka-offsets show` and `lag`, which print what `lag.measure` returns."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

from airflow_kafka_offsets.cli.command import cluster, command, database
from airflow_kafka_offsets.cli.output import note, show
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.lag.measure import LagQuestion, measure_lag
from airflow_kafka_offsets.lag.report import LagReport, measures
from airflow_kafka_offsets.loading.plan import known_topics


@command("show")
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
    show(rows, args.output, () if report.errors or not rows else [key for key in rows[0] if key != "error"])
    _exit(args, "show", report)


@command("lag")
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
        }
        for topic, total in [*report.by_topic().items(), (None, report)]
    ]
    if args.output in ("table", "plain"):
        rows[-1]["topic"] = "TOTAL"
    show(rows, args.output)
    _exit(args, "lag", report)


def _report(args: Namespace) -> LagReport:
    kafka = cluster(args)
    with database(args) as state:
        question = LagQuestion(args.group, dict.fromkeys(args.topics or ()), args.start, times=True)
        report = measure_lag(*state, kafka, question)
        if not report.partitions and (topics := known_topics(*state, args.group)):
            note(f"No position of group {args.group!r} is stored yet: these are the topics of its open batch")
            report = measure_lag(*state, kafka, replace(question, scope=dict.fromkeys(topics)))
    return report


def _exit(args: Namespace, name: str, report: LagReport) -> None:
    """Exit with an error if the output is incomplete or empty.

    :raises SystemExit: partitions have errors, or there are no partitions
    """
    if not report.partitions:
        raise SystemExit(
            f"kafka-offsets {name}: nothing is stored of group {args.group!r} yet, and its lag is not known: name its "
            "topics with --topic"
        )
    if report.errors:
        errors = (" ".join(str(partition.error).split()) for partition in report.errors)
        raise SystemExit(
            f"kafka-offsets {name}: the lag of group {args.group!r} is incomplete, {len(report.errors)} of "
            f"{len(report.partitions)} partitions have an error: {first_few(errors, most=1)}"
        )
