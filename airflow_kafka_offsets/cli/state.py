"""`kafka-offsets init` and `history`: the state tables as they are, without a request to Kafka."""

from __future__ import annotations

from argparse import Namespace

from sqlalchemy.exc import DBAPIError

from airflow_kafka_offsets.cli.command import database, usage
from airflow_kafka_offsets.cli.output import note, show, write
from airflow_kafka_offsets.core.text import count, shortened
from airflow_kafka_offsets.database.errors import database_message, is_outage
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.ledger import install, overview
from airflow_kafka_offsets.ledger.tables import SCHEMA_VERSION, Ledger

_BATCH_COLUMNS = [
    "batch_id",
    "kind",
    "state",
    "scenario",
    "records",
    "rows",
    "dead_letters",
    "by",
    "planned_at",
    "committed_at",
    "reason",
]


def init(args: Namespace) -> None:
    """Create or upgrade the state tables, or print the statements."""
    with database(args) as ledger:
        granted = _grants(args, ledger)
        if args.show_sql:
            try:
                text = install.statements(ledger)
            except DBAPIError as error:
                if not is_outage(error):
                    raise
                note(
                    f"The database cannot be read: {database_message(error)}. These are the statements for a database "
                    "without state tables"
                )
                text = ledger.tables.ddl(ledger.engine.dialect)
            write(text + granted)
            if not text:
                left = "only the grants are to be run" if granted else "there is nothing to run"
                note(f"The state tables already have schema version {SCHEMA_VERSION}: {left}")
            return
        with ledger.connect() as conn:
            before = install.stored_version(conn, ledger.tables)
        changed = install.initialize(ledger)
        with ledger.engine.begin() as conn:
            try:
                for statement in granted.splitlines():
                    conn.exec_driver_sql(statement)
            except DBAPIError as error:
                raise ConfigurationError(
                    f"The state tables exist, but nothing was granted to {args.grant_to!r}: {database_message(error)}. "
                    "Create the role, or correct --grant-to; this user must own the tables"
                ) from error
    if not changed:
        outcome = "exist already, in the version of this package,"
    elif before is None:
        outcome = "were created"
    else:
        outcome = f"were upgraded from schema version {before} to {SCHEMA_VERSION}"
    note(f"The state tables {outcome} in database {ledger.engine.url.database!r}")


def _grants(args: Namespace, ledger: Ledger) -> str:
    """Return the statements of `--grant-to`, a line each; empty without it."""
    dialect = ledger.engine.dialect
    with usage():
        if args.grant_moves and args.grant_to is None:
            raise ConfigurationError("--grant-moves needs --grant-to with the name of a role")
        if args.grant_to is not None and dialect.name == "sqlite":
            raise ConfigurationError("SQLite has no privileges on tables, only those on its file: leave out --grant-to")
    return (
        "" if args.grant_to is None else install.grants(ledger.tables, dialect, args.grant_to, moves=args.grant_moves)
    )


def history(args: Namespace) -> None:
    """Print batches, the newest first; or the ranges, gaps and replaced output of one."""
    with database(args) as ledger, ledger.connect() as conn:
        if args.batch is not None:
            rows = overview.batch_parts(conn, ledger.tables, args.group, args.batch)
            if args.output in ("table", "plain"):
                rows = [row | {"schema": row["schema"] and shortened(row["schema"], 80)} for row in rows]
            names = rows[0] if rows else ()
            show(rows, args.output, [name for name in names if any(row[name] is not None for row in rows)])
            compacted = overview.compacted_with(conn, ledger.tables, args.group, args.batch)
            if compacted is not None:
                first, last = compacted
                note(f"Batches {first} to {last} were compacted: batch {last} has the ranges of all of them")
            return
        rows = overview.batches(conn, ledger.tables, args.group, args.limit + 1)
    newest = rows[: args.limit]
    if args.output in ("table", "plain"):
        newest = [
            row | {"by": _author(row), "scenario": row["scenario"] if row["scenario"] != row["kind"] else None}
            for row in newest
        ]
    show(newest, args.output, _BATCH_COLUMNS)
    if len(rows) > args.limit:
        note(f"The group has more than {count(args.limit, 'batch', 'batches')}; --limit shows more of them")


def _author(row: overview.Row) -> str | None:
    """Return the user or the task that made a batch, and who is behind it."""
    who = row["who"] or "/".join(str(row[key]) for key in ("dag_id", "task_id", "run_id") if row[key] is not None)
    if row["triggered_by"] is not None:
        return f"{who}, triggered by {row['triggered_by']}"
    # Outside of Airflow, the name of a user is a claim.
    claimed = row["dag_id"] is None and row["who"] not in (None, row["os_user"]) and row["os_user"] is not None
    return f"{who} ({row['os_user']})" if claimed else who
