"""Refuse replays that would duplicate records in their target: records that are there, or that a load will write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import OffsetRange, Span, TopicPartition, first_common, intersect
from airflow_kafka_offsets.exceptions import ConfigurationError, DoubleLoadError
from airflow_kafka_offsets.ledger.batch_rows import as_span, of_task
from airflow_kafka_offsets.ledger.group_table import group_table, loads_into
from airflow_kafka_offsets.ledger.positions import stored_positions
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.sinks.target_names import same_table_names, shared_target

if TYPE_CHECKING:
    from airflow_kafka_offsets.replaying.replay_batches import Replay

_WAYS_OUT = (
    "Replay with replace=True, which removes the rows of these offsets in the same transaction, or into a sink with an "
    "upsert_key, or into another table."
)


def refuse_double(conn: Connection, tables: Tables, replay: Replay, ranges: Sequence[OffsetRange]) -> None:
    """Check that no record will be duplicated in the target, neither by earlier loads nor by what the group will load.

    :raises DoubleLoadError: a record would be
    :raises ConfigurationError: the rows that are to be replaced are in another table, or there are none yet
    """
    group_id, target = replay.group_id, replay.target
    if not loads_into(conn, tables, group_id, target):
        _check_other_target(conn, tables, replay, ranges)
        return
    if not (replay.replace or replay.upsert):
        raise DoubleLoadError(
            f"Group {group_id!r} loads into table {target!r}: a replay into it would put records there a second time. "
            f"Nothing was written. {_WAYS_OUT}"
        )
    stored = stored_positions(conn, tables, group_id)
    after: list[str] = []
    for range_ in ranges:
        position = stored.get(range_.topic_partition)
        if position is None:
            after.append(f"{range_}: no position is stored")
        elif is_other_topic(position.topic_id, range_.topic_id):
            after.append(f"{range_}: position {position.offset} is stored of an earlier topic, {position.topic_id}")
        elif range_.end > position.offset:
            after.append(f"{range_}: position {position.offset} is stored")
    if after:
        raise DoubleLoadError(
            f"Group {group_id!r} loads into table {target!r}, and will load these offsets itself, so that their "
            f"records would be duplicated: {'; '.join(after)}. Nothing was written. End the replay at or before the "
            "stored positions, run the load first, or replay into another table."
        )


def _check_other_target(conn: Connection, tables: Tables, replay: Replay, ranges: Sequence[OffsetRange]) -> None:
    if replay.replace:
        known = group_table(conn, tables, replay.group_id)
        if known is None:
            raise ConfigurationError(
                f"replace=True removes what group {replay.group_id!r} loaded, and it has loaded nothing yet: there is "
                "nothing that could be replaced. Nothing was written. Run the load first, or replay without replace "
                "into a table that the group will not load into."
            )
        raise ConfigurationError(
            f"replace=True removes what group {replay.group_id!r} loaded, and that is in table {known.name!r}; this "
            f"replay is into {replay.target!r}. Replay into {known.name!r}, or without replace."
        )
    if replay.upsert:
        return
    known = group_table(conn, tables, replay.group_id)
    shared = shared_target(conn, known.name, replay.target) if known is not None else None
    if known is not None and shared is not None:
        raise DoubleLoadError(
            f"Group {replay.group_id!r} loads into {known.name!r}: a replay into {replay.target!r} would put records "
            f"into {shared!r} a second time. Nothing was written. Replay into all sinks of the group with "
            "replace=True, or into another table."
        )
    batches, range_rows = tables.offset_batches.c, tables.offset_ranges.c
    topics = {range_.topic for range_ in ranges}
    others = conn.scalars(
        sa.select(batches.consumer_group)
        .distinct()
        .join(tables.offset_ranges, range_rows.batch_id == batches.batch_id)
        .where(
            batches.consumer_group != replay.group_id,
            batches.kind.in_(("load", "initialize")),
            range_rows.topic.in_(topics),
            batches.target_table.in_(same_table_names(conn, replay.target)),
        )
        .order_by(batches.consumer_group)
    ).all()
    other = next((group for group in others if loads_into(conn, tables, group, replay.target)), None)
    if other is not None:
        raise DoubleLoadError(
            f"Group {other!r} loads {', '.join(sorted(topics))} into table {replay.target!r}: a replay of group "
            f"{replay.group_id!r} would put records there a second time. Nothing was written. Replay for "
            f"group_id={other!r} with replace=True, or into another table."
        )


def refuse_overlap(conn: Connection, tables: Tables, replay: Replay, ranges: Sequence[OffsetRange]) -> None:
    """Check that a run appends no offset twice, in another mapped task instance or after it was cleared.

    :raises DoubleLoadError: it would
    """
    if replay.replace or replay.upsert:
        return
    batches, range_rows = tables.offset_batches.c, tables.offset_ranges
    earlier = conn.execute(
        sa.select(range_rows, batches.records_since_ms, batches.records_until_ms)
        .join(tables.offset_batches, range_rows.c.batch_id == batches.batch_id)
        .where(
            of_task(tables, replay.group_id, replay.owner),
            batches.kind == "replay",
            batches.state != "abandoned",
            batches.target_table.in_(same_table_names(conn, replay.target)),
        )
    ).all()
    requested: dict[TopicPartition, list[Span]] = defaultdict(list)
    for range_ in ranges:
        requested[range_.topic_partition].append((range_.start, range_.end))
    replayed: dict[TopicPartition, dict[Span, int]] = defaultdict(dict)
    for row in earlier:
        span = as_span(row)
        if replay.span is not None and span is not None and not replay.span.overlaps(span):
            continue
        replayed[TopicPartition(row.topic, row.partition)][row.start_offset, row.end_offset] = row.batch_id
    for tp, spans in sorted(requested.items()):
        common = first_common(spans, replayed[tp])
        if common is None:
            continue
        start, end = next(span for span in spans if intersect(span, common))
        before = next(span for span in replayed[tp] if intersect(span, common))
        raise DoubleLoadError(
            f"{tp} {start}..{end} is to be replayed into table {replay.target!r}, and batch {replayed[tp][before]} of "
            f"the same run replayed {before[0]}..{before[1]} into it: records would be duplicated. Nothing was "
            "written. Bounds that changed since need a new run, and a table without these rows."
        )
