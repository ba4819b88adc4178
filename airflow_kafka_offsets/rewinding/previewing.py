"""Preview a rewind: ask the state tables, Kafka and the history, and decide. Nothing is written; `execution` does
that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.instants import milliseconds
from airflow_kafka_offsets.core.log_identity import check_cluster
from airflow_kafka_offsets.core.offsets import Position, Scope, TopicPartition, partitions_in
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.database.transactions import now
from airflow_kafka_offsets.exceptions import ConfigurationError, NoPositionError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.start_offsets import TimeSearch
from airflow_kafka_offsets.ledger.batch_rows import open_batch_of
from airflow_kafka_offsets.ledger.batches import begun_positions
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.install import installed_version
from airflow_kafka_offsets.ledger.positions import stored_positions
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.rewinding import history
from airflow_kafka_offsets.rewinding.preview import LookedUp, Positions, RewindPreview, decide
from airflow_kafka_offsets.rewinding.scenarios import Scenario

# Their offsets belong to the cluster that the group was loaded from.
_OF_OLD_CLUSTER = ("to-batch", "to-group", "undo", "shift-by", "to-current")


# A new group has none.
_OF_HISTORY = ("undo", "to-batch")


@dataclass(frozen=True, slots=True)
class CurrentState:
    """The positions of a group, and its open batch.

    :param generation: None if there are no stored positions of the group
    :param open_batch: the load that is planned or staged, or None
    :param begun: where that load began partitions without a position
    """

    cluster_id: str | None = None
    generation: int | None = None
    positions: Positions = field(default_factory=dict)
    open_batch: int | None = None
    begun: Positions = field(default_factory=dict)


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
    may_name: Callable[[str], bool] = lambda _: True,
) -> RewindPreview:
    """Return what a rewind would do. Nothing is written.

    :param group_id: the group
    :param scenario: where the positions move to, for example `Scenario.of("to-datetime", "2026-11-17T00:00:00Z")`
    :param engine: the database of the positions
    :param kafka_config: librdkafka configuration
    :param tables: where the state tables are; None is without a schema and a prefix
    :param scope: the topics and partitions to rewind; None is all topics of the group; for a file, those in the file;
        for an import into a group without positions, those that the consumer group has committed
    :param isolation_level: the isolation level of the loads, which decides the end offsets
    :param new_group: whether the group may be missing in the state tables; an import may always create a group
    :param new_cluster: whether the positions may belong to another Kafka cluster, from which the group moves to this
        one
    :param may_name: whether a note may name another group that has loaded the same records
    :raises ConfigurationError: the group does not exist, or the scope is empty
    :raises UnknownTopicError: a topic or partition does not exist
    :raises NoPositionError: the scenario counts from positions that are not stored, or another group has none
    :raises TopicRecreatedError: the positions of the scenario belong to an earlier topic of the same name
    :raises ClusterChangedError: the positions belong to another cluster
    :raises RewindConflictError: the last rewind cannot be undone any more
    :raises KafkaUnavailableError: the cluster did not answer in time
    """
    ledger, scope = Ledger(engine, tables or Tables.of()), scope or {}
    may_be_new = scenario.name == "import" or (new_group and scenario.name not in _OF_HISTORY)
    state = current_state(ledger, group_id, may_be_new=may_be_new)
    cluster = Cluster(kafka_config, isolation_level=isolation_level)
    cluster_id = cluster.cluster_id()
    moves_cluster = state.cluster_id not in (None, cluster_id)
    if moves_cluster:
        _check_new_cluster(group_id, scenario, scope, state.cluster_id, cluster_id, new_cluster)
    instant = _instant(scenario, engine)

    request = _Request(ledger, cluster, group_id, scenario, scope, state.positions)
    looked_up = request.known_positions()
    partitions, topic_ids = request.partitions(looked_up)
    # Only these: the leader of a partition outside of the scope may be dead.
    logs = cluster.logs_of({tp: topic_ids[tp] for tp in partitions if tp in topic_ids})
    if looked_up is None:
        looked_up = request.look_up([tp for tp in partitions if tp in topic_ids], instant)
    decided = decide(
        scenario, partitions, state.positions, logs, looked_up, begun=state.begun, moves_cluster=moves_cluster
    )
    if state.generation:
        decided = history.with_loaded_ranges(ledger, group_id, decided, logs)
    if state.generation is not None:
        decided = history.with_other_groups(ledger, group_id, decided, may_name)
    preview = RewindPreview(
        group_id=group_id,
        cluster_id=cluster_id,
        generation=state.generation,
        scenario=scenario.describe(scope),
        kind=scenario.name if scenario.name in ("undo", "import") else "rewind",
        partitions=decided,
        instant=instant,
        open_batch=state.open_batch,
        moves_cluster=moves_cluster,
    )
    preview.refuse_left_behind(state.positions)
    return preview


@dataclass(frozen=True, slots=True)
class _Request:
    """A rewind as a user asks for it: finds its partitions and positions.

    :param positions: the stored positions of the group
    """

    ledger: Ledger
    cluster: Cluster
    group_id: str
    scenario: Scenario
    scope: Scope
    positions: Positions

    def known_positions(self) -> LookedUp | None:
        """Return the positions of a scenario that names its partitions or topics itself; None of others."""
        if isinstance(self.scenario.value, Mapping):
            return _as_positions(self.scenario.value)
        if self.scenario.name == "undo":
            return history.state_before_last_rewind(self.ledger, self.group_id, self.scope)
        if self.scenario.name == "import" and not self.scope and not self.positions:
            return _as_positions(import_offsets(self.cluster, str(self.scenario.value)))
        return None

    def partitions(self, known: LookedUp | None) -> tuple[list[TopicPartition], Mapping[TopicPartition, str | None]]:
        """Return the partitions that move, and the topic ids of all partitions of their topics.

        :param known: what `known_positions` returned
        """
        topics = sorted(self.scope or {tp.topic for tp in (self.positions if known is None else known)})
        if not topics:
            raise ConfigurationError(f"No position of group {self.group_id!r} is stored: name the topics")
        topic_ids = self.cluster.topic_ids(topics)
        stored = [tp for tp in self.positions if tp.topic in topics]
        partitions = partitions_in(self.scope, stored, topic_ids)
        # A file and an undo name partitions, an import names topics.
        if known is not None and self.scenario.name != "import":
            within: dict[str, set[int]] = {topic: set() for topic in topics}
            for tp in known:
                within.get(tp.topic, set()).add(tp.partition)
            named = partitions_in({topic: frozenset(each) for topic, each in within.items()}, stored, topic_ids)
            partitions = sorted({*partitions}.intersection(named))
        if not partitions:
            raise ConfigurationError(f"Nothing of {self.scenario.text} is in the scope {first_few(topics)}")
        return partitions, topic_ids

    def look_up(self, partitions: list[TopicPartition], instant: datetime | None) -> LookedUp:
        """Look up the positions of the scenario in Kafka, in the history or in another group, if it needs them.

        :param partitions: those in the scope that the cluster has
        :param instant: the instant of a scenario of time
        """
        if instant is not None:
            timestamps = dict.fromkeys(partitions, milliseconds(instant))
            records = self.cluster.offsets_for_times(timestamps)
            missing = {tp: timestamp for tp, timestamp in timestamps.items() if tp not in records}
            records |= TimeSearch(self.cluster, self.group_id).not_found(missing)
            return _as_positions({tp: record.offset for tp, record in records.items()})
        match self.scenario.name, self.scenario.value:
            case "import", str(consumer_group):
                return _as_positions(import_offsets(self.cluster, consumer_group, partitions))
            case "to-batch", int(batch_id):
                return history.state_before(self.ledger, self.group_id, batch_id)
            case "to-group", str(other):
                state = current_state(self.ledger, other)
                way_out = "Its offsets are not valid in this one; name an offset or a time."
                check_cluster(other, state.cluster_id, self.cluster.cluster_id(), way_out)
                return state.positions
        return {}


def current_state(ledger: Ledger, group_id: str, *, may_be_new: bool = False) -> CurrentState:
    """Return the current state of a group.

    The generation is read first: if the positions are rewound meanwhile, it is too old, and nothing is executed on
    them.

    :param may_be_new: whether the group may be missing in the state tables
    :raises ConfigurationError: there are no stored positions of the group
    """
    tables = ledger.tables
    groups = tables.consumer_groups.c
    with ledger.connect() as conn:
        if not may_be_new:
            cluster_of(conn, tables, group_id)  # raises if there is no such group
        elif installed_version(conn, tables) is None:
            return CurrentState()
        known = sa.select(groups.cluster_id, groups.generation).where(groups.group_id == group_id)
        row = conn.execute(known).one_or_none()
        if row is None:
            return CurrentState()
        positions = stored_positions(conn, tables, group_id)
        open_batch = open_batch_of(conn, tables, group_id)
        begun = {} if open_batch is None else begun_positions(conn, tables, open_batch, positions)
        return CurrentState(row.cluster_id, row.generation, positions, open_batch, begun)


def import_offsets(
    cluster: Cluster, group_id: str, partitions: Collection[TopicPartition] | None = None
) -> dict[TopicPartition, int]:
    """Return what a consumer group in Kafka has committed; partitions without a commit are left out.

    :param partitions: None is all that it has committed
    :raises NoPositionError: there is no such group, or it has committed nothing of these; Kafka deletes old commits
    :raises KafkaUnavailableError: the group's coordinator did not answer in time, or refuses this user
    """
    committed = cluster.committed(group_id, partitions)
    if committed:
        return committed
    group = cluster.consumer_group(group_id)
    if group is None:
        raise NoPositionError(
            f"Kafka has no consumer group {group_id!r}, or one that committed nothing: check the name "
            "(kafka-consumer-groups --list), and whether its commits have expired"
        )
    of = f" of {', '.join(sorted({tp.topic for tp in partitions}))}" if partitions is not None else ""
    raise NoPositionError(
        f"Consumer group {group_id!r} (state {group.state}, {group.members} members) has committed nothing{of}: "
        "check the topics, and whether its commits have expired"
    )


def _check_new_cluster(
    group_id: str, scenario: Scenario, scope: Scope, old_cluster: str | None, cluster_id: str, allowed: bool
) -> None:
    if not allowed:
        check_cluster(
            group_id,
            old_cluster,
            cluster_id,
            "Correct the connection; or, to continue the group from this cluster, rewind with a change of the "
            "cluster (--new-cluster, new_cluster=True), to an offset or a time in it.",
        )
    if scenario.name in _OF_OLD_CLUSTER:
        raise ConfigurationError(
            f"{scenario.name} uses offsets of the cluster that group {group_id!r} was loaded from, {old_cluster!r}. "
            "With a change of the cluster, name an offset, a time, a file, or a consumer group in the new cluster."
        )
    if scope:
        raise ConfigurationError(
            "A group belongs to one cluster: a change of the cluster moves all its positions; leave out the scope"
        )


def _instant(scenario: Scenario, engine: Engine) -> datetime | None:
    """Return the instant of a scenario of time."""
    match scenario.value:
        case timedelta() as duration:
            return now(engine) - duration
        case datetime() as instant:
            return instant
    return None


def _as_positions(offsets: Mapping[TopicPartition, int]) -> LookedUp:
    return {tp: Position(offset) for tp, offset in offsets.items()}
