"""`kafka-offsets groups`: the groups of the state tables with their lag; and to delete or rename one."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from airflow_kafka_offsets.cli.command import (
    KAFKA_TIMEOUT_SECONDS,
    check_change,
    confirm,
    database,
    usage,
)
from airflow_kafka_offsets.cli.output import note, show
from airflow_kafka_offsets.core.parameters import check
from airflow_kafka_offsets.core.text import count, first_few
from airflow_kafka_offsets.core.threads import in_background
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.lag.measure import GroupState, LagPolls, group_states
from airflow_kafka_offsets.lag.report import LagQuestion, LagReport
from airflow_kafka_offsets.ledger.batch_rows import current_user
from airflow_kafka_offsets.ledger.group_changes import check_new_name, delete_group, group_contents, rename_group
from airflow_kafka_offsets.ledger.overview import GroupSummary, group_summaries

# A cluster is asked several times.
_LAG_SECONDS = 1.5 * KAFKA_TIMEOUT_SECONDS

_Lags = dict[str, LagReport | Exception]


def groups(args: Namespace) -> None:
    """Print every group in the state tables, or change one."""
    _check_arguments(args)
    if args.action == "list":
        _list(args)
    else:
        _change(args)


@usage()
def _check_arguments(args: Namespace) -> None:
    names = {"list": (), "delete": ("GROUP",), "rename": ("GROUP", "NEW_NAME")}[args.action]
    if sum(name is not None for name in (args.group, args.new_name)) != len(names):
        raise ConfigurationError(f"groups {args.action} takes {' and '.join(names) or 'no group'}")
    if args.new_name is not None:
        from airflow_kafka_offsets.loading.parameters import PIPELINE_RULES

        check({"group_id": args.new_name}, PIPELINE_RULES)
    if args.execute:
        if args.action == "list":
            raise ConfigurationError("--execute is for groups delete and groups rename")
        check_change(args)


def _change(args: Namespace) -> None:
    with database(args) as ledger:
        with ledger.connect() as conn:
            group = group_contents(conn, ledger.tables, args.group)
            if args.new_name is not None:
                check_new_name(conn, ledger.tables, group, args.new_name)
        show([group._asdict() | ({"new_name": args.new_name} if args.new_name is not None else {})], args.output)
        rows = f"rows in {group.target!r} stay" if group.target is not None else "it has loaded no rows"
        if args.new_name is not None:
            consequences = [
                f"Group {args.group!r} becomes {args.new_name!r}, with its positions and its history; {rows}",
                f"Change group_id in the load, too: under the old name, it is refused where {args.new_name!r} has "
                "loaded the same records into the table",
            ]
        else:
            letters = count(group.dead_letters, "dead letter")
            lost = f", and the contents of {letters}, which nothing restores" if group.dead_letters else ""
            consequences = [
                f"{count(group.partitions, 'position is', 'positions are')} removed, which 'rewind --undo' restores"
                f"{lost}; {rows}. Its history of {count(group.batches, 'batch', 'batches')} stays",
                "A load under this name begins at its start again. Into the same table, it is refused where the group "
                "has loaded the records",
            ]
        if not args.execute:
            for consequence in consequences:
                note(consequence)
            note("Nothing was changed; add --execute --reason WHY to do it")
            return
        confirm(args, *consequences)
        who = args.who or current_user()
        if args.new_name is not None:
            batch_id = rename_group(ledger, args.group, args.new_name, who=who, reason=args.reason)
            note(f"Group {args.group!r} is now {args.new_name!r}, as number {batch_id} of its history")
        else:
            batch_id = delete_group(ledger, args.group, who=who, reason=args.reason)
            note(
                f"Group {args.group!r} is deleted, as number {batch_id} of its history. 'rewind --undo' restores the "
                "positions, and no contents of dead letters"
            )


def _list(args: Namespace) -> None:
    states: Future[Mapping[str, GroupState]] = Future()
    # All are asked at the same time.
    measured = {
        name: in_background(partial(_measure, config, states))
        for name, config in args.connections.kafka_configs().items()
    }
    try:
        with database(args) as ledger, ledger.connect() as conn:
            _, summaries = group_summaries(conn, ledger.tables)
            states.set_result(group_states(conn, ledger.tables, [group.group_id for group in summaries]))
    except BaseException as error:
        states.set_exception(error)
        raise
    lags: _Lags = {}
    if summaries:
        for name, future in measured.items():
            try:
                lags |= future.result(_LAG_SECONDS)
            except TimeoutError:
                note(f"{name} does not answer: the lag of the groups of its cluster is not known")
            except Exception as error:
                note(f"{name}: the lag of the groups of its cluster is not known: {error}")
    show([_row(group, lags.get(group.group_id)) for group in summaries], args.output)
    without = [
        f"{group.group_id!r} ({group.cluster_id})"
        for group in summaries
        if group.partitions and group.group_id not in lags
    ]
    if without and len(without) < len(summaries):
        note(f"No connection leads to the cluster of {first_few(without)}")


def _measure(config: Callable[[], Mapping[str, Any]], states: Future[Mapping[str, GroupState]]) -> _Lags:
    """Measure the lag of the groups of a cluster."""
    from airflow_kafka_offsets.kafka.cluster import Cluster

    cluster = Cluster(config(), timeout=KAFKA_TIMEOUT_SECONDS)
    cluster_id = cluster.cluster_id()
    stored = {group_id: state for group_id, state in states.result().items() if state.stored}
    mine = {group_id: state for group_id, state in stored.items() if state.cluster_id in (cluster_id, None)}
    questions = [(LagQuestion(group_id), state) for group_id, state in mine.items()]
    return dict(zip(mine, LagPolls(cluster).reports(questions), strict=True))


def _row(group: GroupSummary, lag: LagReport | Exception | None) -> dict[str, Any]:
    last, open_ = group.last_commit, group.open
    if isinstance(lag, Exception) or (lag is not None and lag.errors):
        first = lag if isinstance(lag, Exception) else lag.errors[0].error
        note(f"The lag of group {group.group_id!r} is not known: {first}")
        lag = None
    return {
        "group": group.group_id,
        "lag": lag.lag if lag is not None else None,
        "cluster_id": group.cluster_id,
        "generation": group.generation,
        "partitions": group.partitions,
        "last_batch": last.batch_id if last is not None else None,
        "committed_at": last.committed_at if last is not None else None,
        "open_batch": open_.batch_id if open_ is not None else None,
        "open_state": open_.state if open_ is not None else None,
        "held_by": group.held_by,
        "held_until": group.held_until,
        "between_commits": first_few(f"{batch.state} {batch.batch_id}" for batch in group.between) or None,
    }
