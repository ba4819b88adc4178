"""While a batch is committed, the one after it is staged: at most one ahead, and committed in order, whatever fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Limits, Staging
from airflow_kafka_offsets.exceptions import (
    DatabaseUnavailableError,
    DataLossError,
    FencedError,
    KafkaUnavailableError,
    StagingError,
    TopicRecreatedError,
)
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.support.clients import Kafka, produce
from tests.support.inline import Fails
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, names, positions, rows
from tests.support.prefetch import TIMEOUT, Steps, around_commits, planned_ahead, states

RUN = TaskRun("run-1", "dag", "task", -1, 1)


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


@pytest.fixture
def loader(kafka: Kafka, tmp_path: Path) -> Iterator[Loader]:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/warehouse.db", hide_parameters=True)
    yield Loader(kafka, engine, Steps())
    engine.dispose()


@pytest.fixture
def orders(kafka: Kafka, topic: TopicFactory) -> str:
    """Thirty records in two partitions."""
    name = topic(partitions=2)
    produce(kafka, name, names(0, 20), 0)
    produce(kafka, name, names(20, 10), 1)
    return name


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"staging": Staging(dir=str(tmp_path / "staging")), "run": RUN}


def finish(loader: Loader, orders: str, options: dict[str, Any]) -> None:
    """Load again without a fault; then everything is as if nothing had happened."""
    Loader(loader.kafka, loader.engine, Steps())(orders, **options)
    assert positions(loader.engine) == {(orders, 0): 20, (orders, 1): 10}
    assert_exactly_once(loader.engine)
    assert set(states(loader.engine)) <= {"committed", "abandoned"}
    assert list(Path(options["staging"].dir).iterdir()) == [], "staged files are left behind"


@pytest.mark.server
def test_a_batch_is_staged_while_the_one_before_it_is_committed(
    inline_loader: Loader, orders: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, committed = threading.Event(), threading.Event()
    seen: list[list[str]] = []

    def stage(number: int) -> None:
        if number == 2:
            staging.set()
            assert committed.wait(TIMEOUT)

    def before(batch_id: int) -> None:
        assert staging.wait(TIMEOUT)
        seen.append(states(inline_loader.engine))

    inline_loader.launcher = launcher = Steps(stage)
    around_commits(monkeypatch, before, lambda batch_id: committed.set())
    result = inline_loader(orders, limits=Limits(max_records=10), **options)

    assert seen == [
        ["staged", "prefetched"],
        ["committed", "staged", "prefetched"],
        ["committed", "committed", "staged"],
    ]
    assert result.batches == tuple(launcher.batches)
    assert (launcher.ahead, launcher.cancelled.is_set()) == ([False, True, True], False)
    assert planned_ahead(inline_loader.engine) == 2
    finish(inline_loader, orders, options)


class TestTheCommitFails:
    """What is planned ahead stays so, and the next attempt commits both in order."""

    @pytest.fixture
    def failing(self, monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
        """What the next commits raise, when the batch after theirs is being staged."""
        errors: list[Exception] = [DatabaseUnavailableError("no room")]

        def before(batch_id: int) -> None:
            if errors:
                assert self.staging.wait(TIMEOUT)
                raise errors.pop()

        self.staging = threading.Event()
        around_commits(monkeypatch, before)
        return errors

    def test_the_job_is_cancelled(
        self, loader: Loader, orders: str, options: dict[str, Any], failing: list[Exception]
    ) -> None:
        def stage(number: int) -> None:
            if number == 2:
                self.staging.set()
                assert loader.launcher.cancelled.wait(TIMEOUT)
                raise RuntimeError("the job was cancelled")

        loader.launcher = Steps(stage)
        with pytest.raises(DatabaseUnavailableError, match="no room"):
            loader(orders, limits=Limits(max_records=10), **options)

        assert states(loader.engine) == ["staged", "prefetched"]
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]
        assert len(list(Path(options["staging"].dir).iterdir())) == 2
        # A load of another group that stages in the same place leaves both directories.
        loader.launcher = Steps()
        loader(orders, group_id="another", sink=SqlTable("another"), staging=Staging(dir=options["staging"].dir))
        assert len(list(Path(options["staging"].dir).iterdir())) == 2

    def test_the_job_is_cancelled_again_where_the_wait_is_interrupted(
        self, loader: Loader, orders: str, options: dict[str, Any], failing: list[Exception]
    ) -> None:
        """As by a second interrupt from the keyboard."""
        cancelled: list[int] = []
        stopped = threading.Event()

        class Interrupted(Steps):
            def cancel(self) -> None:
                cancelled.append(1)
                if len(cancelled) == 1:
                    raise KeyboardInterrupt
                stopped.set()

        def stage(number: int) -> None:
            if number == 2:
                self.staging.set()
                assert stopped.wait(TIMEOUT)

        loader.launcher = Interrupted(stage)
        with pytest.raises(KeyboardInterrupt):
            loader(orders, limits=Limits(max_records=10), **options)

        assert stopped.is_set()
        assert states(loader.engine) == ["staged", "prefetched"]
        finish(loader, orders, options)

    def test_the_next_attempt_finishes_both_in_order(
        self, loader: Loader, orders: str, options: dict[str, Any], failing: list[Exception]
    ) -> None:
        loader.launcher = Steps(lambda number: self.staging.set() if number == 2 else None)
        with pytest.raises(DatabaseUnavailableError):
            loader(orders, limits=Limits(max_records=10), **options)
        planned = rows(
            loader.engine, "SELECT batch_id, partition, start_offset, end_offset FROM offset_ranges ORDER BY 1, 2"
        )

        again = Loader(loader.kafka, loader.engine, Steps())
        result = again(orders, **options)

        # Both are committed from their files, with the ranges that were planned.
        assert (result.batches, again.launcher.batches) == ((1, 2, 3), [3])
        kept = rows(
            loader.engine, "SELECT batch_id, partition, start_offset, end_offset FROM offset_ranges ORDER BY 1, 2"
        )
        assert kept[: len(planned)] == planned
        finish(loader, orders, options)

    def test_a_batch_that_somebody_abandons_takes_it_along(
        self, loader: Loader, orders: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def before(batch_id: int) -> None:
            if batch_id == 1:
                abandon_batch("loader", 1, engine=loader.engine)

        around_commits(monkeypatch, before)
        with pytest.raises(FencedError, match="was abandoned while this attempt"):
            loader(orders, limits=Limits(max_records=10), **options)
        assert loader.launcher.ahead == [False, True]
        # Where it began is in the history, too.
        assert states(loader.engine) == ["abandoned", "abandoned", "committed"]
        finish(loader, orders, options)

    def test_files_that_are_damaged_are_staged_again_alone(
        self, loader: Loader, orders: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        damaged: list[Path] = []

        def before(batch_id: int) -> None:
            if not damaged:
                (manifest,) = Path(options["staging"].dir).glob("batch-1-*/manifest.json")
                damaged.extend(manifest.parent.glob("part-*"))
                for path in damaged:
                    path.unlink()

        around_commits(monkeypatch, before)
        loader(orders, limits=Limits(max_records=10), **options)

        assert loader.launcher.batches == [1, 2, 1, 3]
        assert loader.launcher.ahead == [False, True, False, True]
        finish(loader, orders, options)


class TestTheStagingFails:
    def test_the_batch_before_it_is_committed_first(self, loader: Loader, orders: str, options: dict[str, Any]) -> None:
        def stage(number: int) -> None:
            if number == 2:
                raise RuntimeError("no executor left")

        loader.launcher = Steps(stage)
        with pytest.raises(StagingError, match="no executor left"):
            loader(orders, limits=Limits(max_records=10), **options)

        assert states(loader.engine) == ["committed", "planned"]
        finish(loader, orders, options)

    def test_before_spark_starts(
        self, loader: Loader, orders: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stage = import_module("airflow_kafka_offsets.loading.stage")
        original = stage.create_directory

        def full(attempt: str, staging_dir: str | None) -> Any:
            if attempt.startswith("batch-2-"):
                raise OSError(28, "no space left")
            return original(attempt, staging_dir)

        with monkeypatch.context() as patch:
            patch.setattr(stage, "create_directory", full)
            with pytest.raises(OSError, match="no space left"):
                loader(orders, limits=Limits(max_records=10), **options)

        assert states(loader.engine) == ["committed", "planned"]
        finish(loader, orders, options)

    @pytest.mark.parametrize("policy", ["skip", "fail"])
    def test_records_that_expired_are_met_when_it_is_open(
        self, loader: Loader, kafka: Any, orders: str, options: dict[str, Any], policy: str
    ) -> None:
        def stage(number: int) -> None:
            if number == 2:
                kafka.delete_records(orders, 0, 12)
                kafka.delete_records(orders, 1, 10)

        loader.launcher = Steps(stage)
        if policy == "fail":
            with pytest.raises(DataLossError):
                loader(orders, limits=Limits(max_records=10), **options)
            assert states(loader.engine) == ["committed", "planned"]
            return
        loader(orders, limits=Limits(max_records=10), on_data_loss="skip", **options)

        assert states(loader.engine)[:3] == ["committed", "abandoned", "committed"]
        assert positions(loader.engine) == {(orders, 0): 20, (orders, 1): 10}
        assert list(Path(options["staging"].dir).iterdir()) == []

    def test_a_topic_that_was_recreated_is_found_when_it_is_open(
        self, loader: Loader, kafka: Any, orders: str, options: dict[str, Any]
    ) -> None:
        def stage(number: int) -> None:
            if number == 2:
                kafka.delete(orders)
                kafka.create(orders, 2, {})
                produce(kafka, orders, names(0, 20), 0)
                produce(kafka, orders, names(20, 10), 1)

        loader.launcher = Steps(stage)
        with pytest.raises(TopicRecreatedError):
            loader(orders, limits=Limits(max_records=10), **options)
        assert states(loader.engine) == ["committed", "planned"]


class TestNothingIsPlannedAhead:
    """Where the next batch depends on what the commit does, it is planned after it."""

    def test_last_batch_prefetches_nothing(self, loader: Loader, orders: str, options: dict[str, Any]) -> None:
        loader(orders, **options)
        assert (loader.launcher.ahead, states(loader.engine)) == ([False], ["committed"])

    def test_new_partition_is_not_prefetched(
        self, loader: Loader, kafka: Any, orders: str, options: dict[str, Any]
    ) -> None:
        with pytest.raises(StagingError):
            Loader(kafka, loader.engine, Fails())(orders, limits=Limits(max_records=10), **options)
        kafka.add_partitions(orders, 3)
        produce(kafka, orders, names(30, 5), 2)

        # Another run finishes the batch, and captures its targets only now.
        loader(orders, limits=Limits(max_records=10), **options | {"run": replace(RUN, run_id="run-2")})

        assert loader.launcher.ahead[:3] == [False, False, True]
        assert positions(loader.engine) == {(orders, 0): 20, (orders, 1): 10, (orders, 2): 5}
        assert_exactly_once(loader.engine)

    def test_when_planning_fails(
        self, loader: Loader, orders: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ahead = import_module("airflow_kafka_offsets.loading.prefetch")
        original, errors = ahead.plan_after, [KafkaUnavailableError("no broker answers")]

        def plan_after(*args: Any) -> Any:
            if errors:
                raise errors.pop()
            return original(*args)

        monkeypatch.setattr(ahead, "plan_after", plan_after)
        loader(orders, limits=Limits(max_records=10), **options)

        assert loader.launcher.ahead == [False, False, True]
        finish(loader, orders, options)

    def test_when_the_time_is_used_up(self, loader: Loader, orders: str, options: dict[str, Any]) -> None:
        result = loader(orders, limits=Limits(max_records=10, time_budget=timedelta(microseconds=1)), **options)
        assert (loader.launcher.ahead, result.complete) == ([False], False)
        assert states(loader.engine) == ["committed"]


def test_prefetched_batch_has_the_size_that_the_first_one_measured(
    loader: Loader, orders: str, options: dict[str, Any]
) -> None:
    # Ten records that nobody has measured, then all others, which are small.
    loader(orders, limits=Limits(max_bytes=10 * 1024), **options)
    assert loader.launcher.ahead == [False, True]
    finish(loader, orders, options)


def test_prefetched_batch_is_loaded_when_the_time_is_used_up(
    loader: Loader, orders: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    used = [0.0]
    clock = SimpleNamespace(monotonic=lambda: used[0], sleep=time.sleep)
    monkeypatch.setattr(import_module("airflow_kafka_offsets.loading.load"), "time", clock)

    def before(batch_id: int) -> None:
        used[0] = 100.0

    around_commits(monkeypatch, before)
    result = loader(orders, limits=Limits(max_records=10, time_budget=timedelta(seconds=60)), **options)

    assert (result.batches, result.complete) == ((1, 2), False)
    assert states(loader.engine) == ["committed", "committed"]
