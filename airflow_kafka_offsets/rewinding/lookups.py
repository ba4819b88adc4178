"""What a scenario has to ask before it is known where positions go: the history, another group, Kafka."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.instants import milliseconds
from airflow_kafka_offsets.core.log_identity import check_cluster
from airflow_kafka_offsets.core.offsets import PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.core.scope import Scope
from airflow_kafka_offsets.core.spans import subtract
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.database.transactions import now
from airflow_kafka_offsets.exceptions import NoPositionError, RewindConflictError, TopicRecreatedError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.rewinding import loaded_ranges
from airflow_kafka_offsets.rewinding.decision import PartitionRewind
from airflow_kafka_offsets.rewinding.history import LastRewind, current_state, last_rewind, state_before
from airflow_kafka_offsets.rewinding.scenarios import Scenario


def import_offsets(
    cluster: Cluster, group_id: str, partitions: Collection[TopicPartition] | None = None
) -> dict[TopicPartition, int]:
    """What a consumer group committed of partitions; those without a commit are left out.

    :param partitions: None is all that it committed
    :raises NoPositionError: there is no such group, or it committed nothing of these; Kafka forgets commits
    :raises KafkaUnavailableError: the group's coordinator did not answer in time, or refuses this user
    """
    committed = cluster.committed(group_id, partitions)
    if committed:
        return committed
    group = cluster.consumer_group(group_id)
    of = f" of {', '.join(sorted({tp.topic for tp in partitions}))}" if partitions is not None else ""
    if group is None:
        raise NoPositionError(
            f"Kafka has no consumer group {group_id!r}, or one that committed nothing: check the name "
            "(kafka-consumer-groups --list), and whether its commits have expired"
        )
    raise NoPositionError(
        f"Consumer group {group_id!r} (state {group.state}, {group.members} members) has committed nothing{of}: "
        "check the topics, and whether its commits have expired"
    )


class RewindQuestion:
    """What one scenario asks; each part of it once, for all partitions.

    `instant` is the one that the scenario means, None where it means none.
    """

    def __init__(self, engine: Engine, tables: Tables, group_id: str, scenario: Scenario, cluster: Cluster) -> None:
        self._engine = engine
        self._tables = tables
        self._group_id = group_id
        self._scenario = scenario
        self._cluster = cluster
        self._past: dict[TopicPartition, Position | None] = {}
        self.instant: datetime | None = None
        if isinstance(scenario.value, datetime):
            self.instant = scenario.value
        elif isinstance(scenario.value, timedelta):
            self.instant = now(engine) - scenario.value

    def wanted_partitions(self, scope: Scope) -> Collection[TopicPartition] | None:
        """The partitions that the scenario itself names; None where it is meant for all in the scope."""
        if isinstance(self._scenario.value, Mapping):
            self._past = {tp: Position(offset) for tp, offset in self._scenario.value.items()}
            return self._past
        if self._scenario.name == "undo":
            self._past = dict(self._last_rewind(scope).before)
            return self._past
        return None

    def topics(self) -> list[str]:
        """The topics that the scenario itself knows of, for a group that has no position and is given no scope."""
        if self._scenario.name == "import":
            self._past = self._imported()
        return sorted({tp.topic for tp in self._past})

    def found(
        self, partitions: Collection[TopicPartition], logs: Mapping[TopicPartition, PartitionLog]
    ) -> Mapping[TopicPartition, Position | None]:
        """Where the scenario wants the positions of partitions, as far as that has to be asked."""
        name, value = self._scenario.name, self._scenario.value
        in_log = [tp for tp in partitions if tp in logs]
        if self.instant is not None:
            return {
                tp: Position(one.offset)
                for tp, one in self._cluster.offsets_at(in_log, milliseconds(self.instant)).items()
            }
        if name == "import" and not self._past:
            return self._imported(in_log)
        if name == "to-batch":
            assert isinstance(value, int)
            return state_before(self._engine, self._tables, self._group_id, value)
        if name == "to-group":
            return self._other_group(str(value))
        return self._past

    def told_by_history(
        self, decided: Collection[PartitionRewind], logs: Mapping[TopicPartition, PartitionLog]
    ) -> tuple[PartitionRewind, ...]:
        """What was decided, with what only the history knows: positions stood further on once, if they were rewound.

        What is passed over and was loaded before is not skipped, and what was loaded at a position or beyond it is read again.
        """
        history = self._engine, self._tables, self._group_id
        forward = {one.topic_partition: span for one in decided for span in one.skipped}
        covered = loaded_ranges.loaded_within(*history, forward, {tp.topic: logs[tp].topic_id for tp in forward})
        # A position of another topic says nothing, and is removed or left as it is.
        standing = {
            one.topic_partition: one.new
            for one in decided
            if one.new is not None
            and (log := logs.get(one.topic_partition)) is not None
            and one.new.topic_id == log.topic_id
        }
        beyond = loaded_ranges.loaded_beyond(*history, standing)
        return tuple(
            replace(
                one,
                skipped=tuple(subtract(one.skipped, covered.get(one.topic_partition, ()))),
                loaded_to=beyond.get(one.topic_partition),
            )
            for one in decided
        )

    def _imported(self, partitions: Collection[TopicPartition] | None = None) -> dict[TopicPartition, Position | None]:
        committed = import_offsets(self._cluster, str(self._scenario.value), partitions)
        return {tp: Position(offset) for tp, offset in committed.items()}

    def _last_rewind(self, scope: Scope) -> LastRewind:
        last = last_rewind(self._engine, self._tables, self._group_id, scope)
        if last is None:
            raise NoPositionError(f"The history of group {self._group_id!r} has no rewind that could be undone")
        told = f"Rewind {last.batch_id} of group {self._group_id!r} ({last.scenario})"
        if last.replaced:
            raise RewindConflictError(
                f"{told} removed the rows that are to be loaded again: moving the positions back would leave them out for good. "
                "Run the load, which brings them back."
            )
        if last.other_topic:
            raise TopicRecreatedError(
                f"{told} left positions of an earlier topic of the same name, which mean nothing in the one that is there now: "
                f"{first_few(last.other_topic)}. Nothing was changed; name an offset or a time instead."
            )
        if last.moved_since:
            raise RewindConflictError(
                f"{told} cannot be undone any more: batches have moved {first_few(last.moved_since)} since. "
                f"Nothing was changed; to go back to the state before it anyway, rewind to-batch {last.batch_id}."
            )
        return last

    def _other_group(self, other: str) -> Mapping[TopicPartition, Position | None]:
        with self._engine.connect() as conn:
            cluster_of(conn, self._tables, other)
        stand = current_state(self._engine, self._tables, other)
        assert stand is not None
        mine = self._cluster.cluster_id()
        check_cluster(other, stand.cluster_id, mine, "Its offsets mean nothing in this one; name an offset or a time.")
        return {tp: Position(one.offset, one.topic_id) for tp, one in stand.positions.items()}
