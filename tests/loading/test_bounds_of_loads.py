"""How far a load goes: up to an instant, and in batches of limited size. The cases are those of `docs/semantics.md`."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.loading.context import Commit
from tests.support.clients import Kafka, Transactions, produce
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, names, positions, rows
from tests.support.openings import KEPT, at, ids, one_record_transactions, produce_at

pytestmark = pytest.mark.server


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


class TestUntil:
    def test_a_run_loads_up_to_the_end_of_its_interval(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic(partitions=2, **KEPT)
        produce_at(inline_loader.kafka, name, [0, 20, 40, 60, 80])
        produce_at(inline_loader.kafka, name, [10, 70], first=10, partition=1)

        assert inline_loader(name, until=at(60)).rows == 4
        assert ids(inline_loader) == [0, 1, 2, 10]
        assert positions(inline_loader.engine) == {(name, 0): 3, (name, 1): 1}
        assert inline_loader(name, until=at(60)).batches == ()

        inline_loader(name, until=at(120))
        assert_exactly_once(inline_loader.engine)
        assert ids(inline_loader) == [0, 1, 2, 3, 4, 10, 11]

    @pytest.mark.broker
    def test_records_that_arrive_late_are_loaded_by_the_next_run(
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic(**KEPT)
        # The records at 59, 30 and 10 arrive after the first of the next hour.
        produce_at(inline_loader.kafka, name, [50, 61, 59, 62, 30, 76, 10])

        inline_loader(name, until=at(60))
        assert ids(inline_loader) == [0]
        assert positions(inline_loader.engine) == {(name, 0): 1}

        produce_at(inline_loader.kafka, name, [121, 80], first=7)
        inline_loader(name, until=at(120))
        assert ids(inline_loader) == [0, 1, 2, 3, 4, 5, 6]

        inline_loader(name)
        assert ids(inline_loader) == list(range(9))
        assert rows(inline_loader.engine, "SELECT count(*) FROM target") == [(9,)]

    @pytest.mark.broker
    def test_a_marker_does_not_end_it(self, inline_loader: Loader, topic: TopicFactory) -> None:  # T02
        name = topic(**KEPT)
        one_record_transactions(inline_loader.kafka, name, range(10))

        loaded = [(inline_loader(name, until=at(minutes)).rows, ids(inline_loader)[-1]) for minutes in (5, 6, 20)]

        assert loaded == [(5, 4), (1, 5), (4, 9)]
        assert positions(inline_loader.engine) == {(name, 0): 20}

    def test_unread_records_are_loaded_whatever_was_read_before(
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic(**KEPT)
        produce_at(inline_loader.kafka, name, [0, 90])
        inline_loader(name)
        # These arrive late: one of them is before the instant, and the record at 90 is loaded.
        produce_at(inline_loader.kafka, name, [10, 70, 20], first=2)

        assert inline_loader(name, until=at(60)).rows == 1
        assert ids(inline_loader) == [0, 1, 2]
        assert inline_loader(name, until=at(60)).batches == ()

    def test_a_retry_keeps_the_ends_of_the_first_try(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name, run = topic(**KEPT), TaskRun("run", "dag", "task", -1, 1)
        produce_at(inline_loader.kafka, name, [0, 61, 1])
        options: dict[str, Any] = {"until": at(60), "run": run}
        inline_loader(name, **options)
        produce_at(inline_loader.kafka, name, [2], first=3)

        assert inline_loader(name, **options).batches == ()

    @pytest.mark.broker
    def test_open_transactions_bound_it_too(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        kafka = inline_loader.kafka
        produce(kafka, name, names(0, 2))
        transactions = Transactions(kafka, name)
        transactions.begin(names(2, 1))
        produce(kafka, name, names(3, 1))

        inline_loader(name, until=datetime.now(UTC) + timedelta(hours=1))
        assert ids(inline_loader) == [0, 1]
        transactions.end()


class TestCaps:
    def test_bytes_are_estimated_from_the_batches_before(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        value = json.dumps({"id": 1, "name": "x" * 980}).encode()
        produce(inline_loader.kafka, name, [value] * 10)
        inline_loader(name)
        assert rows(inline_loader.engine, "SELECT bytes FROM offset_ranges") == [(10 * len(value),)]
        produce(inline_loader.kafka, name, [value] * 60)

        inline_loader(name, limits=Limits(max_bytes=20 * len(value)))

        assert [len(job.slices) and job.offsets for job in inline_loader.launcher.jobs] == [10, 20, 20, 20]
        assert_exactly_once(inline_loader.engine)

    @pytest.mark.parametrize("dies", [False, True])
    def test_a_backlog_is_loaded_in_batches_without_limits(
        self,
        inline_loader: Loader,
        topic: TopicFactory,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
        dies: bool,
    ) -> None:
        caplog.set_level("INFO")
        monkeypatch.setattr("airflow_kafka_offsets.core.options.MOST_RECORDS", 10)
        monkeypatch.setattr("airflow_kafka_offsets.core.options.MOST_OF_PARTITION", 1)
        name, run = topic(partitions=2), TaskRun("run", "dag", "task", -1, 1)
        produce(inline_loader.kafka, name, names(0, 30), 0)
        produce(inline_loader.kafka, name, names(30, 5), 1)

        def kill(_: Commit) -> None:
            if dies:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt) if dies else nullcontext():
            inline_loader(name, run=run, on_commit=kill)
        assert "25 offsets remain for later batches. Without Limits, a batch into target has at most 10" in caplog.text
        # The ends are those of the first try.
        produce(inline_loader.kafka, name, names(35, 20), 1)
        result = inline_loader(name, run=replace(run, try_number=2))

        assert (len(result.batches), result.rows) == ((3, 25) if dies else (0, 0))
        assert positions(inline_loader.engine) == {(name, 0): 30, (name, 1): 5}
        assert rows(inline_loader.engine, "SELECT max(records) FROM offset_batches") == [(10,)]
        assert_exactly_once(inline_loader.engine)

    def test_a_time_budget_ends_the_load_at_a_batchs_edge(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        produce(inline_loader.kafka, name, names(0, 30))

        first = inline_loader(name, limits=Limits(max_records=10, time_budget=timedelta(microseconds=1)))
        assert (len(first.batches), first.rows, first.complete) == (1, 10, False)
        second = inline_loader(name, limits=Limits(max_records=20, time_budget=timedelta(microseconds=1)))
        assert (len(second.batches), second.rows, second.complete) == (1, 20, True)
        assert_exactly_once(inline_loader.engine)
