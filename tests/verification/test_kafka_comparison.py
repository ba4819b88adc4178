"""What only Kafka can tell."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.offsets import PartitionLog
from airflow_kafka_offsets.core.offsets import TopicPartition as Partition
from airflow_kafka_offsets.exceptions import ClusterChangedError, TopicRecreatedError, VerificationError
from airflow_kafka_offsets.kafka.cluster import Cluster
from devstack.kafka import KafkaBroker
from devstack.topics import delete_records
from tests.support.loads import Loader
from tests.support.verifying import ON_ONE, do, reread, verified

pytestmark = pytest.mark.server


def lose_unnoticed(engine: Engine, offset: int) -> None:
    """Delete a row of batch 1, and make the history agree."""
    do(
        engine,
        f"DELETE FROM target WHERE _batch_id = 1 AND _kafka_partition = 0 AND _kafka_offset = {offset}",
        "UPDATE offset_ranges SET records = records - 1 WHERE batch_id = 1 AND partition = 0",
        "UPDATE offset_batches SET row_count = row_count - 1, records = records - 1 WHERE batch_id = 1",
    )


def test_records_that_history_and_target_forgot_are_found_in_kafka(inline_loader: Loader, two_batches: str) -> None:
    assert reread(inline_loader).reread == 20
    lose_unnoticed(inline_loader.engine, 4)
    lose_unnoticed(inline_loader.engine, 9)

    assert verified(inline_loader).rows == 17
    with pytest.raises(
        VerificationError,
        match=r"\[0\]: the record at offset 4, which was loaded by batch 1, is neither in table 'target' nor a dead "
        "letter, as is 1 more up to offset 15",
    ) as raised:
        reread(inline_loader)
    assert (raised.value.partition, raised.value.offset, raised.value.batch_id) == (0, 4, 1)


@ON_ONE
@pytest.mark.broker
def test_retention_may_go_on_while_kafka_is_read(
    inline_loader: Loader, kafka: KafkaBroker, two_batches: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = Cluster.logs_of
    asked: list[Collection[Partition]] = []

    def logs_then_retention(
        cluster: Cluster, topic_ids: Mapping[Partition, str | None], failed: Any = None
    ) -> dict[Partition, PartitionLog]:
        found = ask(cluster, topic_ids, failed)
        if not asked:
            delete_records(kafka.bootstrap_servers, two_batches, 6)
        asked.append(topic_ids)
        return found

    monkeypatch.setattr(Cluster, "logs_of", logs_then_retention)

    assert reread(inline_loader).reread == 14
    assert len(asked) == 2


@ON_ONE
def test_another_topic_or_another_cluster_is_not_compared(
    inline_loader: Loader, kafka: KafkaBroker, two_batches: str
) -> None:
    engine = inline_loader.engine
    do(engine, "UPDATE offset_ranges SET topic_id = 'other'", "UPDATE consumed_offsets SET topic_id = 'other'")
    with pytest.raises(TopicRecreatedError, match=r"position 15 belongs to topic id other"):
        reread(inline_loader)

    do(engine, "UPDATE consumer_groups SET cluster_id = 'other'")
    with pytest.raises(ClusterChangedError, match="belong to Kafka cluster 'other'"):
        reread(inline_loader)
