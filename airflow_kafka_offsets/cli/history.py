"""`airflow kafka-offsets history`: the batches of a group, or all of one batch."""

from __future__ import annotations

from argparse import Namespace

from airflow_kafka_offsets.cli.command import command, database
from airflow_kafka_offsets.cli.output import note, show
from airflow_kafka_offsets.ledger.overview import Row, batch_parts, batches

_BATCH_COLUMNS = (
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
)


@command("history")
def history(args: Namespace) -> None:
    """Batches, the newest first; or ranges, gaps and replaced output of one."""
    with database(args) as (engine, tables), engine.connect() as conn:
        if args.batch is not None:
            rows = batch_parts(conn, tables, args.group, args.batch)
            filled = [key for key in rows[0] if any(row[key] is not None for row in rows)] if rows else None
            show(rows, args.output, filled)
            return
        rows = batches(conn, tables, args.group, args.limit + 1)
    shown = rows[: args.limit]
    if args.output in ("table", "plain"):
        show([row | {"by": _by(row)} for row in shown], args.output, _BATCH_COLUMNS)
    else:
        show(shown, args.output)
    if len(rows) > args.limit:
        note(f"Only the newest {args.limit:,} batches are shown; --limit shows more")


def _by(row: Row) -> str | None:
    """Who did it, in one column."""
    task = "/".join(str(row[key]) for key in ("dag_id", "task_id", "run_id") if row[key] is not None)
    by: str | None = row["who"] or task or None
    return by
