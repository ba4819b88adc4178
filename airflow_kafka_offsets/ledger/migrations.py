"""The migrations of the state tables from one schema version to the next, in order.

A migration names its columns itself, since `Tables` has the columns of the current version only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import DropIndex, ExecutableDDLElement
from sqlalchemy.sql.compiler import DDLCompiler

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.database.mysql import is_mysql
from airflow_kafka_offsets.database.tables import ExactString
from airflow_kafka_offsets.exceptions import LedgerError
from airflow_kafka_offsets.ledger.tables import NAME_LENGTH, PARTIAL_INDEX_DIALECTS, Tables, UtcDateTime


class TableStatement(ExecutableDDLElement):
    """A statement about tables, whose quoted names replace `{}`, as the name of an index replaces `{index}`."""

    inherit_cache = False

    def __init__(self, text: str, *tables: sa.Table, index: str = "") -> None:
        self.text = text
        self.tables = tables
        self.index = index


@compiles(TableStatement)
def _with_names(element: TableStatement, compiler: DDLCompiler, **_: object) -> str:
    preparer = compiler.preparer
    return element.text.format(
        ", ".join(map(preparer.format_table, element.tables)), index=preparer.quote(element.index)
    )


Statement = TableStatement | DropIndex | sa.Update


def upgrade_statements(conn: Connection, tables: Tables, version: int) -> Iterator[Statement]:
    """Yield the statements that upgrade the tables from a version to the current one.

    To upgrade, run each statement before the next one is asked for: a migration locks tables before it checks their
    data.

    :raises LedgerError: the data do not allow a migration
    """
    stored = tables.schema_version
    for to_version, migration in MIGRATIONS.items():
        if to_version > version:
            yield from migration(conn, tables)
            yield stored.update().where(stored.c.version == to_version - 1).values(version=to_version)


def _drop_lateness(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Drop the columns of records that were loaded after a position."""
    offsets, ranges = tables.consumed_offsets, tables.offset_ranges
    # SQLite has one writer at a time; in other databases the first ALTER TABLE ends the lock.
    if conn.dialect.name == "postgresql":
        # No load may commit between the check and the statements.
        yield TableStatement("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", offsets, ranges)
    _refuse_lateness(conn, tables)
    ahead = ("ahead_offset", "ahead_before_ms")
    for table, columns in ((offsets, ahead), (ranges, ("loaded_offset", "loaded_before_ms", *ahead))):
        # A database without transactional DDL keeps the changes of an interrupted migration.
        existing = _column_names(conn, table)
        for column in columns:
            if column in existing:
                yield TableStatement(f"ALTER TABLE {{}} DROP COLUMN {column}", table)


def _refuse_lateness(conn: Connection, tables: Tables) -> None:
    """Raise an error where records after a position are loaded already: without these columns they would be loaded
    again.
    """
    offsets, ranges, batches = tables.consumed_offsets, tables.offset_ranges, tables.offset_batches.c
    ahead: sa.ColumnClause[int] = sa.column("ahead_offset", sa.BigInteger)
    # Staged files of an open batch may have such records, too.
    of_open_batches = (
        sa.select(batches.consumer_group)
        .join(ranges, ranges.c.batch_id == batches.batch_id)
        .where(
            batches.state.in_(("planned", "staged")),
            ranges.c.end_offset == ranges.c.target_offset,
            ahead > ranges.c.end_offset,
        )
    )
    of_positions = sa.select(offsets.c.consumer_group).where(ahead > offsets.c.offset_value)
    groups: set[str] = set()
    for table, query in ((offsets, of_positions), (ranges, of_open_batches)):
        if "ahead_offset" in _column_names(conn, table):
            groups |= set(conn.scalars(query))
    if groups:
        raise LedgerError(
            "The state tables cannot be upgraded to schema version 2: records after the positions of group "
            f"{first_few(map(repr, sorted(groups)))} are loaded already (lateness), which version 2 does not store, so "
            "that they would be loaded again. Nothing was changed. With the installed version of "
            "airflow-kafka-offsets before the upgrade, run a load without until for each of these groups, which moves "
            "the positions past those records; then run 'airflow kafka-offsets init' again"
        )


def _add_authors(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Add the columns of who triggered a task's run, and of the users of its process and of the database."""
    existing = _column_names(conn, tables.offset_batches)
    for column in ("triggered_by", "os_user", "database_user"):
        if column not in existing:
            # SQL Server has no "ADD COLUMN"; the others need no "COLUMN".
            yield TableStatement(f"ALTER TABLE {{}} ADD {column} TEXT", tables.offset_batches)


def _add_spans(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Add the columns of the span of time whose records a replay takes."""
    existing, batches = _column_names(conn, tables.offset_batches), tables.offset_batches
    for column in ("records_since_ms", "records_until_ms"):
        if column not in existing:
            yield TableStatement(f"ALTER TABLE {{}} ADD {column} BIGINT", batches)


def _add_error_class(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Add the column of what is wrong with a dead letter. Those that are there have none."""
    if "error_class" not in _column_names(conn, tables.dead_letters):
        yield TableStatement("ALTER TABLE {} ADD error_class VARCHAR(20)", tables.dead_letters)


def _add_schemas(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Add what schema ids meant, the columns that a batch added to its target, and what is still to be sent or dropped
    of dead letters.
    """
    dialect, letters, batches = conn.dialect, tables.dead_letters, tables.offset_batches
    instant = UtcDateTime().compile(dialect=dialect)
    for table, columns in (
        (letters, {"schema_id": "BIGINT"}),
        (batches, {"added_columns": "TEXT", "letters_topic": "VARCHAR(249)", "letters_sent_at": instant}),
    ):
        existing = _column_names(conn, table)
        for column, type_ in columns.items():
            if column not in existing:
                yield TableStatement(f"ALTER TABLE {{}} ADD {column} {type_}", table)
    # Elsewhere a TEXT has no limit.
    text = "LONGTEXT" if is_mysql(dialect) else "TEXT"
    yield TableStatement(
        f"CREATE TABLE IF NOT EXISTS {{}} (digest VARCHAR(64) NOT NULL, type VARCHAR(20) NOT NULL, texts {text} NOT "
        "NULL, PRIMARY KEY (digest))",
        tables.schema_texts,
    )
    yield TableStatement(
        "CREATE TABLE IF NOT EXISTS {} (batch_id BIGINT NOT NULL, part VARCHAR(20) NOT NULL, schema_id BIGINT NOT "
        "NULL, digest VARCHAR(64) NOT NULL, PRIMARY KEY (batch_id, part, schema_id))",
        tables.batch_schemas,
    )
    if dialect.name in PARTIAL_INDEX_DIALECTS:
        yield TableStatement(
            "CREATE INDEX IF NOT EXISTS {index} ON {} (consumer_group, batch_id) "
            "WHERE coalesce(error_class, '') NOT IN ('dropped', 'size')",
            letters,
            index=f"{tables.prefix}dead_letters_with_contents",
        )
        yield TableStatement(
            "CREATE INDEX IF NOT EXISTS {index} ON {} (consumer_group) "
            "WHERE letters_topic IS NOT NULL AND letters_sent_at IS NULL",
            batches,
            index=f"{tables.prefix}offset_batches_unsent",
        )


def _add_publications(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Add what targets need that commit elsewhere, or get files of Spark's tasks: when a batch began to be published,
    since when it may have left files, and a name of these tables; and the number of rows in each of several targets.
    """
    dialect, batches = conn.dialect, tables.offset_batches
    existing, instant = _column_names(conn, batches), UtcDateTime().compile(dialect=dialect)
    for column, type_ in {"publishing_at": instant, "files_since": instant, "outputs": "TEXT"}.items():
        if column not in existing:
            yield TableStatement(f"ALTER TABLE {{}} ADD {column} {type_}", batches)
    yield TableStatement(
        "CREATE TABLE IF NOT EXISTS {} (number INTEGER NOT NULL, installation_id VARCHAR(40) NOT NULL, PRIMARY KEY "
        "(number))",
        tables.installation,
    )
    if dialect.name in PARTIAL_INDEX_DIALECTS:
        yield TableStatement(
            "CREATE INDEX IF NOT EXISTS {index} ON {} (consumer_group) WHERE publishing_at IS NOT NULL",
            batches,
            index=f"{tables.prefix}offset_batches_publishing",
        )
        yield TableStatement(
            "CREATE INDEX IF NOT EXISTS {index} ON {} (consumer_group) WHERE files_since IS NOT NULL",
            batches,
            index=f"{tables.prefix}offset_batches_with_files",
        )


def _add_published_letters(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Add the column of the replay that may have published a dead letter."""
    if "publishing" not in _column_names(conn, tables.dead_letters):
        yield TableStatement("ALTER TABLE {} ADD publishing VARCHAR(80)", tables.dead_letters)


def _allow_loads_ahead(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Let a group have one load at most that is planned ahead of its open one."""
    dialect, batches = conn.dialect, tables.offset_batches
    index = f"{tables.prefix}offset_batches_one_ahead"
    if dialect.name in PARTIAL_INDEX_DIALECTS:
        yield TableStatement(
            "CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {} (consumer_group) WHERE kind = 'load' AND state IN "
            "('ahead')",
            batches,
            index=index,
        )
    elif is_mysql(dialect) and "ahead_load" not in _column_names(conn, batches):
        type_ = ExactString(NAME_LENGTH).compile(dialect=dialect)
        yield TableStatement(
            f"ALTER TABLE {{}} ADD ahead_load {type_} GENERATED ALWAYS AS (CASE WHEN kind = 'load' AND state IN "
            "('ahead') THEN "
            "consumer_group END) STORED, ADD UNIQUE KEY {index} (ahead_load)",
            batches,
            index=index,
        )


def _add_dead_letter_batches(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Let dead letters name the batch that replays them, in the place of the attempt that may have published them."""
    letters, publishing = tables.dead_letters, sa.column("publishing", sa.Text)
    existing = _column_names(conn, letters)
    if "publishing" in existing and conn.scalar(
        sa.select(publishing).select_from(letters).where(publishing.is_not(None))
    ):
        raise LedgerError(
            "The state tables cannot be upgraded to schema version 10: a replay of dead letters was interrupted, and "
            "its target may have rows of them already. Nothing was changed. With the installed version of "
            "airflow-kafka-offsets before the upgrade, replay dead letters of each group once more; then run 'airflow "
            "kafka-offsets init' again"
        )
    if "replayed_by" not in existing:
        yield TableStatement("ALTER TABLE {} ADD replayed_by BIGINT", letters)
    # Statements that are only printed have not added it.
    if "publishing" in existing or "replayed_by" not in existing:
        yield TableStatement("ALTER TABLE {} DROP COLUMN publishing", letters)


def _rename_columns(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Give columns, states and kinds of batches the words of Kafka and Airflow; indexes follow."""
    yield from _add_dead_letter_batches(conn, tables)
    dialect, batches = conn.dialect, tables.offset_batches
    partial = {
        "unsent": "dead_letter_topic IS NOT NULL AND dead_letters_sent_at IS NULL",
        "publishing": "publish_started_at IS NOT NULL",
        "with_files": "has_files_since IS NOT NULL",
    }
    if dialect.name in PARTIAL_INDEX_DIALECTS:
        for name in (*partial, "one_ahead"):
            yield _drop_index(tables, f"offset_batches_{name}")
    for table, renamed in RENAMED_COLUMNS.items():
        stored = getattr(tables, table)
        existing = _column_names(conn, stored)
        for old, new in renamed.items():
            # Not by the old name: statements that are only printed have added none of these columns.
            if new not in existing:
                yield TableStatement(f"ALTER TABLE {{}} RENAME COLUMN {old} TO {new}", stored)
    yield batches.update().where(batches.c.state == "ahead").values(state="prefetched")
    yield batches.update().where(batches.c.kind == "start").values(kind="initialize")
    function_name = sa.func.replace(batches.c.target_table, "callable://", "function://")
    yield batches.update().where(batches.c.target_table.like("%callable://%")).values(target_table=function_name)
    index = f"{tables.prefix}offset_batches_one_prefetched"
    is_prefetched = "kind = 'load' AND state IN ('prefetched')"
    if dialect.name in PARTIAL_INDEX_DIALECTS:
        for name, condition in partial.items():
            yield TableStatement(
                f"CREATE INDEX IF NOT EXISTS {{index}} ON {{}} (consumer_group) WHERE {condition}",
                batches,
                index=f"{tables.prefix}offset_batches_{name}",
            )
        yield TableStatement(
            f"CREATE UNIQUE INDEX IF NOT EXISTS {{index}} ON {{}} (consumer_group) WHERE {is_prefetched}",
            batches,
            index=index,
        )
    elif is_mysql(dialect) and "prefetched_load" not in _column_names(conn, batches):
        type_ = ExactString(NAME_LENGTH).compile(dialect=dialect)
        replaced = dialect.identifier_preparer.quote(f"{tables.prefix}offset_batches_one_ahead")
        yield TableStatement(
            f"ALTER TABLE {{}} DROP KEY {replaced}, DROP COLUMN ahead_load, "
            f"ADD prefetched_load {type_} GENERATED ALWAYS AS (CASE WHEN {is_prefetched} THEN "
            "consumer_group END) STORED, ADD UNIQUE KEY {index} (prefetched_load)",
            batches,
            index=index,
        )


RENAMED_COLUMNS = {
    "offset_batches": {
        "letters_topic": "dead_letter_topic",
        "letters_sent_at": "dead_letters_sent_at",
        "publishing_at": "publish_started_at",
        "files_since": "has_files_since",
    },
    "offset_ranges": {"replaced_from": "replaced_start_offset", "replaced_to": "replaced_end_offset"},
}
"""The columns that version 10 renames, by table."""


def _drop_index(tables: Tables, name: str) -> Statement:
    """Return the statement that drops an index of the batches, in the schema of its table."""
    batches = sa.Table(
        tables.offset_batches.name, sa.MetaData(schema=tables.metadata.schema), sa.Column("consumer_group", sa.Text)
    )
    return DropIndex(sa.Index(f"{tables.prefix}{name}", batches.c.consumer_group), if_exists=True)


def _column_names(conn: Connection, table: sa.Table) -> set[str]:
    return {column["name"] for column in sa.inspect(conn).get_columns(table.name, schema=table.schema)}


MIGRATIONS: dict[int, Callable[[Connection, Tables], Iterator[Statement]]] = {
    2: _drop_lateness,
    3: _add_authors,
    4: _add_spans,
    5: _add_error_class,
    6: _add_schemas,
    7: _add_publications,
    8: _add_published_letters,
    9: _allow_loads_ahead,
    10: _rename_columns,
}
"""The migrations by the version to which they lead. A migration yields statements, without those that an interrupted
one has run.
"""
