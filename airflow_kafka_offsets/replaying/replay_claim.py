"""The claim of a replay: on one batch, and not on the group, which its loads go on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.exceptions import FencedError
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.claims import Claim
from airflow_kafka_offsets.ledger.group_table import loads_into
from airflow_kafka_offsets.ledger.groups import lock
from airflow_kafka_offsets.ledger.positions import RangeRead
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.replaying.double_loads import refuse_double
from airflow_kafka_offsets.replaying.request import Replay


@dataclass(frozen=True, slots=True)
class ReplayClaim(Claim):
    """The right to write a batch of a replay, until a later try takes the batch over with a higher epoch."""

    kind: ClassVar[str] = "replay"

    replay: Replay
    batch_id: int

    def row(self, tables: Tables) -> tuple[sa.Table, sa.ColumnElement[bool]]:
        """Return the table of the batches, and the condition for the batch's row."""
        return tables.offset_batches, tables.offset_batches.c.batch_id == self.batch_id

    def begin_commit(self, conn: Connection, tables: Tables, batch: Batch) -> None:
        """Lock the batch, and check that its records will not be duplicated.

        Where it writes into the group's own table, the group's row is locked too: no position moves meanwhile, and no load
        writes to the same offsets.

        :raises FencedError: a later try has taken the batch over
        :raises DoubleLoadError: a stored position was moved back since the batch was planned
        """
        # The group before the batch, as `abandon_batch` locks them: two locks in two orders are a deadlock.
        if self.replay.replace or loads_into(conn, tables, self.group_id, self.replay.target):
            lock(conn, tables, self.group_id)
        self.lock(conn, tables)
        refuse_double(conn, tables, self.replay, batch.ranges)

    def finish_commit(
        self, conn: Connection, tables: Tables, batch: Batch, reads: Mapping[TopicPartition, RangeRead], now: datetime
    ) -> None:
        """Do nothing: a replay neither moves positions nor holds a lease."""

    def fenced(self, conn: Connection, tables: Tables) -> FencedError:
        """Return the error that says which try has the batch now."""
        batches = tables.offset_batches.c
        row = conn.execute(
            sa.select(batches.epoch, batches.try_number).where(batches.batch_id == self.batch_id)
        ).one_or_none()
        current = f"try {row.try_number}, epoch {row.epoch}" if row is not None else "its row is gone"
        return FencedError(
            f"Batch {self.batch_id}, a replay of group {self.group_id!r}, was taken over by a later attempt of {self.owner} "
            f"({current}) while this one (try {self.owner.try_number}, epoch {self.epoch}) was running. Nothing of this attempt "
            "was written; the later attempt carries on with the same batch."
        )
