"""A topic to which a machine writes at random, and a model of what it holds: the half of `random_loads` that knows no
loads.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from airflow_kafka_offsets.core import offsets
from airflow_kafka_offsets.core.instants import milliseconds
from airflow_kafka_offsets.kafka.cluster import Cluster
from devstack.kafka import KafkaBroker
from devstack.process import wait_until
from devstack.topics import create_topic
from tests.support import clients
from tests.support.loads import names

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
# A record that does not decode, and one that the target refuses.
REFUSED_ID = 1
UNLOADABLE = {"bad": b"{not json", "refused": b'{"id": 1, "name": "refused"}'}


@dataclass
class Log:
    """A partition as the model knows it.

    :param records: what was committed to it, by offset: an id, or None for a record that cannot be loaded
    :param beginning: records below it were deleted
    """

    records: dict[int, int | None] = field(default_factory=dict)
    beginning: int = 0
    end: int = 0


DONE: Counter[str] = Counter()


def event(what: str) -> None:
    """A step that did something is counted, for the summary of a run."""
    DONE[what] += 1


class RandomTopic(RuleBasedStateMachine):
    """One topic of one or more partitions.

    A subclass sets what is declared here before the first rule, and calls `new_producers` and `make_topic`. `refuses`
    says whether the target refuses some of the values.
    """

    kafka: KafkaBroker
    admin: AdminClient
    topic: str
    logs: dict[int, Log]
    ids: int
    refuses: bool
    runs_of_this_topic: int

    def new_producers(self) -> None:
        """A producer that lives does not see at once that the topic has more partitions, or is another one."""
        self.producer = clients.producer(self.kafka, **{"linger.ms": 0})
        self.transactional: Producer | None = None

    def make_topic(self, partitions: int) -> None:
        create_topic(self.kafka.bootstrap_servers, self.topic, partitions, {"retention.ms": "-1"})
        self.logs = {partition: Log() for partition in range(partitions)}

    @rule(
        partition=st.integers(0, 9),
        values=st.lists(st.sampled_from(["good"] * 8 + list(UNLOADABLE)), min_size=1, max_size=12),
        minutes=st.integers(0, 90),
        ending=st.sampled_from(["plain", "plain", "commit", "abort"]),
    )
    def produce(self, partition: int, values: list[str], minutes: int, ending: str) -> None:
        partition %= len(self.logs)
        log = self.logs[partition]
        producer = self.producer if ending == "plain" else self.transaction()
        delivered: list[tuple[int, int | None]] = []
        for kind in values:
            number = None
            if kind == "good":
                number, self.ids = self.ids, self.ids + 1
                (value,) = names(number, 1)
            else:
                value = UNLOADABLE[kind]
                if kind == "refused" and not self.refuses:
                    number = REFUSED_ID

            def keep(error: object, message: Any, number: int | None = number) -> None:
                assert error is None, error
                delivered.append((message.offset(), number))

            stamp = milliseconds(NOON + timedelta(minutes=minutes + random.Random(self.ids).randrange(30)))
            producer.produce(self.topic, value, partition=partition, timestamp=stamp, on_delivery=keep)
        assert producer.flush(30) == 0
        if ending == "commit":
            producer.commit_transaction(30)
        elif ending == "abort":
            producer.abort_transaction(30)
        # Several requests may be answered in another order; behind a transaction comes its marker.
        log.end = max(offset for offset, _ in delivered) + (1 if ending == "plain" else 2)
        if ending != "abort":
            log.records |= dict(delivered)
        if ending != "plain":
            # The marker is written a moment after the transaction has ended; what is written before it would lie before
            # it.
            self.wait_for_the_end(partition)
        event(f"produced, {ending}{', with values to be refused' if 'refused' in values else ''}")

    def transaction(self) -> Producer:
        if self.transactional is None:
            self.transactional = clients.producer(self.kafka, **{"transactional.id": f"{self.topic}-writer"})
            self.transactional.init_transactions(30)
        self.transactional.begin_transaction()
        return self.transactional

    @rule(partition=st.integers(0, 9), share=st.floats(0, 1))
    def delete_records(self, partition: int, share: float) -> None:
        partition %= len(self.logs)
        log = self.logs[partition]
        before = log.beginning + int((log.end - log.beginning) * share)
        if before > log.beginning:
            self.wait_for_the_end(partition)
            wait_until(lambda: self.is_deleted(partition, before), 30, "the leader of the partition")
            log.beginning = before
            event("records were deleted")

    def is_deleted(self, partition: int, before: int) -> bool:
        """Delete records; return False while the leader of a new partition is not known."""
        (future,) = self.admin.delete_records([TopicPartition(self.topic, partition, before)]).values()
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError._NOENT:
                raise
            return False
        return True

    @precondition(lambda self: len(self.logs) < 4 and self.runs_of_this_topic > 3 * len(self.logs))
    @rule()
    def add_a_partition(self) -> None:
        count = len(self.logs) + 1
        self.admin.create_partitions([NewPartitions(self.topic, count)])[self.topic].result()
        self.logs[count - 1] = Log()
        wait_until(lambda: len(self.known()) == count, 30, "the new partition")
        self.new_producers()
        event("a partition was added")

    def known(self) -> dict[int, Any]:
        return dict(self.admin.list_topics(self.topic, timeout=10).topics[self.topic].partitions)

    def wait_for_the_end(self, partition: int) -> None:
        """Until the broker shows committed readers what was written."""
        cluster = Cluster({"bootstrap.servers": self.kafka.bootstrap_servers})
        end = self.logs[partition].end
        wait_until(
            lambda: cluster.logs([self.topic])[offsets.TopicPartition(self.topic, partition)].end == end,
            30,
            f"end {end}",
        )
