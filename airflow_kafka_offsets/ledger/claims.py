"""What a claim is: the right to write a batch, which a later attempt can take away.

Claims on a group (loads) are in `ledger.group_claim`. Each kind of claim decides what a commit checks and writes besides rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import ClassVar, Protocol, TypeVar

from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.database.transactions import transact
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.positions import RangeRead
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun

T = TypeVar("T")


class Claim(Protocol):
    """A row that every writer locks, and the epoch that this attempt wrote to it: a later attempt raises the epoch.

    :param kind: of the batches that are written under it, `load` or `replay`
    """

    kind: ClassVar[str]

    @property
    def group_id(self) -> str: ...

    @property
    def owner(self) -> TaskRun: ...

    def lock(self, conn: Connection, tables: Tables) -> None:
        """Lock the row, as every writer does first, and check that it still has this claim's epoch.

        :raises FencedError: a later attempt has raised it
        """

    def wait(self, conn: Connection, tables: Tables) -> None:
        """Lock the row under any epoch: no other transaction of this or another attempt is open on it afterwards."""

    def check(self, engine: Engine, tables: Tables) -> None:
        """Check, without a lock, that the row still has this claim's epoch; that may change a moment later.

        :raises FencedError: a later attempt has raised it
        """

    def begin_commit(self, conn: Connection, tables: Tables, batch: Batch) -> None:
        """Lock the row, and check that the batch may be committed, before its rows are written."""

    def finish_commit(
        self, conn: Connection, tables: Tables, batch: Batch, reads: Mapping[TopicPartition, RangeRead], now: datetime
    ) -> None:
        """Write what belongs to the commit besides rows, after these were written.

        :param now: the time of the commit, by the database's clock
        """


def transact_claimed(engine: Engine, tables: Tables, claim: Claim, work: Callable[[Connection], T]) -> T:
    """Run a transaction that begins by locking the claim.

    :param work: may be called several times, see `transact`
    :raises FencedError: a later attempt took over; nothing was written
    :raises DatabaseUnavailableError: the database failed for a reason that is not in the statements
    """

    def claimed(conn: Connection) -> T:
        claim.lock(conn, tables)
        return work(conn)

    with translated_errors(f"The state of group {claim.group_id!r} could not be written"):
        return transact(engine, claimed)
