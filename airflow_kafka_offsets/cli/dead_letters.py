"""`kafka-offsets dead-letters list`, `show`, `replay` and `drop`."""

from __future__ import annotations

import base64
import json
from argparse import Namespace
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

from airflow_kafka_offsets.cli.command import check_change, confirm, database, offset_bounds, usage
from airflow_kafka_offsets.cli.load_target import check_target, pipeline_of, unparsed
from airflow_kafka_offsets.cli.output import note, show, show_each
from airflow_kafka_offsets.core.text import count, shortened
from airflow_kafka_offsets.database.transactions import database_now
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import (
    DeadLetter,
    DeadLetterFilter,
    count_by_batch,
    drop_dead_letters,
    read_dead_letters,
    summary,
)
from airflow_kafka_offsets.dead_letters.selection import topics as topics_of
from airflow_kafka_offsets.exceptions import ConfigurationError, KafkaOffsetsError
from airflow_kafka_offsets.ledger.dead_letter_batches import Replayed
from airflow_kafka_offsets.ledger.dead_letters import DROPPED
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.staging.rows import Record

_NONE = "The group has no such dead letters"


def list_dead_letters(args: Namespace) -> None:
    """Print how many there are, by batch, partition and error class."""
    dead_letters = _dead_letters(args)
    with database(args) as ledger, ledger.connect() as conn:
        cluster_of(conn, ledger.tables, args.group)  # raises if there is no such group
        show(summary(conn, ledger.tables, dead_letters), args.output, nothing=_NONE)


def show_dead_letters(args: Namespace) -> None:
    """Print dead letters with what they hold."""
    dead_letters = _dead_letters(args)
    with database(args) as ledger, ledger.connect() as conn:
        cluster_of(conn, ledger.tables, args.group)
        rows = map(_row, read_dead_letters(conn, ledger.tables, dead_letters, args.limit + 1))
        if args.output in ("table", "plain"):
            rows = map(_shortened, rows)
        show_each(islice(rows, args.limit), args.output, nothing=_NONE)
        if next(rows, None) is not None:
            note(f"The group has more than {count(args.limit, 'dead letter')}; --limit shows more of them")


def replay(args: Namespace) -> None:
    """Put dead letters through the pipeline, and print what became of them."""
    dead_letters = _dead_letters(args)
    corrected = _corrections(args.corrected)
    check_target(args, "A replay")
    check_change(args, needs_reason=False)
    with database(args) as ledger:
        with ledger.connect() as conn:
            cluster_of(conn, ledger.tables, args.group)
            topics = topics_of(conn, ledger.tables, dead_letters)
            records = count_by_batch(conn, ledger.tables, dead_letters, corrected).total()
        replayed: list[Replayed] = []
        left = 0
        if topics:
            pipeline, _, spark, connections = pipeline_of(args, topics)
            confirm(
                args,
                f"{count(records, 'dead letter is', 'dead letters are')} loaded into {pipeline.sink.name!r}"
                f"{unparsed(args)} and deleted; those that are still bad stay",
            )
            launcher = None
            if pipeline.needs_spark_sql:
                launcher = args.connections.launcher(*spark, name=f"dead-letters.{args.group}")
            replayed = replay_dead_letters(
                dead_letters,
                pipeline,
                engine=ledger.engine,
                launcher=launcher,
                corrected=corrected,
                who=args.who,
                reason=args.reason,
                connections=connections,
            )
            with ledger.connect() as conn:
                left = count_by_batch(conn, ledger.tables, dead_letters, None).total()
    show([asdict(batch) for batch in replayed], args.output, nothing=_NONE)
    if left:
        note(f"{count(left, 'such dead letter is', 'such dead letters are')} left")
    if replayed and not any(batch.records for batch in replayed):
        raise KafkaOffsetsError("No dead letter became a row. 'dead-letters show' prints why each is bad still")


def drop(args: Namespace) -> None:
    """Delete what dead letters hold."""
    dead_letters = _dead_letters(args)
    if args.execute:
        check_change(args)
    with database(args) as ledger:
        with ledger.connect() as conn:
            cluster_of(conn, ledger.tables, args.group)
            if args.older_than is not None:
                dead_letters = replace(dead_letters, committed_before=database_now(conn) - args.older_than)
            found = summary(conn, ledger.tables, dead_letters)
        if not args.execute:
            show(found, args.output, nothing=_NONE)
            if not found:
                return
            note("Nothing was dropped; --execute --reason WHY deletes the contents of these dead letters")
            return
        if found:
            records = count(sum(each["records"] for each in found), "dead letter")
            confirm(args, f"Key, value, headers and error of {records} are deleted, for good: they cannot be replayed")
        dropped = drop_dead_letters(
            dead_letters, engine=ledger.engine, tables=ledger.tables, who=args.who, reason=args.reason
        )
        with ledger.connect() as conn:
            left = 0
            if args.error_class != DROPPED:
                left = sum(each["records"] for each in summary(conn, ledger.tables, dead_letters))
    show([{"group": args.group, "dropped": dropped}], args.output)
    kept = f"{count(dropped, 'dead letter')} dropped; dead_letters keeps offset, author, time and reason"
    note(kept if found else _NONE)
    if left:
        raise KafkaOffsetsError(
            f"{count(left, 'dead letter was', 'dead letters were')} not dropped: a replay may be publishing their "
            "rows. Let it finish, and drop them again"
        )


@usage()
def _dead_letters(args: Namespace) -> DeadLetterFilter:
    ranges = offset_bounds(args.offsets).read() if args.offsets else ()
    return DeadLetterFilter(args.group, args.batch, args.error_class, ranges, args.schema_id, key=args.key)


def _row(dead_letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter with texts where its bytes are UTF-8, and with Base64 where they are not."""
    row: dict[str, Any] = asdict(dead_letter)
    for name in ("key", "value"):
        data: bytes | None = row.pop(name)
        text = None if data is None else _text(data)
        row |= {
            name: text,
            f"{name}_base64": base64.b64encode(data).decode() if data is not None and text is None else None,
        }
    return row


def _shortened(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose texts have a length for people."""
    return {name: shortened(value) if isinstance(value, str) else value for name, value in row.items()}


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


_Corrections = dict[Record, bytes | None]


@usage()
def _corrections(path: str | None) -> dict[int, _Corrections] | None:
    """Return the values that a file has for dead letters, by batch: what `show --output json` prints, edited. None
    without a file.

    A batch is a part of their identity: a topic that was recreated has other records at the same offsets.

    :raises ConfigurationError: it cannot be read, or is of another form
    """
    if path is None:
        return None
    found: dict[int, _Corrections] = {}
    try:
        for row in json.loads(Path(path).read_text(encoding="utf-8")):
            of_batch = found.setdefault(int(row["batch_id"]), {})
            record = Record(row["topic"], int(row["partition"]), int(row["offset"]))
            if record in of_batch:
                raise ValueError(f"it has {record.topic}:{record.partition}:{record.offset} twice")
            of_batch[record] = _value(row)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f"--corrected {path} cannot be read ({type(error).__name__}: {error}): it must be what 'dead-letters show "
            "--output json' prints, a list of objects with batch_id, topic, partition, offset, and value or "
            "value_base64"
        ) from error
    return found


def _value(row: dict[str, Any]) -> bytes | None:
    if row.get("value_base64") is not None:
        return base64.b64decode(row["value_base64"], validate=True)
    value = row["value"]
    return None if value is None else str(value).encode()
