"""`kafka-offsets import`: what a consumer group in Kafka committed becomes the positions of a group."""

from __future__ import annotations

import pytest

from devstack.kafka import KafkaBroker
from tests.support.clients import commit_to_kafka, produce
from tests.support.command_line import CommandLine
from tests.support.loads import Loader, TopicFactory, names, positions
from tests.support.rewind_commands import Rewinds

pytestmark = pytest.mark.server


@pytest.mark.broker
def test_an_import_into_a_new_group_takes_all_that_the_consumer_group_committed(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, cli: CommandLine
) -> None:
    first, second, elsewhere = topic(partitions=2), topic(), topic()
    for name in (first, second, elsewhere):
        produce(kafka, name, names(0, 10))
    commit_to_kafka(kafka, first, first, {0: 4})
    commit_to_kafka(kafka, first, second, {0: 7})
    rewinds = Rewinds(inline_loader, cli, first)

    done = rewinds("import", "--from-group", first, "--output", "json", "--execute")

    assert done.status == 0, done.stderr
    assert {(one["topic"], one["partition"]): one["note"] for one in done.json["partitions"]} == {
        (first, 0): "",
        # Of a topic that it reads all partitions are shown: a load would begin this one at its beginning.
        (first, 1): f"consumer group {first!r} in Kafka has committed no offset of this partition: left as it is",
        (second, 0): "",
    }
    assert positions(inline_loader.engine) == {(first, 0): 4, (second, 0): 7}


def test_an_import_into_a_group_is_of_its_own_topics(rewinds: Rewinds, kafka: KafkaBroker, topic: TopicFactory) -> None:
    other = topic()
    produce(kafka, other, names(0, 10))
    commit_to_kafka(kafka, other, other, {0: 4})
    commit_to_kafka(kafka, other, rewinds.topic, {0: 60})

    assert rewinds("import", "--from-group", other, "--execute").status == 0

    assert positions(rewinds.loader.engine) == {(rewinds.topic, 0): 60}


def test_an_import_from_a_consumer_group_that_is_not_there_says_so(inline_loader: Loader, cli: CommandLine) -> None:
    done = Rewinds(inline_loader, cli, "")("import", "--from-group", "nobody-at-all")

    assert (done.status, done.stdout) == (1, "")
    assert "Kafka has no consumer group 'nobody-at-all'" in done.stderr
