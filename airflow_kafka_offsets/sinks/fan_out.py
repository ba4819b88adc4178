"""Several sinks in one database: a batch is read once, and written into all of them in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast, overload

from airflow_kafka_offsets.core.templates import Templated, holds_template
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.sinks.sink import Connections, DatabaseTable, Sink
from airflow_kafka_offsets.sinks.target_names import joined
from airflow_kafka_offsets.transforms.fan_out import FanOutTransform
from airflow_kafka_offsets.transforms.transform import BatchTransform

if TYPE_CHECKING:
    import sqlalchemy as sa
    from sqlalchemy.engine import Connection, Engine

    from airflow_kafka_offsets.sinks.fan_out_target import FanOutTable


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Branch(Templated):
    """One of several sinks, with its own transform.

    :param sink: the target, for example `SqlTable("customers", conn_id="warehouse")`
    :param transform: `Sql(…)`, `ArrowTransform(…)`, or None for the rows as they are decoded
    :raises ConfigurationError: a parameter is wrong; raised when the DAG is parsed
    """

    template_fields: ClassVar[tuple[str, ...]] = ("sink", "transform")

    sink: Sink
    transform: BatchTransform | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.sink, Sink) or isinstance(self.sink, FanOut):
            raise ConfigurationError(f"Branch needs a sink, such as SqlTable(…); got {self.sink!r}")
        name = self.sink.name
        if self.sink.commits_externally or self.sink.writes_files or self.sink.conn_ids:
            raise ConfigurationError(
                f"{name!r} cannot be one of several sinks: these are committed in one transaction of the database "
                "that holds the positions, but it needs its own commit, connection or files. Load into it with a "
                "separate task and group_id"
            )
        if self.transform is not None and not (
            isinstance(self.transform, BatchTransform) and not isinstance(self.transform, type)
        ):
            raise ConfigurationError(
                f"The transform of the branch into {name!r} must be Sql(…), ArrowTransform(…) or None: records are "
                f"read once for all branches, but a DataFrame transform reads them separately; got {self.transform!r}"
            )


@dataclass(frozen=True, slots=True)
class FanOut(Sink):
    """Several sinks, in the order of their names.

    :param branches: what `as_sink` made of the list that a user wrote
    """

    template_fields: ClassVar[tuple[str, ...]] = ("branches",)

    branches: tuple[Branch, ...]

    def resolve(self, context: Any) -> FanOut:
        """Return several sinks with their templates rendered, in the order of their names; see `Templated.resolve`."""
        return self.of([branch.resolve(context) for branch in self.branches])

    @classmethod
    def of(cls, given: Sequence[Any]) -> FanOut:
        """Return the sink for a list of sinks.

        :param given: sinks, or branches
        :raises ConfigurationError: they cannot be written to in one transaction
        """
        branches = [each if isinstance(each, Branch) else Branch(each) for each in given]
        branches.sort(key=lambda branch: branch.sink.name)
        names = [branch.sink.name for branch in branches]
        if len(names) < 2:
            raise ConfigurationError(
                f"sink=[…] needs at least two sinks; got {names}. Name a single one without a list"
            )
        twice = [name for name, following in pairwise(names) if name == following]
        if twice:
            raise ConfigurationError(f"sink=[…] has {twice[0]!r} twice; a batch is written into each sink once")
        conn_ids = {branch.sink.conn_id for branch in branches}
        # Templates may render to the same connection; this is asked again then.
        if len(conn_ids) > 1 and not any(map(holds_template, conn_ids)):
            raise ConfigurationError(
                "All sinks of sink=[…] must be in the database that holds the positions, because they are committed "
                f"in one transaction; got conn_id={', '.join(sorted(map(repr, conn_ids)))}"
            )
        return cls(tuple(branches))

    @property
    def name(self) -> str:
        """The name for messages and the history: the same for the same targets."""
        return joined(branch.sink.name for branch in self.branches)

    @property
    def conn_id(self) -> str | None:  # type: ignore[override]
        """The Airflow connection of the database, which holds the positions too."""
        return self.branches[0].sink.conn_id

    @property
    def replaces_rows(self) -> bool:
        """Whether a record that is written again replaces its rows in all branches."""
        return all(branch.sink.replaces_rows for branch in self.branches)

    @property
    def tables(self) -> tuple[DatabaseTable, ...]:
        """The tables of all branches; empty where one of them is not a table."""
        tables = [branch.sink.tables for branch in self.branches]
        return tuple(chain.from_iterable(tables)) if all(tables) else ()

    @property
    def branch_numbers(self) -> Sequence[int | None]:
        return range(len(self.branches))

    def qualified(self, conn: Connection, batches: sa.Table) -> FanOut:
        """Return the sinks, each with the schema of its table, in the same order."""
        return FanOut(tuple(replace(each, sink=each.sink.qualified(conn, batches)) for each in self.branches))

    def connect(self, engine: Engine, connections: Connections | None = None) -> FanOutTable:
        """Return the targets of all branches."""
        from airflow_kafka_offsets.sinks.fan_out_target import FanOutTable

        return FanOutTable(self, tuple(branch.sink.connect(engine, connections) for branch in self.branches))

    def uris(self, engine: Engine) -> list[str]:
        """Return the URIs of all branches."""
        return [uri for branch in self.branches for uri in branch.sink.uris(engine)]


Sinks = Sink | Sequence[Sink | Branch]
"""What a user writes as the target: a sink, or several of one database."""


@overload
def as_sink(given: Sinks) -> Sink: ...


@overload
def as_sink(given: Sinks | None) -> Sink | None: ...


def as_sink(given: Sinks | None) -> Sink | None:
    """Return what a user wrote as a sink: a list is several of them. Anything else stays as it is, to be checked as a
    parameter.

    :raises ConfigurationError: the sinks of the list cannot be written to in one transaction
    """
    return FanOut.of(given) if isinstance(given, list | tuple) else cast("Sink | None", given)


def transform_of(sink: Sink, given: T) -> T | FanOutTransform:
    """Return the transform of a load into a sink; for several sinks, that of all branches.

    :param given: as the transform of the load
    :raises ConfigurationError: the load has a transform besides those of the branches
    """
    if not isinstance(sink, FanOut) or isinstance(given, FanOutTransform):
        return given
    if given is not None:
        raise ConfigurationError(
            "With sink=[…], each branch has its own transform, as in Branch(SqlTable(…), transform=Sql(…)); "
            f"got transform={given!r}"
        )
    return FanOutTransform(tuple(branch.transform for branch in sink.branches))


def of_tables(tables: Iterable[DatabaseTable]) -> Sink:
    """Return the sink of one or several tables of the database of the positions."""
    from airflow_kafka_offsets.sinks.sql.table import SqlTable

    sinks = [SqlTable(table.table, table.schema, upsert_key=table.upsert_key) for table in tables]
    return sinks[0] if len(sinks) == 1 else FanOut.of(sinks)
