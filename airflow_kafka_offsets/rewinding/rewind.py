"""Move the stored positions of a group on purpose: preview first, then all partitions in one transaction."""

from __future__ import annotations

import getpass
import logging
import os
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.log_identity import check_cluster
from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.scope import Scope, partitions_in
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger import abandoning
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.install import create_missing, installed_version
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.ledger.task_run import TaskRun
from airflow_kafka_offsets.rewinding.decision import decide
from airflow_kafka_offsets.rewinding.execution import execute_preview, rewound_by
from airflow_kafka_offsets.rewinding.history import CurrentState, current_state, executed, removed_by
from airflow_kafka_offsets.rewinding.lookups import RewindQuestion
from airflow_kafka_offsets.rewinding.preview import RewindPreview
from airflow_kafka_offsets.rewinding.scenarios import RELATIVE, Scenario
from airflow_kafka_offsets.sinks.sql.table import SqlTable

log = logging.getLogger(__name__)


# What the history says is of the cluster that the group was loaded from.
_OF_THE_HISTORY = ("to-batch", "to-group", "undo", *RELATIVE)


@dataclass(frozen=True, slots=True)
class RewindResult:
    """What a rewind did.

    :param batch_id: its number in the history; None where nothing was to be changed
    :param moved: how many positions it changed
    :param rows_removed: how many rows it took out of the target
    :param dead_letters_removed: how many records it took out of `dead_letters`
    """

    batch_id: int | None
    moved: int = 0
    rows_removed: int = 0
    dead_letters_removed: int = 0


def preview_rewind(
    group_id: str,
    scenario: Scenario,
    *,
    engine: Engine,
    kafka_config: Mapping[str, Any],
    tables: Tables | None = None,
    scope: Scope | None = None,
    isolation_level: str = "read_committed",
    new_group: bool = False,
    new_cluster: bool = False,
) -> RewindPreview:
    """Find out what a rewind would do. Nothing is written.

    :param scenario: where the positions go, for example `Scenario.of("to-datetime", "2026-11-17T00:00:00Z")`
    :param scope: the topics and partitions that are meant; None is all topics of the group, for a file those in it, and for the
        import of a group that has none yet those that the consumer group committed
    :param isolation_level: that of the loads: it decides what the end offset of a log is
    :param new_group: whether the group may be one that nothing is stored of yet; an import may always begin one
    :param new_cluster: whether the positions may belong to another Kafka cluster, which the group leaves for this one
    :raises ConfigurationError: there is no such group, or nothing in the scope
    :raises UnknownTopicError: there is no such topic or partition
    :raises NoPositionError: the scenario counts from positions that are not stored, or another group has none
    :raises TopicRecreatedError: the positions that are wanted are those of an earlier topic of the same name
    :raises ClusterChangedError: the positions belong to another cluster
    :raises RewindConflictError: the last rewind cannot be undone any more
    :raises KafkaUnavailableError: the cluster did not answer in time
    """
    tables = tables or Tables()
    stand = _stand(engine, tables, group_id, may_be_new=new_group or scenario.name == "import")
    positions = stand.positions if stand is not None else {}
    cluster = Cluster(kafka_config, isolation_level=isolation_level)
    cluster_id = cluster.cluster_id()
    moves_cluster = stand is not None and stand.cluster_id not in (None, cluster_id)
    if moves_cluster:
        _check_new_cluster(group_id, scenario, scope or {}, stand, cluster_id, new_cluster)
    question = RewindQuestion(engine, tables, group_id, scenario, cluster)
    wanted = question.wanted_partitions(scope or {})
    topics = sorted(scope or {tp.topic for tp in (positions if wanted is None else wanted)}) or question.topics()
    if not topics:
        raise ConfigurationError(f"No position of group {group_id!r} is stored: name the topics")
    logs = cluster.logs(topics)
    of_topics = {tp: one for tp, one in positions.items() if tp.topic in topics}
    partitions = partitions_in(scope or {}, of_topics, logs)
    if wanted is not None:
        named = set(partitions_in(_named(wanted, topics), of_topics, logs))
        partitions = [tp for tp in partitions if tp in named]
    if not partitions:
        raise ConfigurationError(f"Nothing of {scenario.text} is in the scope {', '.join(topics)}")
    found = question.found(partitions, logs)
    decided = decide(scenario, partitions, positions, logs, found)
    preview = RewindPreview(
        group_id=group_id,
        cluster_id=cluster_id,
        generation=stand.generation if stand is not None else None,
        scenario=scenario.told(scope or {}),
        kind=scenario.name if scenario.name in ("undo", "import") else "rewind",
        partitions=question.told_by_history(decided, logs) if stand is not None and stand.generation > 0 else decided,
        instant=question.instant,
        open_batch=stand.open_batch if stand is not None else None,
        moves_cluster=moves_cluster,
    )
    preview.refuse_left_behind(positions)
    return preview


def execute_rewind(
    preview: RewindPreview,
    *,
    engine: Engine,
    tables: Tables | None = None,
    run: TaskRun | None = None,
    who: str | None = None,
    reason: str | None = None,
    abandon: int | None = None,
    replace: SqlTable | None = None,
) -> RewindResult:
    """Do what a preview says, for all partitions in one transaction, or nothing.

    :param run: who does it; what a task instance did last, in an earlier try, is not done again
    :param who: for the history; None is the user of this process
    :param reason: for the history
    :param abandon: the number of the open batch, to give it up in the same transaction; also where nothing is to be changed
    :param replace: the group's target: its rows of the offsets that will be read again, and their dead letters, are deleted in the
        same transaction; also where a position stays, and an earlier rewind left rows beyond it
    :raises RewindConflictError: positions have moved since the preview was made; nothing was changed
    :raises OpenBatchError: a batch is open, and is not the one to abandon; nothing was changed
    :raises ConfigurationError: rows of the target cannot be told apart by where they are from; nothing was changed
    :raises LedgerError: see `exceptions`
    """
    tables = tables or Tables()
    todo = preview.changed if replace is None else preview.replacing
    if not todo:
        log.info(
            "Nothing to change: %s leaves the positions of group %r where they are", preview.scenario, preview.group_id
        )
        if abandon is not None:
            abandon_batch(preview.group_id, abandon, engine=engine, tables=tables, who=who, reason=reason)
            log.info("Batch %d of group %r is abandoned", abandon, preview.group_id)
        return RewindResult(None)
    if replace is not None:
        preview.refuse_replace()
    if preview.generation is None:
        create_missing(engine, tables)
    batch_id = execute_preview(
        engine,
        tables,
        preview,
        owner=run or TaskRun.of_this_process(),
        who=who or current_user(),
        reason=reason,
        abandon=abandon,
        target=replace,
    )
    log.info(
        "Moved %d positions of group %r (%s), number %d in the history",
        len(preview.changed),
        preview.group_id,
        preview.scenario,
        batch_id,
    )
    return _rewound(engine, tables, batch_id, len(preview.changed))


def executed_by(
    run: TaskRun,
    group_id: str,
    scenario: Scenario,
    *,
    engine: Engine,
    tables: Tables | None = None,
    scope: Scope | None = None,
    replace: SqlTable | None = None,
) -> tuple[RewindPreview, RewindResult] | None:
    """What a task instance has rewound already, in an earlier try; None where it has not.

    :param scenario: where the latest rewind was by another one, with another scope, or replaced otherwise, it is not meant
    """
    tables = tables or Tables()
    with engine.connect() as conn:
        if installed_version(conn, tables) is None:
            return None
    target = replace.name if replace is not None else None
    batch_id = rewound_by(engine, tables, group_id, run, scenario.told(scope or {}), target)
    if batch_id is None:
        return None
    done = executed(engine, tables, batch_id)
    return done, _rewound(engine, tables, batch_id, len(done.changed))


def abandon_batch(
    group_id: str,
    batch_id: int,
    *,
    engine: Engine,
    tables: Tables | None = None,
    who: str | None = None,
    reason: str | None = None,
) -> None:
    """Give up an open batch, a load or a replay: its attempt can never commit, and the positions stay where they are.

    The next load plans anew from the stored positions.

    :raises OpenBatchError: the group has no such batch, or it is not open
    :raises ConfigurationError: there is no such group
    """
    tables = tables or Tables()
    with engine.connect() as conn:
        cluster_of(conn, tables, group_id)  # says which groups there are, where this one is not
    abandoning.abandon_batch(engine, tables, group_id, batch_id, who=who or current_user(), reason=reason)


def current_user() -> str:
    """The user of this process, for the history."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # containers run with any uid: it need not have a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def _rewound(engine: Engine, tables: Tables, batch_id: int, moved: int) -> RewindResult:
    rows, dead_letters = removed_by(engine, tables, batch_id)
    return RewindResult(batch_id, moved, rows, dead_letters)


def _named(partitions: Collection[TopicPartition], topics: Collection[str]) -> Scope:
    """Partitions of some topics, as a scope."""
    return {topic: frozenset(tp.partition for tp in partitions if tp.topic == topic) for topic in topics}


def _stand(engine: Engine, tables: Tables, group_id: str, *, may_be_new: bool) -> CurrentState | None:
    with engine.connect() as conn:
        if not may_be_new:
            cluster_of(conn, tables, group_id)  # says which groups there are, where this one is not
        elif installed_version(conn, tables) is None:
            return None
    return current_state(engine, tables, group_id)


def _check_new_cluster(
    group_id: str, scenario: Scenario, scope: Scope, stand: CurrentState | None, cluster_id: str, allowed: bool
) -> None:
    assert stand is not None
    if not allowed:
        check_cluster(
            group_id,
            stand.cluster_id,
            cluster_id,
            "Correct the connection; or, if the group is to go on from this cluster, rewind with a change of the cluster to an "
            "offset or a time in it.",
        )
    if scenario.name in _OF_THE_HISTORY:
        raise ConfigurationError(
            f"{scenario.name} means offsets of the cluster that group {group_id!r} was loaded from, {stand.cluster_id!r}. With a "
            "change of the cluster, name an offset, a time, a file, or a consumer group of the new cluster's."
        )
    if scope:
        raise ConfigurationError(
            "A group belongs to one cluster: with a change of the cluster all its positions are moved; leave out the scope"
        )
