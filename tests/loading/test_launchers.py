"""Who uses a launcher closes it once, also after an error."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_kafka_offsets import DeadLetters, Json, Limits
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import StagingError
from tests.support.clients import Kafka, produce
from tests.support.inline import Fails, InlineLauncher
from tests.support.loads import Loader, TopicFactory, names
from tests.support.replays import Replayer

pytestmark = pytest.mark.server


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


@pytest.fixture
def orders(inline_loader: Loader, topic: TopicFactory) -> str:
    """Three records, which are loaded in three batches."""
    name = topic()
    produce(inline_loader.kafka, name, names(0, 3))
    inline_loader(name, limits=Limits(max_records=1))
    return name


def test_by_a_load_after_its_batches(inline_loader: Loader, orders: str) -> None:
    assert (len(inline_loader.launcher.jobs), inline_loader.launcher.closed) == (3, 1)


def test_by_a_load_that_failed(inline_loader: Loader, orders: str) -> None:
    launcher = Fails()
    produce(inline_loader.kafka, orders, names(3, 1))
    with pytest.raises(StagingError):
        Loader(inline_loader.kafka, inline_loader.engine, launcher)(orders)
    assert launcher.closed == 1


@pytest.mark.parametrize("fails", [False, True])
def test_by_a_replay(inline_loader: Loader, orders: str, fails: bool) -> None:
    launcher = Fails() if fails else InlineLauncher()
    try:
        Replayer(inline_loader)(orders, {orders: {0: (0, 3)}}, limits=Limits(max_records=1), launcher=launcher)
    except StagingError:
        assert fails
    assert (len(launcher.jobs), launcher.closed) == (0 if fails else 3, 1)


def test_by_a_replay_whose_check_failed_after_a_session_was_opened(inline_loader: Loader, orders: str) -> None:
    class HalfOpen(InlineLauncher):
        def check(self, staging_dir: str | None) -> None:
            raise StagingError("the server refuses a property")

    launcher = HalfOpen()
    with pytest.raises(StagingError, match="refuses a property"):
        Replayer(inline_loader)(orders, {orders: {0: (0, 3)}}, launcher=launcher)
    assert launcher.closed == 1


@pytest.mark.parametrize("transform", [None, "tests.loading.test_transforms.twice"])
def test_by_a_replay_of_dead_letters(inline_loader: Loader, orders: str, transform: str | None) -> None:
    produce(inline_loader.kafka, orders, [b"{"])
    dead: dict[str, Any] = {"on_bad_record": DeadLetters(), "value_format": Json("id BIGINT, name STRING")}
    inline_loader(orders, **dead)
    launcher = Fails()
    try:
        pipeline = inline_loader.pipeline([orders], transform=transform, **dead)
        replay_dead_letters(DeadLetterFilter("loader"), pipeline, engine=inline_loader.engine, launcher=launcher)
    except StagingError:
        assert transform is not None
    assert launcher.closed == 1
