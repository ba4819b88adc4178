"""`airflow kafka-offsets show` and `lag`: the positions of a group beside the ends of the logs."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

from airflow_kafka_offsets.cli.command import cluster, command, database, topics_begun
from airflow_kafka_offsets.cli.output import note, show
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.lag.measure import LagQuestion, measure_lag
from airflow_kafka_offsets.lag.report import LagReport


@command("show")
def show_group(args: Namespace) -> None:
    """Every partition of a group."""
    report = _report(args)
    rows = [
        {
            "group": args.group,
            "topic": one.topic,
            "partition": one.partition,
            "current_offset": one.position,
            "log_end_offset": one.end,
            "lag": one.lag,
            "beginning_offset": one.beginning,
            "lost": one.lost,
            "time_lag_seconds": one.time_lag,
            "delay_seconds": one.delay,
            "headroom": one.headroom,
            "headroom_time_seconds": one.headroom_time,
            "flags": one.flags,
            "error": one.error,
        }
        for one in report.partitions
    ]
    failed = bool(report.errors)
    show(rows, args.output, None if failed or not rows else [key for key in rows[0] if key != "error"])
    _end(args, "show", report)


@command("lag")
def lag(args: Namespace) -> None:
    """The lag of a group, by topic and in total."""
    report = _report(args)
    totals = [(topic, one) for topic, one in report.by_topic().items()] + [(None, report)]
    rows = [
        {
            "group": args.group,
            "topic": topic,
            "partitions": len(one.partitions),
            "lag": one.lag,
            "lost": one.lost,
            "time_lag_seconds": one.time_lag,
            "delay_seconds": one.delay,
            "headroom": one.headroom,
            "headroom_time_seconds": one.headroom_time,
            "complete": one.complete and bool(one.partitions),
        }
        for topic, one in totals
    ]
    if args.output in ("table", "plain"):
        rows[-1]["topic"] = "TOTAL"
    show(rows, args.output)
    _end(args, "lag", report)


def _report(args: Namespace) -> LagReport:
    asked = cluster(args)
    with database(args) as found:
        question = LagQuestion(args.group, dict.fromkeys(args.topics or ()), args.start, times=True)
        report = measure_lag(*found, asked, question)
        if not report.partitions and (begun := topics_begun(found, args.group)):
            note(f"No position of group {args.group!r} is stored yet: these are the topics of its open batch")
            report = measure_lag(*found, asked, replace(question, scope=dict.fromkeys(begun)))
    return report


def _end(args: Namespace, name: str, report: LagReport) -> None:
    """
    :raises SystemExit: partitions have errors, so that what was printed is incomplete; or there was nothing to look at
    """
    if not report.partitions:
        raise SystemExit(
            f"kafka-offsets {name}: nothing is stored of group {args.group!r} yet, and how far it is behind is not known: name its "
            "topics with --topic"
        )
    if report.complete:
        return
    told = (" ".join(str(one.error).split()) for one in report.errors)
    raise SystemExit(
        f"kafka-offsets {name}: the lag of group {args.group!r} is incomplete, {len(report.errors)} of "
        f"{len(report.partitions)} partitions have an error: {first_few(told, most=1)}"
    )
