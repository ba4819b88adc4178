"""`airflow kafka-offsets history`: the batches of a group, or all of one batch."""

from __future__ import annotations

from argparse import Namespace

from airflow_kafka_offsets.cli.command import command, database
from airflow_kafka_offsets.cli.output import note, show
from airflow_kafka_offsets.core.text import count
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
    """Print batches, the newest first; or the ranges, gaps and replaced output of one."""
    with database(args) as (engine, tables), engine.connect() as conn:
        if args.batch is not None:
            rows = batch_parts(conn, tables, args.group, args.batch)
            show(
                rows, args.output, [key for key in rows[0] if any(row[key] is not None for row in rows)] if rows else ()
            )
            return
        rows = batches(conn, tables, args.group, args.limit + 1)
    newest = rows[: args.limit]
    if args.output in ("table", "plain"):
        newest = [row | {"by": _author(row)} for row in newest]
    show(newest, args.output, _BATCH_COLUMNS)
    if len(rows) > args.limit:
        note(f"The group has more than {count(args.limit, 'batch', 'batches')}; --limit shows more of them")


def _author(row: Row) -> str | None:
    """Return the user or the task that made a batch."""
    return row["who"] or "/".join(str(row[key]) for key in ("dag_id", "task_id", "run_id") if row[key] is not None)
