"""The state tables as SQLAlchemy tables: names, columns, schema version, and the DDL as text.

`docs/state-tables.md` describes what a row of each table means.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.sql import ClauseElement
from sqlalchemy.types import TypeDecorator

from airflow_kafka_offsets.exceptions import ConfigurationError

SCHEMA_VERSION = 2

NAME_LENGTH = 250
"""The most characters of a group's name, and of other names in the tables."""

# The dialects with partial indexes (without WHERE, the index would forbid a group's second batch) and with CREATE INDEX IF NOT
# EXISTS.
_PARTIAL_INDEX_DIALECTS = ("postgresql", "sqlite")


class UtcDateTime(TypeDecorator[datetime]):
    """An instant: with a time zone on PostgreSQL, elsewhere as UTC without a time zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or dialect.name == "postgresql":
            return value
        return value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None or value.tzinfo is not None:
            return value
        return value.replace(tzinfo=UTC)


class Tables:
    """The state tables, in a schema or with a prefix before their names.

    :param schema: the database schema; None is the connection's default
    :param prefix: put before the name of every table
    """

    def __init__(self, schema: str | None = None, prefix: str = "") -> None:
        self.metadata = sa.MetaData(schema=schema)
        self._prefix = prefix
        # Kafka limits topic names to 249 characters; MySQL needs a length for text in a key.
        topic = sa.String(249)
        name = sa.String(NAME_LENGTH)
        # SQLite generates numbers only for a primary key of type INTEGER.
        serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

        self.schema_version = self._table(
            "offsets_schema_version",
            sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
        )
        self.consumer_groups = self._table(
            "consumer_groups",
            sa.Column("group_id", name, primary_key=True),
            sa.Column("cluster_id", name),
            sa.Column("generation", sa.BigInteger, nullable=False),
            sa.Column("epoch", sa.BigInteger, nullable=False),
            sa.Column("lease_owner", sa.Text),
            sa.Column("lease_expires_at", UtcDateTime),
        )
        self.consumed_offsets = self._table(
            "consumed_offsets",
            sa.Column("consumer_group", name, primary_key=True),
            sa.Column("topic", topic, primary_key=True),
            sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("offset_value", sa.BigInteger, nullable=False),
            sa.Column("topic_id", sa.String(40)),
            sa.Column("leader_epoch", sa.Integer),
            sa.Column("record_timestamp", UtcDateTime),
            sa.Column("batch_id", sa.BigInteger, nullable=False),
            sa.Column("updated_at", UtcDateTime, nullable=False),
        )
        self.offset_batches = self._table(
            "offset_batches",
            sa.Column("batch_id", serial, primary_key=True, autoincrement=True),
            sa.Column("consumer_group", name, nullable=False),
            sa.Column("generation", sa.BigInteger, nullable=False),
            sa.Column("kind", sa.String(20), nullable=False),
            sa.Column("state", sa.String(20), nullable=False),
            sa.Column("attempt", sa.Integer, nullable=False),
            sa.Column("epoch", sa.BigInteger),
            sa.Column("dag_id", name),
            sa.Column("task_id", name),
            sa.Column("run_id", name),
            sa.Column("map_index", sa.Integer),
            sa.Column("try_number", sa.Integer),
            sa.Column("target_table", sa.Text),
            sa.Column("staging_uri", sa.Text),
            sa.Column("transform", sa.Text),
            sa.Column("fingerprint", sa.String(64)),
            sa.Column("records", sa.BigInteger),
            sa.Column("row_count", sa.BigInteger),
            sa.Column("dead_letters", sa.BigInteger),
            sa.Column("scenario", sa.Text),
            sa.Column("reason", sa.Text),
            sa.Column("who", sa.Text),
            sa.Column("planned_at", UtcDateTime, nullable=False),
            sa.Column("staged_at", UtcDateTime),
            sa.Column("committed_at", UtcDateTime),
        )
        batches = self.offset_batches.c
        self._index("by_run", batches.consumer_group, batches.run_id, batches.task_id)
        self._index("by_group", batches.consumer_group, batches.batch_id)
        still_open = sa.and_(batches.kind == "load", batches.state.in_(("planned", "staged")))
        self._one_open = self._index(
            "one_open", batches.consumer_group, unique=True, postgresql_where=still_open, sqlite_where=still_open
        )
        self._one_open.ddl_if(callable_=lambda *_, dialect, **__: dialect.name in _PARTIAL_INDEX_DIALECTS)
        self.offset_ranges = self._table(
            "offset_ranges",
            sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("topic", topic, primary_key=True),
            sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("topic_id", sa.String(40)),
            sa.Column("start_offset", sa.BigInteger, nullable=False),
            sa.Column("end_offset", sa.BigInteger, nullable=False),
            sa.Column("target_offset", sa.BigInteger, nullable=False),
            sa.Column("leader_epoch", sa.Integer),
            sa.Column("end_epoch", sa.Integer),
            sa.Column("replaced_from", sa.BigInteger),
            sa.Column("replaced_to", sa.BigInteger),
            sa.Column("records", sa.BigInteger),
            sa.Column("dead_letters", sa.BigInteger),
            sa.Column("bytes", sa.BigInteger),
            sa.Column("first_timestamp", UtcDateTime),
            sa.Column("last_timestamp", UtcDateTime),
            sa.Column("how", sa.String(20), nullable=False),
        )
        self.offset_gaps = self._table(
            "offset_gaps",
            sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("topic", topic, primary_key=True),
            sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("start_offset", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("end_offset", sa.BigInteger, nullable=False),
            sa.Column("cause", sa.Text, nullable=False),
            sa.Column("decision", sa.Text, nullable=False),
        )
        self.replaced_output = self._table(
            "replaced_output",
            sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("replaced_batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("topic", topic, primary_key=True),
            sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("row_count", sa.BigInteger, nullable=False),
            sa.Column("dead_letters", sa.BigInteger, nullable=False),
        )
        self.dead_letters = self._table(
            "dead_letters",
            sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("topic", topic, primary_key=True),
            sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("offset_value", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("consumer_group", name, nullable=False),
            sa.Column("key", sa.LargeBinary),
            sa.Column("value", sa.LargeBinary),
            sa.Column("headers", sa.Text),
            sa.Column("record_timestamp", UtcDateTime),
            sa.Column("error", sa.Text, nullable=False),
        )

    def check_names(self, dialect: Dialect) -> None:
        """Check that the database keeps the names whole: Postgres truncates them without an error.

        :raises ConfigurationError: a name is too long
        """
        for table in self.metadata.sorted_tables:
            for name in (table.name, *(str(index.name) for index in table.indexes)):
                size = len(name.encode()) if dialect.name == "postgresql" else len(name)
                if size > dialect.max_identifier_length:
                    raise ConfigurationError(
                        f"The name {name!r} is longer than the {dialect.max_identifier_length} that {dialect.name} keeps: "
                        f"choose a shorter prefix than {self._prefix!r}"
                    )

    def _table(self, name: str, *columns: sa.Column[object]) -> sa.Table:
        return sa.Table(f"{self._prefix}{name}", self.metadata, *columns)

    def _index(self, name: str, *columns: sa.ColumnElement[object], **options: object) -> sa.Index:
        return sa.Index(f"{self._prefix}offset_batches_{name}", *columns, **options)  # type: ignore[arg-type]

    def ddl(self, dialect: Dialect) -> str:
        """Return the statements that `init` runs on an empty database, for users without the right to run DDL."""
        self.check_names(dialect)
        statements: list[ClauseElement] = []
        partial = dialect.name in _PARTIAL_INDEX_DIALECTS
        for table in self.metadata.sorted_tables:
            statements.append(CreateTable(table, if_not_exists=True))
            statements.extend(
                CreateIndex(index, if_not_exists=partial)
                for index in sorted(table.indexes, key=lambda index: str(index.name))
                if partial or index is not self._one_open
            )
        statements.append(self.schema_version.insert().values(version=SCHEMA_VERSION))
        return sql_text(statements, dialect)


def sql_text(statements: Iterable[ClauseElement], dialect: Dialect) -> str:
    """Return statements as text that a client of the database can run."""
    # The paramstyle of drivers that format statements would double a % in a name.
    dialect = type(dialect)(paramstyle="named")  # type: ignore[call-arg]
    return "".join(
        f"{str(statement.compile(dialect=dialect, compile_kwargs={'literal_binds': True})).strip()};\n\n"
        for statement in statements
    )
