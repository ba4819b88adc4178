"""The migrations of the state tables from one schema version to the next, in order.

A migration names its columns itself, since `Tables` has the columns of the current version only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable, DropIndex, ExecutableDDLElement
from sqlalchemy.sql.compiler import DDLCompiler

from airflow_kafka_offsets.database.mysql import is_mysql
from airflow_kafka_offsets.database.tables import ExactString
from airflow_kafka_offsets.exceptions import LedgerError
from airflow_kafka_offsets.ledger.batch_rows import renamed_keys
from airflow_kafka_offsets.ledger.tables import NAME_LENGTH, PARTIAL_INDEX_DIALECTS, Tables
from airflow_kafka_offsets.sinks.target_names import is_table, joined, schema_of_session, targets_in


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


Statement = TableStatement | CreateTable | DropIndex | sa.Update


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


def _add_dead_letter_batches(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Let dead letters name the batch that replays them, instead of the attempt that may have published them."""
    dead_letters, publishing = tables.dead_letters, sa.column("publishing", sa.Text)
    # SQLite has one writer at a time; in other databases the first ALTER TABLE ends the lock.
    if conn.dialect.name == "postgresql":
        # No replay may begin to publish between the check and the statements.
        yield TableStatement("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", dead_letters)
    existing = _column_names(conn, dead_letters)
    if "publishing" in existing and conn.scalar(
        sa.select(publishing).select_from(dead_letters).where(publishing.is_not(None))
    ):
        raise LedgerError(
            "The state tables cannot be upgraded to schema version 10: a replay of dead letters was interrupted, and "
            "its target may have their rows already. Nothing was changed. With the earlier version of "
            "airflow-kafka-offsets, replay the dead letters of each group again; then run 'kafka-offsets "
            "init' again"
        )
    if "replayed_by" not in existing:
        yield TableStatement("ALTER TABLE {} ADD replayed_by BIGINT", dead_letters)
    # Statements that are only printed have not added it.
    if "publishing" in existing or "replayed_by" not in existing:
        yield TableStatement("ALTER TABLE {} DROP COLUMN publishing", dead_letters)


def _rename_columns(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Rename columns, states and kinds of batches, and their indexes."""
    yield from _add_dead_letter_batches(conn, tables)
    dialect, batches = conn.dialect, tables.offset_batches
    partial = {
        "unsent": "dead_letter_topic IS NOT NULL AND dead_letters_sent_at IS NULL",
        "publishing": "publish_started_at IS NOT NULL",
        "with_files": "has_files_since IS NOT NULL",
        "replays": "kind = 'replay' OR kind = 'delete'",
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
    is_prefetched = "kind = 'load' AND state IN ('prefetched')"
    if dialect.name in PARTIAL_INDEX_DIALECTS:
        for name, condition in partial.items():
            yield _create_index(tables, "INDEX", name, condition)
        yield _create_index(tables, "UNIQUE INDEX", "one_prefetched", is_prefetched)
    elif is_mysql(dialect) and "prefetched_load" not in _column_names(conn, batches):
        type_ = ExactString(NAME_LENGTH).compile(dialect=dialect)
        quote = dialect.identifier_preparer.quote
        replaced = quote(f"{tables.prefix}offset_batches_one_ahead")
        keys = "".join(
            f", ADD KEY {quote(f'{tables.prefix}offset_batches_{name}')} ({columns}, consumer_group)"
            for name, columns in {
                "unsent": "dead_letters_sent_at, dead_letter_topic",
                "publishing": "publish_started_at",
                "with_files": "has_files_since",
                "replays": "kind",
            }.items()
        )
        dead_letters, index = tables.dead_letters, f"{tables.prefix}dead_letters_with_contents"
        indexes = sa.inspect(conn).get_indexes(dead_letters.name, schema=dead_letters.schema)
        if index not in {existing["name"] for existing in indexes}:
            columns = "(consumer_group, batch_id, error_class)"
            yield TableStatement(f"CREATE INDEX {{index}} ON {{}} {columns}", dead_letters, index=index)
        yield TableStatement(
            f"ALTER TABLE {{}} DROP KEY {replaced}, DROP COLUMN ahead_load, "
            f"ADD prefetched_load {type_} GENERATED ALWAYS AS (CASE WHEN {is_prefetched} THEN "
            f"consumer_group END) STORED, ADD UNIQUE KEY {{index}} (prefetched_load){keys}",
            batches,
            index=f"{tables.prefix}offset_batches_one_prefetched",
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


def _create_index(tables: Tables, kind: str, name: str, condition: str) -> Statement:
    """Return the statement that creates a partial index of the batches by group."""
    text = f"CREATE {kind} IF NOT EXISTS {{index}} ON {{}} (consumer_group) WHERE {condition}"
    return TableStatement(text, tables.offset_batches, index=f"{tables.prefix}offset_batches_{name}")


def _drop_index(tables: Tables, name: str) -> Statement:
    """Return the statement that drops an index of the batches, in the schema of its table."""
    batches = sa.Table(
        tables.offset_batches.name, sa.MetaData(schema=tables.metadata.schema), sa.Column("consumer_group", sa.Text)
    )
    return DropIndex(sa.Index(f"{tables.prefix}{name}", batches.c.consumer_group), if_exists=True)


def _column_names(conn: Connection, table: sa.Table) -> set[str]:
    return {column["name"] for column in sa.inspect(conn).get_columns(table.name, schema=table.schema)}


def _add_erased_offsets(conn: Connection, tables: Tables) -> Iterator[Statement]:
    tables.set_options(conn.dialect)
    yield CreateTable(tables.erased_offsets, if_not_exists=True)


def _add_compaction(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Let a batch have the ranges of those before it."""
    batches, dialect = tables.offset_batches, conn.dialect
    name = f"{tables.prefix}offset_batches_compacted"
    if "compacted_from" not in _column_names(conn, batches):
        yield TableStatement("ALTER TABLE {} ADD compacted_from BIGINT", batches)
    if dialect.name in PARTIAL_INDEX_DIALECTS:
        yield _create_index(tables, "INDEX", "compacted", "compacted_from IS NOT NULL")
    elif name not in {index["name"] for index in sa.inspect(conn).get_indexes(batches.name, schema=batches.schema)}:
        yield TableStatement("CREATE INDEX {index} ON {} (compacted_from, consumer_group)", batches, index=name)


def _qualify_targets(conn: Connection, tables: Tables) -> Iterator[Statement]:
    """Give the names of tables without a schema the one in which this session finds them: now, such a name is of the
    schema of the state tables.
    """
    batches = tables.offset_batches
    names = conn.scalars(sa.select(batches.c.target_table).where(batches.c.target_table.is_not(None)).distinct()).all()
    for name in sorted(names):
        old = targets_in(name)
        bare = (each if is_table(each) and "." not in each else None for each in old)
        schemas = [None if each is None else schema_of_session(conn, each, batches) for each in bare]
        new = [f"{schema}.{each}" if schema else each for schema, each in zip(schemas, old, strict=True)]
        if new != old:
            outputs = renamed_keys(batches.c.outputs, old, new)
            renamed = joined(new) if len(new) > 1 else new[0]
            yield batches.update().where(batches.c.target_table == name).values(target_table=renamed, outputs=outputs)


MIGRATIONS: dict[int, Callable[[Connection, Tables], Iterator[Statement]]] = {
    10: _rename_columns,
    11: _add_erased_offsets,
    12: _add_compaction,
    13: _qualify_targets,
}
"""The migrations by the version to which they lead. A migration yields statements, without those that an interrupted
one has run.
"""

OLDEST_VERSION = min(MIGRATIONS) - 1
"""The first version that can be upgraded."""
