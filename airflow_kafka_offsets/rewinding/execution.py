"""Positions that are moved otherwise than by loading: in one transaction, with a row in the history."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError

from airflow_kafka_offsets.core.offsets import Gap, OffsetRange, Position, TopicPartition
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.database.errors import database_message, is_outage
from airflow_kafka_offsets.database.transactions import database_now, transact
from airflow_kafka_offsets.exceptions import (
    ClusterChangedError,
    CommitUnknownError,
    DatabaseUnavailableError,
    OpenBatchError,
    RewindConflictError,
)
from airflow_kafka_offsets.ledger.abandoning import abandon_locked
from airflow_kafka_offsets.ledger.batch_rows import insert_batch, insert_gaps, insert_ranges, of_task_instance
from airflow_kafka_offsets.ledger.batches import open_batch_of
from airflow_kafka_offsets.ledger.groups import lock, lock_group, wait_for_group
from airflow_kafka_offsets.ledger.positions import stored_positions
from airflow_kafka_offsets.ledger.replaced_output import replace_output
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.rewinding.decision import PartitionRewind
from airflow_kafka_offsets.rewinding.history import REWIND_KINDS
from airflow_kafka_offsets.rewinding.preview import RewindPreview
from airflow_kafka_offsets.sinks.sink import Output


def rewound_by(
    engine: Engine, tables: Tables, group_id: str, owner: TaskRun, scenario: str, target: str | None = None
) -> int | None:
    """The rewind that a task instance has executed, in whichever try; None where the latest one was about something else.

    :param scenario: as the history tells it
    :param target: the table whose rows are taken back, or None
    """
    with engine.connect() as conn:
        return _rewound_by(conn, tables, group_id, owner, scenario, target)


def execute_preview(
    engine: Engine,
    tables: Tables,
    preview: RewindPreview,
    *,
    owner: TaskRun,
    who: str,
    reason: str | None = None,
    abandon: int | None = None,
    target: Output | None = None,
) -> int:
    """Move positions as a preview says, or change nothing: one transaction for all partitions.

    :param owner: what it did last is not done again
    :param who: for the history
    :param abandon: the number of the open batch, which is given up in the same transaction
    :param target: remove the output of the offsets that will be read again, in the same transaction
    :return: the number of the rewind in the history
    :raises RewindConflictError: positions have moved since the preview was made
    :raises OpenBatchError: a batch is open, and is not the one to abandon
    :raises ConfigurationError: the target's rows cannot be told apart by where they are from, or positions of another cluster
        would stay
    :raises DatabaseUnavailableError: the database could not do it; nothing was changed
    :raises CommitUnknownError: the connection broke, and the database could not be asked what became of it
    """

    target_name = target.name if target is not None else None

    def work(conn: Connection) -> int:
        # Another try may be at it: what it does is seen once it is done.
        _lock_group(conn, tables, preview)
        done = _rewound_by(conn, tables, preview.group_id, owner, preview.scenario, target_name)
        if done is not None:
            return done
        return _execute(conn, tables, preview, owner, who, reason, abandon, target)

    try:
        return transact(engine, work, outcome=lambda conn: _rewind_committed(conn, tables, preview, owner, target_name))
    except DBAPIError as error:
        if not is_outage(error):
            raise
        raise DatabaseUnavailableError(
            f"The positions of group {preview.group_id!r} were not moved, and nothing was changed: {database_message(error)}. Do it again "
            "when the database has what it lacked."
        ) from error
    except CommitUnknownError as unknown:
        raise CommitUnknownError(
            f"Whether the positions of group {preview.group_id!r} were moved is not known. {unknown}. Look at the history of "
            "the group: the rewind is there as a whole, or not at all."
        ) from unknown


def _execute(
    conn: Connection,
    tables: Tables,
    preview: RewindPreview,
    owner: TaskRun,
    who: str,
    reason: str | None,
    abandon: int | None,
    target: Output | None,
) -> int:
    group_id = preview.group_id
    _check_group(conn, tables, preview)
    stored = stored_positions(conn, tables, group_id)
    _check_moved(preview, stored)
    preview.refuse_left_behind(stored)
    still_open = open_batch_of(conn, tables, group_id)
    if still_open != abandon:
        raise _wrong_batch(group_id, still_open, abandon)
    if abandon is not None:
        moved = None if preview.moves_cluster else {one.topic_partition for one in preview.changed}
        abandon_locked(conn, tables, group_id, abandon, who, reason, moved=moved)
    changed, again = preview.changed, {}
    if target is not None:
        again = {one.topic_partition: one.again for one in preview.partitions if one.again is not None}
        changed = preview.replacing
    now = database_now(conn)
    generation = (preview.generation or 0) + 1
    batch_id = insert_batch(
        conn,
        tables,
        group_id,
        owner,
        preview.kind,
        generation,
        state="committed",
        planned_at=now,
        committed_at=now,
        target_table=target.name if target is not None else None,
        scenario=preview.scenario,
        reason=reason,
        who=who,
    )
    insert_ranges(conn, tables, batch_id, [_range(one) for one in changed], again)
    insert_gaps(conn, tables, batch_id, _gaps(changed, preview.scenario, who))
    if target is not None:
        replace_output(conn, tables, group_id, batch_id, target)
    _set_positions(conn, tables, group_id, batch_id, changed, now)
    groups = tables.consumer_groups
    conn.execute(
        groups.update()
        .where(groups.c.group_id == group_id)
        .values(generation=generation, cluster_id=preview.cluster_id)
    )
    return batch_id


def _lock_group(conn: Connection, tables: Tables, preview: RewindPreview) -> None:
    if preview.generation is None:
        lock_group(conn, tables, preview.group_id, preview.cluster_id)
    else:
        lock(conn, tables, preview.group_id)


def _check_group(conn: Connection, tables: Tables, preview: RewindPreview) -> None:
    """
    :raises RewindConflictError: the group is not what it was when the preview was made
    """
    groups = tables.consumer_groups
    row = conn.execute(sa.select(groups).where(groups.c.group_id == preview.group_id)).one_or_none()
    if row is None or row.generation != (preview.generation or 0):
        raise RewindConflictError(
            f"The positions of group {preview.group_id!r} were rewound since this preview was made: it is of generation "
            f"{preview.generation or 0}, the group of {row.generation if row is not None else 'none'}. Nothing was changed; "
            "make a new preview."
        )
    if row.cluster_id not in (None, preview.cluster_id) and not preview.moves_cluster:
        raise ClusterChangedError(
            f"The positions of group {preview.group_id!r} belong to Kafka cluster {row.cluster_id!r}, the preview to "
            f"{preview.cluster_id!r}. Nothing was changed."
        )


def _check_moved(preview: RewindPreview, stored: Mapping[TopicPartition, Position]) -> None:
    moved = [
        f"{one.topic_partition}: {_first_partitions(one.old)} in the preview, {_first_partitions(stored.get(one.topic_partition))} now"
        for one in preview.partitions
        if one.old != stored.get(one.topic_partition)
    ]
    if moved:
        raise RewindConflictError(
            f"Positions of group {preview.group_id!r} have moved since this preview was made: "
            f"{first_few(moved, between='; ')}. Nothing was changed; make a new preview."
        )


def _first_partitions(position: Position | None) -> str:
    return f"position {position.offset}" if position is not None else "no position"


def _wrong_batch(group_id: str, still_open: int | None, abandon: int | None) -> OpenBatchError:
    if still_open is None:
        return OpenBatchError(f"Batch {abandon} of group {group_id!r} is not open. Nothing was changed.")
    also = f", which is not batch {abandon}" if abandon is not None else ""
    return OpenBatchError(
        f"Group {group_id!r} has the open batch {still_open}{also}: it starts at the positions that would be moved. Nothing was "
        f"changed; let a load finish it first, or abandon batch {still_open} together with the rewind."
    )


def _range(one: PartitionRewind) -> OffsetRange:
    """A move of a position as a row of the history: from `start` to `end`."""
    position = one.new or one.old
    assert position is not None  # a partition without both does not change
    before = one.old or position
    how = "rewind"
    if one.new is None:
        how = "removed"
    elif one.old is None:
        how = "chosen"
    elif one.other_topic:
        how = "recreated"
    return OffsetRange(
        one.topic,
        one.partition,
        before.offset,
        position.offset,
        position.offset,
        position.topic_id,
        how,
        before.leader_epoch,
        position.leader_epoch,
    )


def _gaps(changed: Iterable[PartitionRewind], scenario: str, who: str) -> list[Gap]:
    return [
        Gap(one.topic, one.partition, start, end, "passed over", f"moved forward by {who} ({scenario})")
        for one in changed
        for start, end in one.skipped
    ]


def _set_positions(
    conn: Connection,
    tables: Tables,
    group_id: str,
    batch_id: int,
    changed: Sequence[PartitionRewind],
    now: datetime,
) -> None:
    offsets = tables.consumed_offsets
    keyed = [
        {"of_group": group_id, "of_topic": one.topic, "of_partition": one.partition}
        for one in changed
        if one.old is not None
    ]
    if keyed:
        conn.execute(
            offsets.delete().where(
                offsets.c.consumer_group == sa.bindparam("of_group"),
                offsets.c.topic == sa.bindparam("of_topic"),
                offsets.c.partition == sa.bindparam("of_partition"),
            ),
            keyed,
        )
    rows = [
        {
            "consumer_group": group_id,
            "topic": one.topic,
            "partition": one.partition,
            "offset_value": one.new.offset,
            "topic_id": one.new.topic_id,
            "leader_epoch": one.new.leader_epoch,
            # How old what was loaded is, is not known of another position.
            "record_timestamp": None,
            "batch_id": batch_id,
            "updated_at": now,
        }
        for one in changed
        if one.new is not None
    ]
    if rows:
        conn.execute(offsets.insert(), rows)


def _rewound_by(
    conn: Connection, tables: Tables, group_id: str, owner: TaskRun, scenario: str, target: str | None
) -> int | None:
    batches = tables.offset_batches.c
    last = conn.execute(
        sa.select(batches.batch_id, batches.scenario, batches.target_table)
        .where(
            of_task_instance(tables, group_id, owner),
            batches.kind.in_(REWIND_KINDS),
        )
        .order_by(batches.batch_id.desc())
        .limit(1)
    ).one_or_none()
    # A task instance that was cleared with other parameters wants another rewind.
    return last.batch_id if last is not None and (last.scenario, last.target_table) == (scenario, target) else None


def _rewind_committed(
    conn: Connection, tables: Tables, preview: RewindPreview, owner: TaskRun, target: str | None
) -> int | None:
    """Return the number of the rewind in the history; None where it was not committed."""
    # The server may not have noticed yet that the connection broke, and still hold the lock of the transaction.
    wait_for_group(conn, tables, preview.group_id, preview.cluster_id)
    return _rewound_by(conn, tables, preview.group_id, owner, preview.scenario, target)
