"""What a sink is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import TopicPartition

# A statement has a limited number of parameters: 999 in older SQLite.
_MOST_BOUND = 500


class Origin(NamedTuple):
    """The columns that say where a row is from."""

    batch_id: sa.ColumnElement[int]
    topic: sa.ColumnElement[str]
    partition: sa.ColumnElement[int]
    offset: sa.ColumnElement[int]


class Condition(Protocol):
    """Which rows of a table are replaced, told by the columns of their origin."""

    def __call__(self, origin: Origin) -> sa.ColumnElement[bool]: ...


class Batches(NamedTuple):
    """Batches that wrote something of what is replaced: none but their rows have to be looked at.

    :param ids: their numbers, ascending; there are some
    :param query: which selects the same
    """

    ids: Sequence[int]
    query: sa.Select[tuple[int]]

    def include(self, column: sa.ColumnElement[int]) -> sa.ColumnElement[bool]:
        """Whether a column names one of them. By numbers, so that an index on it is of use, as far as these can be bound."""
        few = self.ids if len(self.ids) <= _MOST_BOUND else self.query
        return column.between(self.ids[0], self.ids[-1]) & column.in_(few)


class Removed(NamedTuple):
    """How many rows of a batch's were removed from one partition."""

    batch_id: int
    topic_partition: TopicPartition
    rows: int


class Output(Protocol):
    """A target whose rows can be taken back."""

    @property
    def name(self) -> str:
        """As the history names it."""

    def remove(self, conn: Connection, replaced: Condition, of_batches: Batches) -> list[Removed]:
        """Delete rows; see `SqlTable.remove`."""
