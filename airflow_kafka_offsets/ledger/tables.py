"""The state tables as SQLAlchemy tables: names, columns, schema version, and the DDL as text; and the database that
they are in.

`docs/state-tables.md` describes what a row of each table means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import Connection, Dialect, Engine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import Constraint, CreateIndex, CreateTable
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from airflow_kafka_offsets.core.history import OPEN_STATES, PREFETCHED
from airflow_kafka_offsets.database.mysql import is_mysql
from airflow_kafka_offsets.database.session import unify_sessions
from airflow_kafka_offsets.database.tables import (
    AnyBytes,
    Description,
    ExactString,
    ExactText,
    Moment,
    ShortenedText,
    TargetName,
    is_too_long,
    longest_name,
    without_placeholders,
)
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.sinks.sink import Sink

SCHEMA_VERSION = 13

NAME_LENGTH = 250
"""The most characters of a group's name, and of other names in the tables."""

# The dialects with partial indexes (without WHERE, the index would forbid a group's second batch) and with CREATE INDEX
# IF NOT EXISTS.
PARTIAL_INDEX_DIALECTS = ("postgresql", "sqlite")


# Python's datetime has no other instants in every time zone; databases have.
_FIRST, _LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)


class _Readable(FunctionElement[datetime]):
    """An instant, clamped to the range that Python can read: for others, such as `infinity`, drivers fail, and with
    them the whole result.
    """

    inherit_cache = True


@compiles(_Readable)
def _as_it_is(element: _Readable, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.clauses, **options)


@compiles(_Readable, "postgresql")
def _within_bounds(element: _Readable, compiler: SQLCompiler, **options: Any) -> str:
    instant = compiler.process(element.clauses, **options)
    # The bounds alone would be the result for null.
    bounded = f"least(greatest({instant}, '{_FIRST.isoformat()}'), '{_LAST.isoformat()}')"
    return f"CASE WHEN {instant} IS NOT NULL THEN {bounded} END"


class sum_of(FunctionElement[int]):  # noqa: N801 as functions of SQLAlchemy
    """The sum of integers, as `sa.func.sum`. SQLite would refuse one of more than 64 bits."""

    inherit_cache = True
    type = sa.BigInteger()


@compiles(sum_of)
def _sum(element: sum_of, compiler: SQLCompiler, **options: Any) -> str:
    return f"sum({compiler.process(element.clauses, **options)})"


@compiles(sum_of, "sqlite")
def _sum_without_overflow(element: sum_of, compiler: SQLCompiler, **options: Any) -> str:
    values = compiler.process(element.clauses, **options)
    return f"CASE WHEN count({values}) THEN CAST(total({values}) AS INTEGER) END"


class _SqliteMoment(sqlite.DATETIME):
    """An instant in SQLite, which takes any value: one that is none is clamped, too."""

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], datetime | None]:
        parse: Any = super().result_processor(dialect, coltype)

        def process(value: Any) -> datetime | None:
            try:
                found: datetime | None = parse(value)
            except (TypeError, ValueError):
                return _FIRST
            return found

        return process


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: with a time zone on PostgreSQL, in other databases as UTC without a time zone. Values that Python
    cannot represent, which other programs may write, are clamped when they are read.
    """

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == "sqlite":
            return _SqliteMoment()  # type: ignore[no-untyped-call]
        return dialect.type_descriptor(Moment(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or dialect.name == "postgresql":
            return value
        return value.astimezone(UTC).replace(tzinfo=None)

    def column_expression(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        return sa.type_coerce(_Readable(column), self)

    def process_result_value(self, value: datetime | str | None, dialect: Dialect) -> datetime | None:
        if isinstance(value, str):  # of MySQL, such as 0000-00-00
            return _FIRST
        if value is None or value.tzinfo is not None:
            return value
        return value.replace(tzinfo=UTC)


def _columns(types: dict[str, Any], **options: Any) -> list[sa.Column[Any]]:
    return [sa.Column(name, type_, **options) for name, type_ in types.items()]


def _keys(**types: Any) -> list[sa.Column[Any]]:
    return _columns(types, primary_key=True, autoincrement=False)


def _required(**types: Any) -> list[sa.Column[Any]]:
    return _columns(types, nullable=False)


def _optional(**types: Any) -> list[sa.Column[Any]]:
    return _columns(types, nullable=True)


_NAME = ExactString(NAME_LENGTH)

# Kafka limits topic names to 249 characters; MySQL needs a length for text in a key.
_TOPIC = ExactString(249)


class _OneLoad(Constraint):
    """Ensures that a group has at most one load in some states, in databases without partial indexes: a generated
    column has the name of the group, or null.
    """

    def __init__(self, name: str, column: str, states: Sequence[str]) -> None:
        super().__init__(name=name)
        self.column = column
        self.states = states
        self.ddl_if(callable_=lambda *_, dialect, **__: is_mysql(dialect))


@compiles(_OneLoad)
def _one_load(constraint: _OneLoad, compiler: DDLCompiler, **_: object) -> str:
    type_ = compiler.dialect.type_compiler_instance.process(ExactString(NAME_LENGTH))
    column, states = constraint.column, ", ".join(f"'{state}'" for state in constraint.states)
    group = f"CASE WHEN kind = 'load' AND state IN ({states}) THEN consumer_group END"
    name = compiler.preparer.quote(str(constraint.name))
    return f"{column} {type_} GENERATED ALWAYS AS ({group}) STORED, UNIQUE KEY {name} ({column})"


class Tables:
    """The state tables, in a schema or with a prefix before their names.

    :param schema: the database schema; None is the connection's default
    :param prefix: put before the name of every table
    """

    def __init__(self, schema: str | None = None, prefix: str = "") -> None:
        self.metadata = sa.MetaData(schema=schema)
        self.prefix = prefix
        self._partial: dict[sa.Index, sa.ColumnElement[bool] | sa.TextClause] = {}
        self._instead: set[sa.Index] = set()
        self._add_groups()
        self._add_batches()
        self._add_ranges()
        self._add_dead_letters()

    def _add_groups(self) -> None:
        self.schema_version = self._table("offsets_schema_version", *_keys(version=sa.Integer))
        self.installation = self._table(
            "offsets_installation", *_keys(number=sa.Integer), *_required(installation_id=ExactString(40))
        )
        self.consumer_groups = self._table(
            "consumer_groups",
            *_keys(group_id=_NAME),
            *_optional(cluster_id=_NAME),
            *_required(generation=sa.BigInteger, epoch=sa.BigInteger),
            *_optional(lease_owner=Description, lease_expires_at=UtcDateTime),
        )
        self.consumed_offsets = self._table(
            "consumed_offsets",
            *_keys(consumer_group=_NAME, topic=_TOPIC, partition=sa.Integer),
            *_required(offset_value=sa.BigInteger),
            *_optional(topic_id=ExactString(40), leader_epoch=sa.Integer, record_timestamp=UtcDateTime),
            *_required(batch_id=sa.BigInteger, updated_at=UtcDateTime),
        )

    def _add_batches(self) -> None:
        # SQLite generates numbers only for a primary key of type INTEGER.
        serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
        self.offset_batches = self._table(
            "offset_batches",
            sa.Column("batch_id", serial, primary_key=True, autoincrement=True),
            *_required(consumer_group=_NAME, generation=sa.BigInteger),
            *_required(kind=ExactString(20), state=ExactString(20), attempt=sa.Integer),
            *_optional(epoch=sa.BigInteger),
            *_columns(dict.fromkeys(("dag_id", "task_id", "run_id"), Description(NAME_LENGTH))),
            *_optional(map_index=sa.Integer, try_number=sa.Integer),
            *_optional(
                target_table=TargetName,
                staging_uri=ShortenedText,
                transform=Description,
                fingerprint=ExactString(64),
            ),
            *_optional(records=sa.BigInteger, row_count=sa.BigInteger, dead_letters=sa.BigInteger),
            *_optional(scenario=Description, reason=Description, who=Description),
            *_required(planned_at=UtcDateTime),
            *_optional(staged_at=UtcDateTime, committed_at=UtcDateTime),
            *_optional(triggered_by=Description, os_user=Description, database_user=Description),
            *_optional(records_since_ms=sa.BigInteger, records_until_ms=sa.BigInteger),
            *_optional(added_columns=ShortenedText, dead_letter_topic=_TOPIC, dead_letters_sent_at=UtcDateTime),
            *_optional(publish_started_at=UtcDateTime, has_files_since=UtcDateTime, outputs=ShortenedText),
            *_optional(compacted_from=sa.BigInteger),
        )
        batches = self.offset_batches.c
        self._index("offset_batches_by_run", batches.consumer_group, batches.run_id, batches.task_id)
        self._index("offset_batches_by_group", batches.consumer_group, batches.batch_id)
        for word, states in (("open", OPEN_STATES), ("prefetched", (PREFETCHED,))):
            one_load, index = sa.and_(batches.kind == "load", batches.state.in_(states)), f"offset_batches_one_{word}"
            self._partial_index(index, one_load, batches.consumer_group, unique=True)
            self.offset_batches.append_constraint(_OneLoad(f"{self.prefix}{index}", f"{word}_load", states))
        self.unsent = sa.and_(batches.dead_letter_topic.is_not(None), batches.dead_letters_sent_at.is_(None))
        for name, where, columns in (
            ("unsent", self.unsent, (batches.dead_letters_sent_at, batches.dead_letter_topic)),
            ("publishing", batches.publish_started_at.is_not(None), (batches.publish_started_at,)),
            ("with_files", batches.has_files_since.is_not(None), (batches.has_files_since,)),
            ("compacted", batches.compacted_from.is_not(None), (batches.compacted_from,)),
            # Of deletions, too: each load asks for the last one of its group.
            ("replays", sa.or_(batches.kind == "replay", batches.kind == "delete"), (batches.kind,)),
        ):
            instead = (*columns, batches.consumer_group)
            self._partial_index(f"offset_batches_{name}", where, batches.consumer_group, instead=instead)

    def _add_ranges(self) -> None:
        self.offset_ranges = self._table(
            "offset_ranges",
            *_keys(batch_id=sa.BigInteger, topic=_TOPIC, partition=sa.Integer),
            *_optional(topic_id=ExactString(40)),
            *_required(start_offset=sa.BigInteger, end_offset=sa.BigInteger, target_offset=sa.BigInteger),
            *_optional(leader_epoch=sa.Integer, end_epoch=sa.Integer),
            *_optional(replaced_start_offset=sa.BigInteger, replaced_end_offset=sa.BigInteger),
            *_optional(records=sa.BigInteger, dead_letters=sa.BigInteger, bytes=sa.BigInteger),
            *_optional(first_timestamp=UtcDateTime, last_timestamp=UtcDateTime),
            *_required(how=ExactString(20)),
        )
        self.offset_gaps = self._table(
            "offset_gaps",
            *_keys(batch_id=sa.BigInteger, topic=_TOPIC, partition=sa.Integer, start_offset=sa.BigInteger),
            *_required(end_offset=sa.BigInteger, cause=Description, decision=Description),
        )
        self.replaced_output = self._table(
            "replaced_output",
            *_keys(batch_id=sa.BigInteger, replaced_batch_id=sa.BigInteger, topic=_TOPIC, partition=sa.Integer),
            *_required(row_count=sa.BigInteger, dead_letters=sa.BigInteger),
        )

    def _add_dead_letters(self) -> None:
        # The key names a record of a batch.
        self.dead_letters = self._table(
            "dead_letters",
            *_keys(batch_id=sa.BigInteger, topic=_TOPIC, partition=sa.Integer, offset_value=sa.BigInteger),
            *_required(consumer_group=_NAME),
            *_optional(key=AnyBytes, value=AnyBytes, headers=ExactText, record_timestamp=UtcDateTime),
            *_required(error=Description),
            *_optional(error_class=ExactString(20), schema_id=sa.BigInteger, replayed_by=sa.BigInteger),
        )
        dead_letters = self.dead_letters.c
        # As text, since a database that plans with bound values would not see that the index covers the condition.
        self.with_contents = sa.text("coalesce(error_class, '') NOT IN ('dropped', 'size')")
        self._partial_index(
            "dead_letters_with_contents",
            self.with_contents,
            dead_letters.consumer_group,
            dead_letters.batch_id,
            instead=(dead_letters.consumer_group, dead_letters.batch_id, dead_letters.error_class),
        )
        # The id is empty where the broker reported none.
        self.erased_offsets = self._table(
            "erased_offsets",
            *_keys(consumer_group=_NAME, topic=_TOPIC, partition=sa.Integer, offset_value=sa.BigInteger),
            *_keys(topic_id=ExactString(40)),
            *_required(decision=Description),
        )
        self.schema_texts = self._table(
            "schema_texts", *_keys(digest=ExactString(64)), *_required(type=ExactString(20), texts=ExactText)
        )
        self.batch_schemas = self._table(
            "batch_schemas",
            *_keys(batch_id=sa.BigInteger, part=ExactString(20), schema_id=sa.BigInteger),
            *_required(digest=ExactString(64)),
        )

    @staticmethod
    def of(schema: str | None = None, prefix: str = "") -> Tables:
        """Return tables that the process shares: SQLAlchemy keeps the compiled statements of each."""
        return _shared_tables(schema, prefix)

    def check_names(self, dialect: Dialect) -> None:
        """Check that the database keeps the names whole: Postgres truncates them without an error.

        :raises ConfigurationError: a name is too long
        """
        for table in self.metadata.sorted_tables:
            for name in (table.name, *(str(index.name) for index in table.indexes)):
                if is_too_long(name, dialect):
                    raise ConfigurationError(
                        f"The name {name!r} is longer than the {longest_name(dialect)} characters that "
                        f"{dialect.name} allows: choose a shorter prefix than {self.prefix!r}"
                    )

    def set_options(self, dialect: Dialect) -> None:
        """Give the tables and indexes the options of a database; call it before they are created.

        Most processes create none: SQLAlchemy would import each dialect to check its options, a tenth of a second for a
        command.
        """
        if is_mysql(dialect):
            for table in self.metadata.sorted_tables:
                # Another engine may be the default of the server.
                table.dialect_kwargs[f"{dialect.name}_engine"] = "InnoDB"
        if dialect.name in PARTIAL_INDEX_DIALECTS:
            for index, where in self._partial.items():
                index.dialect_kwargs[f"{dialect.name}_where"] = where

    def _table(self, name: str, *columns: sa.Column[object]) -> sa.Table:
        return sa.Table(f"{self.prefix}{name}", self.metadata, *columns)

    def _index(self, name: str, *columns: sa.ColumnElement[object], unique: bool = False) -> sa.Index:
        return sa.Index(f"{self.prefix}{name}", *columns, unique=unique)

    def _partial_index(
        self,
        name: str,
        where: sa.ColumnElement[bool] | sa.TextClause,
        *columns: sa.ColumnElement[Any],
        unique: bool = False,
        instead: Sequence[sa.ColumnElement[Any]] = (),
    ) -> None:
        index = self._index(name, *columns, unique=unique)
        self._partial[index] = where
        index.ddl_if(callable_=lambda *_, dialect, **__: dialect.name in PARTIAL_INDEX_DIALECTS)
        if instead:
            # Where indexes are of all rows, the columns of the condition are a part of them.
            whole = self._index(name, *instead)
            self._instead.add(whole)
            whole.ddl_if(callable_=lambda *_, dialect, **__: dialect.name not in PARTIAL_INDEX_DIALECTS)

    def ddl(self, dialect: Dialect) -> str:
        """Return the statements that `init` runs on an empty database, for users who may not run DDL."""
        self.check_names(dialect)
        self.set_options(dialect)
        statements: list[ClauseElement] = []
        partial = dialect.name in PARTIAL_INDEX_DIALECTS
        for table in self.metadata.sorted_tables:
            statements.append(CreateTable(table, if_not_exists=True))
            statements.extend(
                CreateIndex(index, if_not_exists=partial)
                for index in sorted(table.indexes, key=lambda index: str(index.name))
                if index not in (self._instead if partial else self._partial)
            )
        statements.append(self.schema_version.insert().values(version=SCHEMA_VERSION))
        return sql_text(statements, dialect)


_shared_tables = cache(Tables)


@dataclass(frozen=True, slots=True)
class Ledger:
    """A SQL database and the state tables in it. The engine's sessions have the settings of `database.session` from
    then on.
    """

    engine: Engine
    tables: Tables = field(default_factory=Tables.of)

    def __post_init__(self) -> None:
        unify_sessions(self.engine)

    def connect(self) -> Connection:
        """Open a connection, for statements that read."""
        return self.engine.connect()

    def qualified(self, sink: Sink) -> Sink:
        """Return a sink whose name means the same in every session; see `Sink.qualified`."""
        with self.connect() as conn:
            return sink.qualified(conn, self.tables.offset_batches)


def sql_text(statements: Iterable[ClauseElement], dialect: Dialect) -> str:
    """Return statements as text that a client of the database can run."""
    plain = without_placeholders(dialect)
    return "".join(
        f"{str(statement.compile(dialect=plain, compile_kwargs={'literal_binds': True})).strip()};\n\n"
        for statement in statements
    )
