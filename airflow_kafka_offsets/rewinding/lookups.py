"""The offsets that some scenarios ask for: in the history, in another group, or in Kafka. `decision` decides from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.instants import milliseconds
from airflow_kafka_offsets.core.log_identity import check_cluster
from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.core.scope import Scope
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.database.transactions import now
from airflow_kafka_offsets.exceptions import NoPositionError, RewindConflictError, TopicRecreatedError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.rewinding.history import LastRewind, current_state, last_rewind, state_before
from airflow_kafka_offsets.rewinding.scenarios import Scenario

LookedUp = Mapping[TopicPartition, Position | None]
"""The positions that a scenario means; None where there was no position."""


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


def instant_of(engine: Engine, scenario: Scenario) -> datetime | None:
    """Return the instant that a scenario means; None if it means none."""
    if isinstance(scenario.value, timedelta):
        return now(engine) - scenario.value
    return scenario.value if isinstance(scenario.value, datetime) else None


def named_positions(engine: Engine, tables: Tables, group_id: str, scenario: Scenario, scope: Scope) -> LookedUp | None:
    """Return the positions of a scenario that names its partitions itself; None if it is meant for all in the scope.

    :raises NoPositionError: there is no rewind to undo
    :raises RewindConflictError: the last rewind cannot be undone any more
    :raises TopicRecreatedError: the last rewind moved positions of an earlier topic of the same name
    """
    if isinstance(scenario.value, Mapping):
        return _as_positions(scenario.value)
    if scenario.name == "undo":
        return _last_rewind(engine, tables, group_id, scope).before
    return None


def look_up(
    engine: Engine,
    tables: Tables,
    group_id: str,
    scenario: Scenario,
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    instant: datetime | None,
) -> LookedUp:
    """Return the positions that a scenario means, as far as they have to be asked for.

    :param partitions: those in the scope that the cluster has
    :param instant: what `instant_of` returned
    :raises ConfigurationError: there is no such batch, or no such group in the state tables
    :raises NoPositionError: the consumer group in Kafka has committed nothing of the partitions
    :raises ClusterChangedError: the other group belongs to another cluster
    """
    if instant is not None:
        offsets = cluster.offsets_for_times(dict.fromkeys(partitions, milliseconds(instant)))
        return {tp: Position(found.offset) for tp, found in offsets.items()}
    match scenario.name, scenario.value:
        case "import", str(consumer_group):
            return imported_positions(cluster, consumer_group, partitions)
        case "to-batch", int(batch_id):
            return state_before(engine, tables, group_id, batch_id)
        case "to-group", str(other):
            return _positions_of_group(engine, tables, other, cluster)
    return {}


def imported_positions(
    cluster: Cluster, group_id: str, partitions: Collection[TopicPartition] | None = None
) -> LookedUp:
    """Return what a consumer group in Kafka has committed, see `import_offsets`."""
    return _as_positions(import_offsets(cluster, group_id, partitions))


def _as_positions(offsets: Mapping[TopicPartition, int]) -> LookedUp:
    return {tp: Position(offset) for tp, offset in offsets.items()}


def _last_rewind(engine: Engine, tables: Tables, group_id: str, scope: Scope) -> LastRewind:
    last = last_rewind(engine, tables, group_id, scope)
    if last is None:
        raise NoPositionError(f"The history of group {group_id!r} has no rewind that could be undone")
    rewind = f"Rewind {last.batch_id} of group {group_id!r} ({last.scenario})"
    if last.replaced:
        raise RewindConflictError(
            f"{rewind} removed the rows that are to be loaded again: moving the positions back would leave them out for good. "
            "Run the load, which brings them back."
        )
    if last.other_topic:
        raise TopicRecreatedError(
            f"{rewind} left positions of an earlier topic of the same name, which mean nothing in the current one: "
            f"{first_few(last.other_topic)}. Nothing was changed; name an offset or a time instead."
        )
    if last.moved_since:
        raise RewindConflictError(
            f"{rewind} cannot be undone any more: batches have moved {first_few(last.moved_since)} since. "
            f"Nothing was changed; to go back to the state before it anyway, rewind to-batch {last.batch_id}."
        )
    return last


def _positions_of_group(engine: Engine, tables: Tables, other: str, cluster: Cluster) -> LookedUp:
    with engine.connect() as conn:
        cluster_of(conn, tables, other)  # raises if there is no such group
    state = current_state(engine, tables, other)
    assert state is not None
    check_cluster(
        other,
        state.cluster_id,
        cluster.cluster_id(),
        "Its offsets mean nothing in this one; name an offset or a time.",
    )
    return {tp: Position(position.offset, position.topic_id) for tp, position in state.positions.items()}
