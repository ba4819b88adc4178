"""The commands that move, copy or print the positions of a group, or abandon what would move them:

`kafka-offsets rewind`, `import`, `abandon`, `mirror` and `export`.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from airflow_kafka_offsets.cli.command import check_change, cluster, confirm, database, scope, usage
from airflow_kafka_offsets.cli.connections import read_text
from airflow_kafka_offsets.cli.load_target import CommandTarget, check_target, target_of
from airflow_kafka_offsets.cli.output import note, show, show_value, write
from airflow_kafka_offsets.core.log_identity import check_cluster
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.escaping import shell_words
from airflow_kafka_offsets.exceptions import ConfigurationError, NoPositionError
from airflow_kafka_offsets.ledger.batches import check_open
from airflow_kafka_offsets.ledger.group_changes import without_positions
from airflow_kafka_offsets.ledger.group_table import group_table
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.positions import read_positions, stored_positions
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.loading.after_commit import mirror_stored
from airflow_kafka_offsets.rewinding.execution import abandon_batch, check_open_batch, check_removal, execute_rewind
from airflow_kafka_offsets.rewinding.preview import RewindPreview
from airflow_kafka_offsets.rewinding.previewing import preview_rewind
from airflow_kafka_offsets.rewinding.scenarios import SCENARIOS, Scenario, write_offsets
from airflow_kafka_offsets.sinks.target_names import is_table


def rewind(args: Namespace) -> None:
    """Preview a rewind, or execute it; a saved preview is executed as it was shown."""
    _check_move(args)
    if args.preview is not None:
        preview = _saved_preview(args)
        with database(args) as ledger:
            _show_and_execute(args, preview, ledger)
    else:
        _move(args, _scenario(args))


def import_group(args: Namespace) -> None:
    """Preview the positions that a consumer group in Kafka has committed, or make them those of a group."""
    _check_move(args)
    _move(args, Scenario.of("import", args.from_group))


def abandon(args: Namespace) -> None:
    """Abandon an open batch."""
    check_change(args)
    with database(args) as ledger:
        with ledger.connect() as conn:
            cluster_of(conn, ledger.tables, args.group)
            check_open(conn, ledger.tables, args.group, args.batch)
        confirm(
            args,
            f"Batch {args.batch} of group {args.group!r} will be abandoned: what its attempt has read is lost, and the "
            "next load plans a new batch",
        )
        abandon_batch(
            args.group, args.batch, engine=ledger.engine, tables=ledger.tables, who=args.who, reason=args.reason
        )
    show([{"group": args.group, "batch": args.batch, "state": "abandoned"}], args.output)
    note(f"Batch {args.batch} of group {args.group!r} is abandoned; its attempt can never commit")


def mirror(args: Namespace) -> None:
    """Commit the positions of a group to a consumer group in Kafka.

    :raises MirrorError: the consumer group does not show every position
    :raises NoPositionError: there are no stored positions of the group
    """
    kafka = cluster(args)
    with database(args) as ledger:
        with ledger.connect() as conn:
            loaded_from = cluster_of(conn, ledger.tables, args.group)
        check_cluster(args.group, loaded_from, kafka.cluster_id())
        partitions = mirror_stored(kafka, args.to, lambda: read_positions(ledger, args.group))
        if not partitions:
            with ledger.connect() as conn:
                raise NoPositionError(without_positions(conn, ledger.tables, args.group, "there is nothing to mirror"))
    show([{"group": args.group, "kafka_group": args.to, "partitions": partitions}], args.output)
    note(f"Consumer group {args.to!r} in Kafka shows the positions of {count(partitions, 'partition')}")


def export(args: Namespace) -> None:
    """Print the positions of a group as CSV, for `rewind --from-file`."""
    with database(args) as ledger, ledger.connect() as conn:
        cluster_of(conn, ledger.tables, args.group)
        positions = stored_positions(conn, ledger.tables, args.group)
        if not positions:
            raise ConfigurationError(without_positions(conn, ledger.tables, args.group, "there is nothing to export"))
    write(write_offsets({tp: position.offset for tp, position in positions.items()}))


def _chosen(args: Namespace) -> list[tuple[str, Any]]:
    """Return the scenarios that were given, with their values."""
    values = {name: getattr(args, name.replace("-", "_"), None) for name in SCENARIOS}
    return [(name, None if value is True else value) for name, value in values.items() if value not in (None, False)]


@usage()
def _scenario(args: Namespace) -> Scenario:
    chosen = _chosen(args)
    if len(chosen) != 1:
        given = ", ".join(f"--{name}" for name, _ in chosen) or "none"
        options = ", ".join(f"--{name}" for name in SCENARIOS if name != "import")
        raise ConfigurationError(f"A rewind takes exactly one of {options}, or --preview; got {given}")
    name, value = chosen[0]
    return Scenario.of(name, read_text(value) if name == "from-file" else value, group_id=args.group)


def _saved_preview(args: Namespace) -> RewindPreview:
    with usage():
        if _chosen(args) or args.topics:
            raise ConfigurationError("--preview has a scenario and a scope: leave out the others")
    preview = RewindPreview.from_json(read_text(args.preview))
    if preview.group_id != args.group:
        raise ConfigurationError(f"The saved preview is of group {preview.group_id!r}, not of {args.group!r}")
    return preview


def _move(args: Namespace, scenario: Scenario) -> None:
    """Preview a scenario, show it, and execute it with --execute."""
    moved = scope(args)
    with database(args) as ledger:
        preview = preview_rewind(
            args.group,
            scenario,
            engine=ledger.engine,
            kafka_config=args.connections.kafka_config(),
            tables=ledger.tables,
            scope=moved,
            isolation_level=args.isolation_level,
            new_group=getattr(args, "new_group", False),
            new_cluster=args.new_cluster,
        )
        _show_and_execute(args, preview, ledger)


def _show_and_execute(args: Namespace, preview: RewindPreview, ledger: Ledger) -> None:
    """Show a preview, and execute it with --execute."""
    target = target_of(args, args.replace) if args.replace is not False else None
    if args.abandon is not None:
        if preview.moves(replace=target is not None):
            check_open_batch(args.group, preview.open_batch, args.abandon)
        with ledger.connect() as conn:
            check_open(conn, ledger.tables, args.group, args.abandon)
    consequences = _consequences(args, preview, ledger, target)
    result, is_asked = None, args.execute and not args.yes
    if is_asked:
        _show(preview, args.output)
    if args.execute:
        confirm(args, *consequences)
        result = execute_rewind(
            preview,
            engine=ledger.engine,
            tables=ledger.tables,
            who=args.who,
            reason=args.reason,
            abandon=args.abandon,
            replace=target.sink if target is not None else None,
            connections=target.connections if target is not None else None,
        )
    if not is_asked:
        _show(preview, args.output)
    if result is None:
        for consequence in consequences:
            note(consequence)
        if preview.open_batch != args.abandon:
            note(f"Batch {preview.open_batch} is open: finish it first, or add --abandon {preview.open_batch}")
        note("Nothing was changed; add --execute --reason WHY to do it")
    elif result.batch_id is None:
        abandoned = f"; batch {args.abandon} is abandoned" if args.abandon is not None else ""
        note(f"No position was to be changed{abandoned}")
    else:
        rows, dead_letters = count(result.rows_removed, "row"), count(result.dead_letters_removed, "dead letter")
        removed = f"; {rows} and {dead_letters} were removed" if target is not None else ""
        moved = count(result.moved, "position was", "positions were")
        note(f"{moved} changed, as number {result.batch_id} of the history{removed}")


def _consequences(args: Namespace, preview: RewindPreview, ledger: Ledger, target: CommandTarget | None) -> list[str]:
    """Return what a rewind changes, and what becomes of the rows.

    :param target: whose rows are removed
    :raises KafkaOffsetsError: they cannot be removed
    """
    consequences = [] if preview.instant is None else [f"The instant meant is {preview.instant.isoformat()}"]
    clamped = sum(partition.clamped for partition in preview.partitions)
    consequences.append(
        f"{count(len(preview.changed), 'position')} {'will' if args.execute else 'would'} change"
        f"{f' ({clamped:,} clamped)' if clamped else ''}: "
        f"{count(preview.offsets_reread, 'offset is', 'offsets are')} read again, "
        f"{count(preview.offsets_skipped, 'was never loaded and is', 'were never loaded and are')} skipped"
    )
    if target is not None:
        removal = check_removal(preview, target.sink, ledger=ledger, connections=target.connections)
        consequences.append(
            f"Of the offsets that are read again, {removal.text} are removed from {target.sink.name!r}. This cannot be "
            "undone: the next load writes them again"
        )
        if removal.warning is not None:
            consequences.append(removal.warning)
    elif preview.offsets_reread:
        with ledger.connect() as conn:
            known = group_table(conn, ledger.tables, preview.group_id)
        where, remedy = "the target", "--replace"
        if known is not None:
            where = repr(known.name)
            if is_table(known.name):
                remedy = shell_words("--replace", known.name)
            else:
                remedy = "--replace --dag-id DAG --task-id TASK"
        consequences.append(
            f"Rows stay in {where}: the next load duplicates those of the offsets that are read again, unless it has "
            f"an upsert key. {remedy} removes them"
        )
    return consequences


@usage()
def _check_move(args: Namespace) -> None:
    """Check, before anything is asked, that `--replace` and a task go together, and that a change has a reason."""
    if args.replace is not False:
        check_target(args, "--replace", table="--replace TABLE")
    elif args.dag_id is not None or args.task_id is not None:
        raise ConfigurationError("--dag-id and --task-id name the target of --replace: give it too, or leave them out")
    if args.execute:
        check_change(args)


def _show(preview: RewindPreview, output: str) -> None:
    if output in ("json", "yaml"):
        # `--preview` reads the JSON.
        show_value(preview.as_dict(), output)
        return
    rows = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "beginning_offset": partition.beginning,
            "end_offset": partition.end,
            "old_offset": partition.old_offset,
            "new_offset": partition.new_offset,
            "difference": partition.difference,
            "reread": partition.offsets_reread,
            "skipped": partition.offsets_skipped,
            "clamped": partition.clamped,
            "note": partition.note or None,
        }
        for partition in preview.partitions
    ]
    show(rows, output)
