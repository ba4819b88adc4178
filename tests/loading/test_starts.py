"""Where a first load begins. The cases are those of `docs/semantics.md`."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from typing import Any

import pytest

from airflow_kafka_offsets.core.instants import CommittedBy, Start, milliseconds
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DataLossError,
    LogTruncatedError,
    NoPositionError,
    RecordError,
)
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from devstack.process import wait_until
from devstack.topics import delete_records
from tests.support.clients import Kafka, Transactions, commit_to_kafka, produce
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.openings import KEPT, NOON, at, ids, left_open, one_record_transactions, produce_at
from tests.support.rewinds import Rewinder

pytestmark = pytest.mark.server


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


class TestFirstRun:
    @pytest.mark.parametrize(
        ("start", "expected"),
        [
            ("2026-03-01T12:02:00", [2, 3]),
            (at(2), [2, 3]),
            (at(2.5), [3]),
            ("2026-03-01T13:32:00+01:30", [2, 3]),
            (at(60), []),
        ],
    )
    def test_a_timestamp_is_the_first_record_at_or_after_it(
        self, inline_loader: Loader, topic: TopicFactory, start: str | datetime, expected: list[int]
    ) -> None:
        name = topic(**KEPT)
        produce_at(inline_loader.kafka, name, [0, 1, 2, 3])

        inline_loader(name, start=start)

        assert ids(inline_loader) == expected
        # Where no record is that new, the end is stored: what comes next is not missed.
        produce_at(inline_loader.kafka, name, [61], first=100)
        inline_loader(name, start=start)
        assert ids(inline_loader) == [*expected, 100]

    def test_a_duration_counts_back_from_now(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic(**KEPT)
        produce_at(inline_loader.kafka, name, [0])  # months ago
        produce(inline_loader.kafka, name, names(1, 2))  # now

        inline_loader(name, start=timedelta(hours=1))

        assert ids(inline_loader) == [1, 2]

    @pytest.mark.broker
    def test_a_record_of_the_future_hides_what_is_behind_it(  # P07
        self, inline_loader: Loader, topic: TopicFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        name = topic(message_timestamp_after_max_ms=str(2**62), **KEPT)
        kafka = inline_loader.kafka
        produce_at(kafka, name, [0])
        produce_at(kafka, name, [10 * 365 * 24 * 60], first=1)
        produce(kafka, name, names(2, 1))

        with caplog.at_level(logging.WARNING):
            inline_loader(name, start=timedelta(minutes=1))

        assert ids(inline_loader) == [1, 2]
        (warning,) = [record.getMessage() for record in caplog.records if "is in the future" in record.getMessage()]
        assert f"{name}[0]: the first record at or after" in warning
        assert "is at offset 1" in warning

    @pytest.mark.broker
    def test_a_first_run_does_not_begin_at_a_marker(  # T03
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic(**KEPT)
        one_record_transactions(inline_loader.kafka, name, range(10))

        inline_loader(name, start=at(7))

        assert ids(inline_loader) == [7, 8, 9]

    @pytest.mark.broker
    def test_a_timestamp_behind_all_dates_is_found_by_a_search_by_time(
        self, inline_loader: Loader, topic: TopicFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        name = topic(message_timestamp_after_max_ms=str(2**63 - 1), **KEPT)
        produce(inline_loader.kafka, name, names(0, 1), timestamp=milliseconds(NOON) * 1000)

        with pytest.raises(RecordError, match=f"{name}' partition 0 offset 0"):
            inline_loader(name, start=timedelta(hours=1))

        assert "its timestamp 9999-12-31 23:59:59 UTC is in the future" in caplog.text

    @pytest.mark.broker
    def test_another_groups_commits(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic(partitions=3)
        for partition in range(3):
            produce(inline_loader.kafka, name, names(partition * 10, 5), partition)
        commit_to_kafka(inline_loader.kafka, f"old-{name}", name, {0: 3, 1: 5})

        inline_loader(name, start=CommittedBy(f"old-{name}"))

        # Partition 2, of which the group committed nothing, from its beginning.
        assert ids(inline_loader) == [3, 4, *range(20, 25)]
        assert positions(inline_loader.engine) == {(name, partition): 5 for partition in range(3)}

    def test_a_group_that_committed_nothing_is_named(self, inline_loader: Loader, topic: TopicFactory) -> None:
        with pytest.raises(NoPositionError, match="Consumer group 'no-such-group' has committed nothing of"):
            inline_loader(topic(), start=CommittedBy("no-such-group"))

    def test_commits_outside_of_the_log_are_not_taken(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic(partitions=2)
        kafka = inline_loader.kafka
        for partition in range(2):
            produce(kafka, name, names(partition * 10, 5), partition)
        group = f"old-{name}"
        commit_to_kafka(kafka, group, name, {0: 2, 1: 5})
        delete_records(kafka.bootstrap_servers, name, 4)

        with pytest.raises(DataLossError, match=rf"{name}\[0\]: position 2, beginning offset 4, 2 offsets gone"):
            inline_loader(name, start=CommittedBy(group))
        commit_to_kafka(kafka, group, name, {1: 9})
        with pytest.raises(LogTruncatedError, match=rf"{name}\[1\]: position 9 is beyond the end offset 5"):
            inline_loader(name, start=CommittedBy(group), on_data_loss="skip")
        commit_to_kafka(kafka, group, name, {1: 5})
        inline_loader(name, start=CommittedBy(group), on_data_loss="skip")

        assert ids(inline_loader) == [4]
        assert rows(inline_loader.engine, "SELECT start_offset, end_offset FROM offset_gaps") == [(2, 4)]

    @pytest.mark.parametrize(
        ("start", "begun"),
        [(at(20), {0: 3, 1: 2}), (CommittedBy("old"), {0: 1, 1: 3}), ("earliest", {0: 0, 1: 0})],
        ids=["time", "group", "earliest"],
    )
    def test_where_a_group_begins_is_decided_once(
        self, inline_loader: Loader, topic: TopicFactory, start: Start, begun: dict[int, int]
    ) -> None:
        name = topic(partitions=3, **KEPT)
        kafka = inline_loader.kafka
        produce_at(kafka, name, [0, 1, 2, 30, 31])
        produce_at(kafka, name, [0, 1, 30, 31, 32], first=10, partition=1)
        if isinstance(start, CommittedBy):
            start = CommittedBy(f"old-{name}")
            commit_to_kafka(kafka, start.group_id, name, begun)
        batch = left_open(inline_loader, name, start=start)
        # The partition without records has its position; the others have none before their first batch is committed.
        assert positions(inline_loader.engine) == {(name, 2): 0}

        abandon_batch("loader", batch, engine=inline_loader.engine, who="somebody")
        assert positions(inline_loader.engine) == {(name, 2): 0} | {(name, p): offset for p, offset in begun.items()}
        assert rows(
            inline_loader.engine, "SELECT kind, target_table, reason FROM offset_batches ORDER BY batch_id DESC LIMIT 1"
        ) == [("initialize", "target", f"where batch {batch} began")]
        inline_loader(name, start=start)

        assert ids(inline_loader) == [*range(begun[0], 5), *range(10 + begun[1], 15)]
        verify("loader", sink=SqlTable("target"), engine=inline_loader.engine, kafka_config=inline_loader.config)

    def test_a_first_batch_whose_records_expire_leaves_a_gap_from_where_it_began(
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic(partitions=3, **KEPT)
        kafka = inline_loader.kafka
        produce_at(kafka, name, [0, 1, 2, 30, 31])
        produce_at(kafka, name, [0, 1, 30, 31, 32], first=10, partition=1)
        left_open(inline_loader, name, start=at(20))
        delete_records(kafka.bootstrap_servers, name, 3, 1)

        inline_loader(name, start=at(20), on_data_loss="skip")

        assert ids(inline_loader) == [3, 4, 13, 14]
        assert rows(inline_loader.engine, "SELECT partition, start_offset, end_offset FROM offset_gaps") == [(1, 2, 3)]
        verify("loader", sink=SqlTable("target"), engine=inline_loader.engine, kafka_config=inline_loader.config)

    def test_a_rewind_that_abandons_the_first_batch_chooses_where_it_says(
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic(partitions=3, **KEPT)
        produce_at(inline_loader.kafka, name, [0, 1, 2, 30, 31])
        produce_at(inline_loader.kafka, name, [0, 1, 30, 31, 32], first=10, partition=1)
        batch = left_open(inline_loader, name, start=at(20))

        Rewinder(inline_loader)("to-offset", 4, f"{name}:0", abandon=batch)
        assert positions(inline_loader.engine) == {(name, 0): 4, (name, 1): 2, (name, 2): 0}
        inline_loader(name, start=at(20))

        assert ids(inline_loader) == [4, 12, 13, 14]
        verify("loader", sink=SqlTable("target"), engine=inline_loader.engine, kafka_config=inline_loader.config)

    @pytest.mark.parametrize("how", ["group", "time"])
    def test_a_first_offset_beyond_the_end_that_was_asked_for_before_is_no_cut_log(
        self, inline_loader: Loader, topic: TopicFactory, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name, kafka = topic(**KEPT), inline_loader.kafka
        produce_at(kafka, name, [0, 1, 2])
        question: Any = Cluster.committed if how == "group" else Cluster.offsets_for_times
        start = CommittedBy(f"old-{name}") if how == "group" else at(30)

        def arrives_meanwhile(cluster: Cluster, *args: Any) -> Any:
            produce_at(kafka, name, [10, 20, 30, 40], first=3)
            commit_to_kafka(kafka, f"old-{name}", name, {0: 5})
            return question(cluster, *args)

        monkeypatch.setattr(Cluster, question.__name__, arrives_meanwhile)
        inline_loader(name, start=start)

        assert ids(inline_loader) == [5, 6]

    @pytest.mark.broker
    def test_a_commit_within_an_open_transaction_is_kept(
        self, inline_loader: Loader, topic: TopicFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        name, kafka = topic(), inline_loader.kafka
        produce(kafka, name, names(0, 3))
        transactions = Transactions(kafka, name)
        transactions.begin(names(3, 1))
        produce(kafka, name, names(4, 3))
        start = CommittedBy(f"old-{name}")
        commit_to_kafka(kafka, start.group_id, name, {0: 6})

        for told in (
            f"Nothing to load yet for group 'loader'; it begins at {name}[0] 6",
            f"No more records to load for group 'loader' in {name}; later ones are for the next run",
        ):
            caplog.clear()
            with caplog.at_level(logging.INFO):
                assert inline_loader(name, start=start).batches == ()
            assert told in caplog.text
            assert positions(inline_loader.engine) == {(name, 0): 6}
        transactions.end()
        wait_until(lambda: inline_loader(name, start=start).rows == 1, 60, "the end of the transaction")

        assert ids(inline_loader) == [6]
        verify("loader", sink=SqlTable("target"), engine=inline_loader.engine, kafka_config=inline_loader.config)

    @pytest.mark.parametrize(
        ("start", "begun"),
        [("earliest", 0), ("latest", 3), (at(60), 3), (at(1), 1)],
        ids=["empty", "latest", "later", "until"],
    )
    def test_a_first_run_that_loads_nothing_says_where_it_begins(
        self,
        inline_loader: Loader,
        topic: TopicFactory,
        caplog: pytest.LogCaptureFixture,
        start: Start,
        begun: int,
    ) -> None:
        name = topic(**KEPT)
        if start != "earliest":
            produce_at(inline_loader.kafka, name, [0, 1, 2])

        with caplog.at_level(logging.INFO):
            inline_loader(name, start=start, until=at(1))

        assert f"Nothing to load yet for group 'loader'; it begins at {name}[0] {begun}" in caplog.text

    @pytest.mark.parametrize("start", ["yesterday", -1, "1969-12-31T23:59:59"])
    def test_invalid_start_is_refused(self, inline_loader: Loader, topic: TopicFactory, start: Any) -> None:
        with pytest.raises(ConfigurationError, match=f"got start={start!r}"):
            inline_loader(topic(), start=start)
