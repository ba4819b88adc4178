"""The loads of a group into a lake table, by the state tables: what the table should have."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.history import REWIND_KINDS
from airflow_kafka_offsets.core.offsets import OffsetRange, Span, subtract
from airflow_kafka_offsets.database.transactions import stream
from airflow_kafka_offsets.sinks.lake.snapshot import KnownRollbacks


@dataclass(frozen=True)
class GroupLoads:
    """The loads of a group into a table, by the state tables.

    :ivar last: the number of the last one that wrote rows; -1 where there is none
    :ivar moves: the rewinds of the group after it that were not undone, the last one first
    """

    batches: sa.Table
    group_id: str
    name: str
    last: int
    moves: Sequence[Any]

    @classmethod
    def read(cls, conn: Connection, batches: sa.Table, group_id: str, name: str) -> GroupLoads:
        loads = cls(batches, group_id, name, -1, ())
        # With ORDER BY, only the end of a long history is read.
        query = sa.select(batches.c.batch_id).where(loads._with_rows).order_by(batches.c.batch_id.desc()).limit(1)
        last: int = conn.scalar(query) or -1
        return replace(loads, last=last, moves=_moves(conn, batches, group_id, last))

    @property
    def _with_rows(self) -> sa.ColumnElement[bool]:
        batches = self.batches.c
        of_group = sa.and_(batches.consumer_group == self.group_id, batches.target_table == self.name)
        return sa.and_(of_group, batches.kind == "load", batches.state == "committed", batches.row_count > 0)

    @property
    def goes_on(self) -> bool:
        """Return whether a rewind without `replace` lets the group go on with the table as it is."""
        return any(move.target_table is None for move in self.moves)

    def known_rollbacks(self, conn: Connection) -> KnownRollbacks:
        """Return the rollbacks of the table that the rewinds of the group allow for: those to where they are."""
        return KnownRollbacks(
            self.moves[0].committed_at if self.moves else None,
            self._abandoned(conn),
            lambda last: self.goes_on or self.left_after(conn, last) is None,
        )

    def kind(self, conn: Connection, number: int) -> str | None:
        """Return the kind of a batch of the group; None where there is none."""
        batches = self.batches.c
        kind = sa.select(batches.kind).where(batches.batch_id == number, batches.consumer_group == self.group_id)
        return conn.scalar(kind)

    def _abandoned(self, conn: Connection) -> set[int]:
        batches = self.batches.c
        query = sa.select(batches.batch_id).where(batches.consumer_group == self.group_id, batches.state == "abandoned")
        return set(conn.scalars(query))

    def left_after(self, conn: Connection, number: int, replacing: Sequence[OffsetRange] = ()) -> int | None:
        """Return the last load after a batch whose rows should be there: no rewind after the last load has replaced all
        of them, or is about to. None where there is no such load.

        :param replacing: the offsets of a rewind that is about to replace rows
        """
        batches = self.batches
        ranges = batches.metadata.tables[batches.key.removesuffix("offset_batches") + "offset_ranges"]
        replaced = defaultdict[tuple[str, int], list[Span]](list)
        for range_ in replacing:
            replaced[range_.topic_partition].append((range_.start, range_.end))
        rewinds = [move.batch_id for move in self.moves if move.target_table == self.name]
        for row in conn.execute(ranges.select().where(ranges.c.batch_id.in_(rewinds))):
            if row.replaced_start_offset is not None:
                replaced[row.topic, row.partition].append((row.replaced_start_offset, row.replaced_end_offset))
        later = sa.and_(self._with_rows, ranges.c.batch_id > number, ranges.c.records > 0)
        written = sa.select(ranges).join(batches, batches.c.batch_id == ranges.c.batch_id).where(later)
        for row in stream(conn, written.order_by(ranges.c.batch_id.desc())):
            if subtract([(row.start_offset, row.end_offset)], replaced[row.topic, row.partition]):
                return int(row.batch_id)
        return None


def _moves(conn: Connection, batches: sa.Table, group_id: str, after: int) -> list[Any]:
    """Return the rewinds of a group that were not undone, the last one first.

    :param after: a batch; only what is later is meant
    """
    query = sa.select(batches.c.batch_id, batches.c.kind, batches.c.target_table, batches.c.committed_at).where(
        batches.c.consumer_group == group_id, batches.c.batch_id > after, batches.c.kind.in_(REWIND_KINDS)
    )
    moves, undone = [], False
    for move in conn.execute(query.order_by(batches.c.batch_id.desc())):
        if undone:
            undone = False
        elif move.kind == "undo":
            undone = True
        else:
            moves.append(move)
    return moves
