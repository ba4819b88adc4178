"""`airflow kafka-offsets plan`: what the next batch of a load would be. Writes nothing."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from sqlalchemy.engine import Engine

from airflow_kafka_offsets.cli.command import Database, cluster, command, database, topics_begun
from airflow_kafka_offsets.cli.output import note, show
from airflow_kafka_offsets.core import planning
from airflow_kafka_offsets.core.caps import UNKNOWN_RECORD_BYTES
from airflow_kafka_offsets.core.log_identity import check_cluster
from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, split
from airflow_kafka_offsets.core.parameters import check
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.lag.group_states import group_states
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.batches import open_batch
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.install import check_installed
from airflow_kafka_offsets.ledger.overview import Row
from airflow_kafka_offsets.ledger.record_sizes import bytes_per_offset
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.loading.parameters import PIPELINE_RULES
from airflow_kafka_offsets.loading.pipeline import LoadOptions
from airflow_kafka_offsets.loading.plan import dry_run


@command("plan")
def plan(args: Namespace) -> None:
    """The open batch of a group; where there is none, the batch that a load would plan now."""
    asked = cluster(args)
    with database(args) as (engine, tables):
        options = _options(args)
        topics = _topics(args, engine, tables, asked)
        batch = open_batch(engine, tables, args.group)
        if batch is not None and _is_finished_first(batch, options, asked):
            note(
                f"Group {args.group!r} has the open batch {batch.batch_id} ({batch.state}): a load finishes it first, and plans "
                "what is left after it. This is that batch"
            )
            ranges, gaps = batch.ranges, batch.gaps
        else:
            decided = dry_run(args.group, topics, options, engine=engine, tables=tables, cluster=asked, given_up=batch)
            batch = None
            ranges, gaps = (*decided.ranges, *decided.initial), decided.gaps
        sizes = bytes_per_offset(engine, tables, args.group)
    rows = list(_rows(ranges, gaps, batch, sizes, args.slice_offsets))
    show(rows, args.output)
    offsets = sum(row["offsets"] for row in rows)
    if not offsets:
        note(f"Nothing to load for group {args.group!r} in {', '.join(topics)}")
        return
    skipped = sum(row["skipped"] for row in rows)
    note(
        f"{offsets:,} offsets of {sum(1 for row in rows if row['offsets'])} partitions, about "
        f"{sum(row['bytes'] for row in rows):,} bytes, in {sum(row['slices'] for row in rows):,} slices"
        f"{f'; {skipped:,} offsets are lost, and skipped' if skipped else ''}"
    )


def _options(args: Namespace) -> LoadOptions:
    """Return what decides the ranges of a load.

    :raises ConfigurationError: an option cannot work
    """
    named = {"group_id": args.group, "isolation_level": args.isolation_level, "slice_offsets": args.slice_offsets}
    check(named | ({"topics": args.topics} if args.topics else {}), PIPELINE_RULES)
    options = LoadOptions(
        start=args.start,
        until=args.until,
        max_records=args.max_records,
        max_bytes=args.max_bytes,
        on_data_loss=args.on_data_loss,
    )
    options.check()
    return options


def _topics(args: Namespace, engine: Engine, tables: Tables, asked: Cluster) -> list[str]:
    """Return the topics of the load: those that are named, else those that the state tables know of the group.

    :raises ConfigurationError: the group is not known, and no topics are named either
    """
    with engine.connect() as conn:
        check_installed(conn, tables)
        if not args.topics:
            cluster_of(conn, tables, args.group)  # says which groups there are, where this one is not
        state = group_states(conn, tables, [args.group])[args.group]
    if state.known:
        check_cluster(args.group, state.cluster_id, asked.cluster_id())
    else:
        note(f"The state tables know no group {args.group!r}: this is what its first run would load")
    topics = args.topics or sorted(state.topics) or topics_begun(Database(engine, tables), args.group)
    if not topics:
        raise ConfigurationError(
            f"Nothing is stored of group {args.group!r} yet: name the topics of the load with --topic"
        )
    return topics


def _is_finished_first(batch: Batch, options: LoadOptions, asked: Cluster) -> bool:
    """Whether a load would finish the open batch, and not give it up because its records expired.

    :raises PlanningError: they expired, and are not to be skipped; or the log is another one
    """
    # What is staged is committed without reading Kafka again.
    if batch.state == "staged":
        return True
    logs = asked.logs(sorted({one.topic for one in batch.ranges}))
    if planning.check_open(batch.ranges, logs, options.on_data_loss):
        return True
    note(f"The records of the open batch {batch.batch_id} expired: a load abandons it, and plans anew without them")
    return False


def _rows(
    ranges: tuple[OffsetRange, ...],
    gaps: tuple[Gap, ...],
    batch: Batch | None,
    sizes: dict[str, float],
    slice_offsets: int,
) -> Iterator[Row]:
    skipped = {(gap.topic, gap.partition): gap.end - gap.start for gap in gaps}
    for one in sorted(ranges, key=lambda one: one.topic_partition):
        yield {
            "topic": one.topic,
            "partition": one.partition,
            "start": one.start,
            "end": one.end,
            "offsets": len(one),
            "bytes": round(len(one) * (sizes.get(one.topic) or UNKNOWN_RECORD_BYTES)),
            "slices": len(split([one], slice_offsets)),
            "target": one.target,
            "skipped": skipped.get((one.topic, one.partition), 0),
            "how": one.how,
            "batch_id": batch.batch_id if batch is not None else None,
        }
