"""Preview a rewind: ask the state tables, Kafka and the history, and decide. Nothing is written; `execution` does that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.log_identity import check_cluster
from airflow_kafka_offsets.core.scope import Scope, partitions_in
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.groups import cluster_of
from airflow_kafka_offsets.ledger.install import installed_version
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.rewinding import lookups
from airflow_kafka_offsets.rewinding.decision import decide
from airflow_kafka_offsets.rewinding.history import CurrentState, current_state
from airflow_kafka_offsets.rewinding.loaded_ranges import with_loaded_ranges
from airflow_kafka_offsets.rewinding.preview import RewindPreview
from airflow_kafka_offsets.rewinding.scenarios import Scenario

# Their offsets belong to the cluster that the group was loaded from.
_OF_OLD_CLUSTER = ("to-batch", "to-group", "undo", "shift-by", "to-current")


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
    """Return what a rewind would do. Nothing is written.

    :param scenario: where the positions move to, for example `Scenario.of("to-datetime", "2026-11-17T00:00:00Z")`
    :param scope: the topics and partitions that are meant; None is all topics of the group, for a file those in it, and for the
        import of a group without positions those that the consumer group has committed
    :param isolation_level: that of the loads: it decides what the end offset of a log is
    :param new_group: whether the group may be one that nothing is stored of yet; an import may always create one
    :param new_cluster: whether the positions may belong to another Kafka cluster, which the group leaves for this one
    :raises ConfigurationError: there is no such group, or nothing in the scope
    :raises UnknownTopicError: there is no such topic or partition
    :raises NoPositionError: the scenario counts from positions that are not stored, or another group has none
    :raises TopicRecreatedError: the positions that the scenario means belong to an earlier topic of the same name
    :raises ClusterChangedError: the positions belong to another cluster
    :raises RewindConflictError: the last rewind cannot be undone any more
    :raises KafkaUnavailableError: the cluster did not answer in time
    """
    tables, scope = tables or Tables(), scope or {}
    state = _known_state(engine, tables, group_id, may_be_new=new_group or scenario.name == "import")
    positions = state.positions if state is not None else {}
    cluster = Cluster(kafka_config, isolation_level=isolation_level)
    cluster_id = cluster.cluster_id()
    old_cluster = state.cluster_id if state is not None else None
    moves_cluster = old_cluster not in (None, cluster_id)
    if moves_cluster:
        _check_new_cluster(group_id, scenario, scope, old_cluster, cluster_id, new_cluster)
    instant = lookups.instant_of(engine, scenario)

    named = looked_up = lookups.named_positions(engine, tables, group_id, scenario, scope)
    topics = sorted(scope or {tp.topic for tp in (positions if named is None else named)})
    if not topics and scenario.name == "import":
        looked_up = lookups.imported_positions(cluster, str(scenario.value))
        topics = sorted({tp.topic for tp in looked_up})
    if not topics:
        raise ConfigurationError(f"No position of group {group_id!r} is stored: name the topics")
    logs = cluster.logs(topics)
    stored = [tp for tp in positions if tp.topic in topics]
    partitions = partitions_in(scope, stored, logs)
    if named is not None:
        within = {topic: frozenset(tp.partition for tp in named if tp.topic == topic) for topic in topics}
        partitions = sorted({*partitions}.intersection(partitions_in(within, stored, logs)))
    if not partitions:
        raise ConfigurationError(f"Nothing of {scenario.text} is in the scope {', '.join(topics)}")

    if looked_up is None:
        in_log = [tp for tp in partitions if tp in logs]
        looked_up = lookups.look_up(engine, tables, group_id, scenario, cluster, in_log, instant)
    decided = decide(scenario, partitions, positions, logs, looked_up)
    if state is not None and state.generation > 0:
        decided = with_loaded_ranges(engine, tables, group_id, decided, logs)
    preview = RewindPreview(
        group_id=group_id,
        cluster_id=cluster_id,
        generation=state.generation if state is not None else None,
        scenario=scenario.describe(scope),
        kind=scenario.name if scenario.name in ("undo", "import") else "rewind",
        partitions=decided,
        instant=instant,
        open_batch=state.open_batch if state is not None else None,
        moves_cluster=moves_cluster,
    )
    preview.refuse_left_behind(positions)
    return preview


def _known_state(engine: Engine, tables: Tables, group_id: str, *, may_be_new: bool) -> CurrentState | None:
    with engine.connect() as conn:
        if not may_be_new:
            cluster_of(conn, tables, group_id)  # raises if there is no such group
        elif installed_version(conn, tables) is None:
            return None
    return current_state(engine, tables, group_id)


def _check_new_cluster(
    group_id: str, scenario: Scenario, scope: Scope, old_cluster: str | None, cluster_id: str, allowed: bool
) -> None:
    if not allowed:
        check_cluster(
            group_id,
            old_cluster,
            cluster_id,
            "Correct the connection; or, if the group is to continue from this cluster, rewind with a change of the cluster to "
            "an offset or a time in it.",
        )
    if scenario.name in _OF_OLD_CLUSTER:
        raise ConfigurationError(
            f"{scenario.name} means offsets of the cluster that group {group_id!r} was loaded from, {old_cluster!r}. With a "
            "change of the cluster, name an offset, a time, a file, or a consumer group in the new cluster."
        )
    if scope:
        raise ConfigurationError(
            "A group belongs to one cluster: with a change of the cluster all its positions are moved; leave out the scope"
        )
