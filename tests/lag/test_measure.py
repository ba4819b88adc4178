"""Lag against a cluster in which a partition has no leader, or times are extreme, and how many requests it takes."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.instants import CommittedBy, Start, milliseconds
from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.exceptions import KafkaUnavailableError, LedgerError
from airflow_kafka_offsets.kafka.cluster import Cluster, PartialLogs
from airflow_kafka_offsets.lag import measure
from airflow_kafka_offsets.lag.measure import LagPolls, group_states, measure_lag
from airflow_kafka_offsets.lag.report import LagQuestion, LagReport
from airflow_kafka_offsets.ledger import positions
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from devstack.kafka import KafkaBroker
from devstack.kafka_cluster import KafkaCluster
from devstack.topics import create_topic
from tests.support.clients import Kafka, more_partitions, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names

pytestmark = pytest.mark.server

MICROSECONDS = 1_772_366_400_000_000


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


def timed(loader: Loader, topic: str, start: Start = "earliest") -> LagReport:
    """What a group that nothing is stored of would find."""
    question = LagQuestion("loader", {topic: None}, start, times=True)
    return measure_lag(Ledger(loader.engine), Cluster(loader.config), question, new_group=True)


@pytest.mark.long  # test_report.py has what becomes of the error every day
def test_L08_a_partition_without_a_leader_is_an_entry_with_an_error(postgres_engine: Engine) -> None:
    with KafkaCluster() as kafka:
        create_topic(kafka.bootstrap_servers, "lonely", 2, replicas=[[3], [2]])
        loader: Any = Loader(kafka, postgres_engine, InlineLauncher())
        loader("lonely")
        produce(kafka, "lonely", names(0, 4), 1)
        kafka.brokers[3].kill()
        kafka.wait_for_leader(-1, "lonely", 0)
        config = {"bootstrap.servers": kafka.brokers[2].bootstrap_servers}

        report = measure_lag(Ledger(postgres_engine), Cluster(config, timeout=8), LagQuestion("loader"))

        assert (report.lag, report.complete) == (4, False)
        (failed,) = report.errors
        assert failed.topic_partition == TopicPartition("lonely", 0)
        assert "partition lonely[0]" in str(failed.error)
        kafka.brokers[2].kill()
        with pytest.raises(KafkaUnavailableError):
            measure_lag(Ledger(postgres_engine), Cluster(config, timeout=1), LagQuestion("loader"))


def test_any_number_of_partitions_takes_the_same_few_requests(
    inline_loader: Loader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    names_of_topics = [topic(partitions=20), topic(partitions=30)]
    inline_loader(*names_of_topics)
    for name in names_of_topics:
        produce(inline_loader.kafka, name, names(0, 2), 7)
    inline_loader(*names_of_topics)
    for name in names_of_topics:
        produce(inline_loader.kafka, name, names(2, 3), 7)
    cluster = Cluster(inline_loader.config)
    asked: Counter[str] = Counter()
    ask = cluster._admin.ask

    def counting(what: str, *arguments: Any, **options: Any) -> Any:
        asked[what] += 1
        return ask(what, *arguments, **options)

    monkeypatch.setattr(cluster._admin, "ask", counting)

    report = measure_lag(Ledger(inline_loader.engine), cluster, LagQuestion("loader"))

    assert (len(report.partitions), report.lag, report.complete) == (50, 6, True)
    assert asked == {"its cluster id": 1, "its topics": 1, "the offsets of its logs": 2}
    asked.clear()
    measure_lag(Ledger(inline_loader.engine), cluster, LagQuestion("loader", times=True))
    assert asked == {
        "its cluster id": 1,
        "its topics": 1,
        "the offsets of its logs": 4,
        "the settings of its topics": 1,
    }


@pytest.mark.parametrize("start", ["earliest", "latest", timedelta(hours=1)], ids=["earliest", "latest", "by time"])
@pytest.mark.broker
def test_a_new_partition_that_is_named_alone_counts_from_its_beginning(
    inline_loader: Loader, topic: TopicFactory, start: Start
) -> None:
    name, other = topic(), topic()
    inline_loader(name)
    more_partitions(inline_loader.kafka, name, 2)
    produce(inline_loader.kafka, name, names(0, 4), 1)
    question = LagQuestion("loader", {name: frozenset({1}), other: None}, start)

    report = measure_lag(Ledger(inline_loader.engine), Cluster(inline_loader.config), question)

    assert {one.topic_partition: one.lag for one in report.partitions} == {
        TopicPartition(name, 1): 4,
        TopicPartition(other, 0): 0,
    }


@pytest.mark.parametrize("ago", [True, False], ids=["a duration", "an instant"])
def test_records_before_the_start_of_a_new_group_do_not_wait(
    inline_loader: Loader, topic: TopicFactory, ago: bool
) -> None:
    # Kafka keeps milliseconds.
    day, now = timedelta(days=1), datetime.now(UTC).replace(microsecond=0)
    name = topic(retention_ms=11 * day // timedelta(milliseconds=1))
    produce(inline_loader.kafka, name, names(0, 1), timestamp=milliseconds(now - 10 * day))
    produce(inline_loader.kafka, name, names(1, 1), timestamp=milliseconds(now - day))

    report = timed(inline_loader, name, 2 * day if ago else now - 2 * day)

    assert report.lag == 1
    assert report.delay is not None
    assert report.headroom_time is not None
    assert day <= report.delay < 2 * day
    assert 9 * day < report.headroom_time <= 10 * day


@pytest.mark.parametrize(("committed", "known"), [(0, True), (1, False)], ids=["at the beginning", "behind it"])
@pytest.mark.broker
def test_how_long_records_have_waited_behind_another_groups_commit_is_not_known(
    inline_loader: Loader, topic: TopicFactory, committed: int, known: bool
) -> None:
    name = topic()
    produce(inline_loader.kafka, name, names(0, 2))
    Cluster(inline_loader.config).commit(f"old-{name}", {TopicPartition(name, 0): Position(committed)})

    report = timed(inline_loader, name, CommittedBy(f"old-{name}"))

    assert (report.lag, report.delay is not None) == (2 - committed, known)


@pytest.mark.parametrize("retention_ms", [2**63 - 1, 10**15], ids=["the largest", "thousands of years"])
def test_a_topic_that_keeps_records_for_longer_than_dates_reach_keeps_all(
    inline_loader: Loader, topic: TopicFactory, retention_ms: int
) -> None:
    name = topic(retention_ms=retention_ms)
    produce(inline_loader.kafka, name, names(0, 2))

    report = timed(inline_loader, name)

    assert (report.lag, report.headroom_time) == (2, None)
    assert report.delay is not None


def test_a_record_with_a_timestamp_behind_all_dates_has_not_waited(
    postgres_engine: Engine, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    loader = Loader(kafka, postgres_engine, InlineLauncher())
    name = topic(retention_ms=3_600_000, message_timestamp_after_max_ms=2**63 - 1)
    produce(kafka, name, names(0, 1), timestamp=MICROSECONDS)

    for start in ("earliest", timedelta(hours=1)):
        report = timed(loader, name, start)
        assert (report.lag, report.delay) == (1, timedelta(0))
        assert report.headroom_time is not None
        assert report.headroom_time > timedelta(days=365)


def test_where_no_state_tables_are_the_lag_of_a_new_group_says_so(inline_loader: Loader, topic: TopicFactory) -> None:
    name = topic()
    produce(inline_loader.kafka, name, names(0, 3))
    inline_loader(topic())
    cluster, question = Cluster(inline_loader.config), LagQuestion("new", {name: None})

    there = measure_lag(Ledger(inline_loader.engine), cluster, question, new_group=True)
    misspelled = measure_lag(Ledger(inline_loader.engine, Tables(prefix="nope_")), cluster, question, new_group=True)

    assert str(there) == "lag 3 in 1 partition"
    assert str(misspelled).startswith("lag 3 in 1 partition; the state tables do not exist: ")


def test_an_error_of_one_group_is_not_reported_for_others(inline_loader: Loader, topic: TopicFactory) -> None:
    name = topic()
    produce(inline_loader.kafka, name, names(0, 3))
    inline_loader(name)
    with inline_loader.engine.connect() as conn:
        states = group_states(conn, Tables(), ["loader", "new"])
    # Not one that a trigger lets pass.
    bad = LagQuestion("new", {name: None}, timedelta(days=800_000))

    reports = LagPolls(Cluster(inline_loader.config)).reports(
        [(bad, states["new"]), (LagQuestion("loader"), states["loader"])]
    )

    failed, report = list(reports)
    assert isinstance(failed, OverflowError)
    assert isinstance(report, LagReport)
    assert (report.lag, report.complete) == (0, True)


def test_a_group_with_more_positions_than_loads_store_is_not_read_and_hides_no_other(
    inline_loader: Loader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, loader = topic(), inline_loader
    produce(loader.kafka, name, names(0, 3))
    loader(name)
    ledger = Ledger(loader.engine)
    stored = ledger.tables.consumed_offsets
    with loader.engine.begin() as conn:
        row = conn.execute(sa.select(stored)).mappings().one()
        conn.execute(stored.insert(), [{**row, "consumer_group": "odd", "partition": number} for number in range(4)])
    monkeypatch.setattr(positions, "_MOST_POSITIONS", 3)

    with loader.engine.connect() as conn:
        states = group_states(conn, ledger.tables, ["loader", "odd"])
    questions = [(LagQuestion(group_id), states[group_id]) for group_id in states]
    odd, healthy = sorted(
        LagPolls(Cluster(loader.config)).reports(questions), key=lambda each: isinstance(each, LagReport)
    )

    assert isinstance(healthy, LagReport)
    assert (healthy.lag, healthy.complete) == (0, True)
    assert "Group 'odd' has 4 positions in 'consumed_offsets', of which no load stores more than 3" in str(odd)
    with pytest.raises(LedgerError, match="Group 'odd' has 4 positions"):
        positions.read_positions(ledger, "odd")
    assert len(positions.read_positions(ledger, "loader")) == 1


def test_a_group_with_positions_of_many_made_up_topics_hides_no_other(
    inline_loader: Loader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker needs longer for 30,000 unknown topics than a request may take."""
    name, loader = topic(), inline_loader
    loader(name)
    produce(loader.kafka, name, names(0, 3))
    ledger = Ledger(loader.engine)
    stored = ledger.tables.consumed_offsets
    with loader.engine.begin() as conn:
        row = conn.execute(sa.select(stored)).mappings().one()
        made_up = [{**row, "consumer_group": "odd", "topic": f"made-up-{number}"} for number in range(4)]
        conn.execute(stored.insert(), [*made_up, {**row, "consumer_group": "odd"}])
        groups = ledger.tables.consumer_groups
        group = conn.execute(sa.select(groups)).mappings().one()
        conn.execute(groups.insert(), {**group, "group_id": "odd"})
        states = group_states(conn, ledger.tables, ["loader", "odd"])
    monkeypatch.setattr(measure, "_TOPICS_AT_ONCE", 3)
    cluster = Cluster(loader.config)
    asked: list[list[str]] = []
    partial_logs = cluster.partial_logs

    def slow(topics: list[str]) -> PartialLogs:
        asked.append(topics)
        if "made-up-0" in topics:
            raise KafkaUnavailableError("Kafka did not report its topics within 10 s")
        return partial_logs(topics)

    monkeypatch.setattr(cluster, "partial_logs", slow)
    questions = [(LagQuestion(group_id, times=True), states[group_id]) for group_id in ("odd", "loader")]
    odd, healthy = LagPolls(cluster).reports(questions)

    # After the first request that failed, there is none.
    assert asked == [[name], [f"made-up-{number}" for number in range(3)]]
    assert isinstance(healthy, LagReport)
    assert isinstance(odd, LagReport)
    assert (healthy.lag, healthy.complete) == (3, True)
    assert (odd.lag, odd.complete) == (3, False)
    assert {str(each.error) for each in odd.errors} == {"Kafka did not report its topics within 10 s"}
    with pytest.raises(KafkaUnavailableError):
        list(LagPolls(cluster).reports([(LagQuestion("odd", dict.fromkeys(asked[1])), states["odd"])]))
    asked.clear()
    monkeypatch.setattr(measure, "_MOST_TOPICS", 4)
    odd, healthy = LagPolls(cluster).reports(questions)
    assert str(odd).startswith("The lag of group 'odd' is not measured: it has 5 topics, more than 4. ")
    assert asked == [[name]]
    assert isinstance(healthy, LagReport)
    assert (healthy.lag, healthy.complete) == (3, True)
