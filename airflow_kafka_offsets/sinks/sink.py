"""Sinks: what a DAG author writes as the target of a load. `Sink.connect` returns its `table.Table`.

DAG files import this module: SQLAlchemy and Arrow are named in annotations only. To add a sink, write a frozen
dataclass that inherits from `Sink`, and a class that inherits from `table.Table`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_kafka_offsets.core.templates import Templated, holds_template
from airflow_kafka_offsets.exceptions import ConfigurationError

if TYPE_CHECKING:
    import sqlalchemy as sa
    from sqlalchemy.engine import Connection, Engine

    from airflow_kafka_offsets.sinks.table import Table

Connections = Mapping[str, Mapping[str, Any]]
"""What connections hold, by their ids: `conn_type`, `host`, `port`, `login`, `password`, `schema` and `extra`."""


class DatabaseTable(NamedTuple):
    """A table in the database of the positions that holds the rows of a sink, each record once.

    :param upsert_key: the columns by which rows are replaced
    """

    table: str
    schema: str | None = None
    upsert_key: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name in messages and in the history."""
        return f"{self.schema}.{self.table}" if self.schema else self.table


TO_FIT = (
    "Correct the declared columns, cast them in a transform, or alter the table. With columns of a schema registry, "
    'ExtraColumns(on_new_field="add") adds those that the table lacks (not fields within a column, and not on MySQL), '
    'and columns_from="target" leaves them out'
)
"""What to do where rows do not fit a table."""


def check_upsert_key(key: Sequence[str]) -> None:
    """Refuse an `upsert_key` that is no list of different names, or a template of one.

    :raises ConfigurationError: with the value received
    """
    if not holds_template(key) and (isinstance(key, str) or len(set(key)) != len(key)):
        raise ConfigurationError(f"upsert_key must be a tuple of different column names; got upsert_key={key!r}")


class Sink(Templated, ABC):
    """The target of a load as a DAG names it: plain data, which is pickled and serialized with the DAG."""

    __slots__ = ()

    conn_id: str | None
    """The Airflow connection of the database that holds the positions."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in messages and in the history. A target that is not a table of the database of the positions has
        a name such as `kind://name`.
        """

    @property
    def conn_ids(self) -> tuple[str, ...]:
        """The connections that it names besides `conn_id`."""
        return ()

    @property
    def replaces_rows(self) -> bool:
        """Whether a record that is written again replaces its row, so that it is never duplicated."""
        return False

    @property
    def commits_externally(self) -> bool:
        """Whether the target makes its own commit, besides that of the database of the positions."""
        return False

    @property
    def writes_files(self) -> bool:
        """Whether Spark's tasks write the final files of the target."""
        return False

    @property
    def appends_files(self) -> bool:
        """Whether its commit only appends those files, however many rows they hold."""
        return self.writes_files and not self.replaces_rows

    @property
    def tables(self) -> Sequence[DatabaseTable]:
        """All tables in the database of the positions that hold its rows; empty where the rows are also in others.

        The web interface verifies and removes the rows of these.
        """
        return ()

    @property
    def branch_numbers(self) -> Sequence[int | None]:
        """The numbers of the branches of which files have rows; None for a sink that has no branches."""
        return (None,)

    def qualified(self, conn: Connection, batches: sa.Table) -> Sink:
        """Return the sink with the schema of each table of the database of the positions whose name has none. Such a
        name means another table in a session with another default; in the history, one in the schema of the state
        tables.

        :param batches: the state table `offset_batches`
        """
        return self

    @abstractmethod
    def connect(self, engine: Engine, connections: Connections | None = None) -> Table:
        """Return the target with its connections.

        :param engine: of the database that holds the positions
        :param connections: at least those of `conn_ids`
        :raises ConfigurationError: a connection is missing, or cannot be used
        """

    def uris(self, engine: Engine) -> Sequence[str]:
        """Return the URIs of the target for Airflow's assets, without a request to the target.

        :param engine: of the database that holds the positions
        """
        return ()
