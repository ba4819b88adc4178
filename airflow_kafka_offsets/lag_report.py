"""The lag of a group as it is now: positions from the database first, then the ends of the logs, then `lag.evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy.engine import Engine

from airflow_kafka_offsets import bounds, ledger
from airflow_kafka_offsets.exceptions import ClusterChangedError
from airflow_kafka_offsets.instants import milliseconds
from airflow_kafka_offsets.kafka import Cluster
from airflow_kafka_offsets.lag import Committed, LagReport, evaluate
from airflow_kafka_offsets.ledger import Tables, audit, overview
from airflow_kafka_offsets.ledger.connection import database_now
from airflow_kafka_offsets.offsets import PartitionLog, TopicPartition


def lag_report(
    engine: Engine,
    tables: Tables,
    group_id: str,
    cluster: Cluster,
    *,
    topics: Sequence[str] | None = None,
    start: bounds.Start = "earliest",
    headroom_time: bool = False,
) -> LagReport:
    """How far a group is behind.

    Four requests to Kafka for any number of partitions: the cluster's id, the topics, and both ends of their logs. A
    partition that cannot be asked about is an entry with an error.

    :param cluster: its isolation level decides what the end of a log is; its time-out, how long a partition without a leader
        is waited for
    :param topics: only these, of which nothing need be stored yet; None is those of the stored positions
    :param start: where a load would begin with topics of which nothing is stored
    :param headroom_time: ask also, by two more requests, how long retention leaves what is not loaded: the topics'
        `retention.ms`, and in each partition the first record that is newer than all that was committed
    :raises ConfigurationError: the state tables know no such group
    :raises ClusterChangedError: the positions belong to another cluster
    :raises UnknownTopicError: one of `topics` does not exist, and nothing is stored of it
    :raises KafkaUnavailableError: the cluster did not answer in time
    """
    with engine.connect() as conn:
        loaded_from = audit.cluster_of(conn, tables, group_id)
        stored = overview.committed(conn, tables, group_id)
        now = database_now(conn)
    check_cluster(group_id, loaded_from, cluster)
    asked = sorted({tp.topic for tp in stored}) if topics is None else list(topics)
    if not asked:
        return LagReport(())
    committed = {tp: one for tp, one in stored.items() if tp.topic in asked}
    found = cluster.partial_logs(asked)
    errors = {tp: str(error) for tp, error in found.partition_errors.items()}
    for topic, error in found.topic_errors.items():
        of_topic = [tp for tp in committed if tp.topic == topic]
        if not of_topic:
            raise error
        errors |= dict.fromkeys(of_topic, str(error))
    positions = {tp: one.position for tp, one in committed.items()}
    return evaluate(
        committed,
        found.logs,
        now=now,
        start=bounds.first_offsets(cluster, start, lambda: ledger.now(engine), found.logs, positions),
        errors=errors,
        expires=_expires(cluster, committed, found.logs) if headroom_time else None,
    )


def check_cluster(group_id: str, loaded_from: str | None, cluster: Cluster) -> None:
    """Make sure that a group's positions are those of this cluster.

    :param loaded_from: the id of the cluster that the group is loaded from; None where it is not known
    :raises ClusterChangedError: they are not
    """
    found = cluster.cluster_id()
    if loaded_from is not None and loaded_from != found:
        raise ClusterChangedError(
            f"The positions of group {group_id!r} belong to Kafka cluster {loaded_from!r}; the connection leads to cluster "
            f"{found!r}. Name the connection that the group is loaded with."
        )


def _expires(
    cluster: Cluster, committed: Mapping[TopicPartition, Committed], logs: Mapping[TopicPartition, PartitionLog]
) -> dict[TopicPartition, datetime]:
    """When retention by time may take the first record that is newer than all that was committed.

    Retention goes by the newest record of a segment: it comes no earlier than this, and later where the segment goes on
    to newer records.
    """
    newest = {
        tp: one.record_timestamp
        for tp, one in committed.items()
        if one.record_timestamp is not None and tp in logs and one.position.offset < logs[tp].end
    }
    retention = cluster.retention(sorted({tp.topic for tp in newest})) if newest else {}
    after = {tp: milliseconds(timestamp) + 1 for tp, timestamp in newest.items() if tp.topic in retention}
    first = cluster.first_since(after) if after else {}
    epoch = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
    return {tp: epoch + timedelta(milliseconds=one.timestamp_ms) + retention[tp.topic] for tp, one in first.items()}
