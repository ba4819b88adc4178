"""`airflow kafka-offsets rewind`, `import` and `abandon`."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from airflow_kafka_offsets.cli.command import Database, command, database
from airflow_kafka_offsets.cli.output import note, show
from airflow_kafka_offsets.core.scope import parse_scope
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.kafka import kafka_config
from airflow_kafka_offsets.rewinding.preview import RewindPreview
from airflow_kafka_offsets.rewinding.rewind import abandon_batch, execute_rewind, preview_rewind
from airflow_kafka_offsets.rewinding.scenarios import SCENARIOS, Scenario
from airflow_kafka_offsets.sinks.sql.table import SqlTable


@command("rewind")
def rewind(args: Namespace) -> None:
    """Preview a rewind, or execute it; one that was saved is executed as it was shown."""
    with database(args) as found:
        if args.preview is not None:
            if _chosen(args) or args.topics:
                raise ConfigurationError("--preview says what is moved: leave out the scenario and the scope")
            preview = RewindPreview.from_json(_text(args.preview))
            if preview.group_id != args.group:
                raise ConfigurationError(f"The saved preview is of group {preview.group_id!r}, not of {args.group!r}")
        else:
            preview = _preview(args, _scenario(args), found)
        _done(args, preview, found)


@command("import")
def import_group(args: Namespace) -> None:
    """Preview the positions that a consumer group of Kafka's committed, or make them those of a group."""
    with database(args) as found:
        _done(args, _preview(args, Scenario.of("import", args.from_group), found), found)


@command("abandon")
def abandon(args: Namespace) -> None:
    """Give an open batch up."""
    with database(args) as (engine, tables):
        abandon_batch(args.group, args.batch, engine=engine, tables=tables, who=args.who, reason=args.reason)
    show([{"group": args.group, "batch": args.batch, "state": "abandoned"}], args.output)
    note(f"Batch {args.batch} of group {args.group!r} is abandoned; its attempt can never commit")


def _chosen(args: Namespace) -> list[tuple[str, Any]]:
    """The scenarios that were given, with their values."""
    values = {name: getattr(args, name.replace("-", "_"), None) for name in SCENARIOS}
    return [(name, None if value is True else value) for name, value in values.items() if value not in (None, False)]


def _scenario(args: Namespace) -> Scenario:
    chosen = _chosen(args)
    if len(chosen) != 1:
        given = ", ".join(f"--{name}" for name, _ in chosen) or "none"
        options = ", ".join(f"--{name}" for name in SCENARIOS if name != "import")
        raise ConfigurationError(f"A rewind takes exactly one of {options}, or --preview; got {given}")
    name, value = chosen[0]
    return Scenario.of(name, _text(value) if name == "from-file" else value, group_id=args.group)


def _preview(args: Namespace, scenario: Scenario, found: Database) -> RewindPreview:
    return preview_rewind(
        args.group,
        scenario,
        engine=found.engine,
        kafka_config=kafka_config(args.kafka_conn_id),
        tables=found.tables,
        scope=parse_scope(args.topics or ()),
        isolation_level=args.isolation_level,
        new_group=getattr(args, "new_group", False),
        new_cluster=args.new_cluster,
    )


def _done(args: Namespace, preview: RewindPreview, found: Database) -> None:
    """Show a preview, and execute it where that is asked."""
    target = None
    if args.replace is not None:
        target = SqlTable(args.replace, args.table_schema)
        preview.refuse_replace()
    rewound = None
    if args.execute:
        rewound = execute_rewind(
            preview,
            engine=found.engine,
            tables=found.tables,
            who=args.who,
            reason=args.reason,
            abandon=args.abandon,
            replace=target,
        )
    _show(preview, args.output)
    if preview.instant is not None:
        note(f"The instant meant is {preview.instant.isoformat()}")
    told = f"{preview.offsets_again:,} offsets are read again, {preview.offsets_skipped:,} were never loaded and are skipped"
    if rewound is None:
        if preview.open_batch is not None:
            note(f"Batch {preview.open_batch} is open: finish it first, or add --abandon {preview.open_batch}")
        note(f"{len(preview.changed)} positions would change: {told}. Nothing was changed; add --execute to do it")
    elif rewound.batch_id is None:
        note(
            f"No position was to be changed{f'; batch {args.abandon} is abandoned' if args.abandon is not None else ''}"
        )
    else:
        removed = (
            f"; {rewound.rows_removed:,} rows and {rewound.dead_letters_removed:,} dead letters were removed"
            if target is not None
            else ""
        )
        note(f"{rewound.moved} positions were changed, as number {rewound.batch_id} of the history: {told}{removed}")


def _show(preview: RewindPreview, output: str) -> None:
    if output == "json":
        # What --preview reads.
        sys.stdout.write(json.dumps(preview.as_dict(), indent=2) + "\n")
        return
    show(
        [
            {
                "topic": one.topic,
                "partition": one.partition,
                "beginning_offset": one.beginning,
                "end_offset": one.end,
                "old_offset": one.old.offset if one.old is not None else None,
                "new_offset": one.new.offset if one.new is not None else None,
                "difference": one.difference,
                "read_again": one.offsets_again,
                "skipped": one.offsets_skipped,
                "clamped": one.clamped,
                "note": one.note,
            }
            for one in preview.partitions
        ],
        output,
    )


def _text(path: str) -> str:
    """A file's text; `-` is standard input."""
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"File {path!r} cannot be read: {error}") from error
