"""A replay with `replace` of offsets whose records compaction has removed in part: no output is lost silently."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_kafka_offsets.exceptions import DataLossError
from airflow_kafka_offsets.verification.verify import verify
from tests.support import fixtures
from tests.support.memory_clients import MemoryConsumer
from tests.support.replays import Replayer, offsets
from tests.support.rewinds import TARGET, Rewinder

engine = fixtures.sqlite_engine

Compact = Callable[..., None]


@pytest.fixture
def compact(monkeypatch: pytest.MonkeyPatch) -> Compact:
    """Remove the records at some offsets of each partition."""

    def compact(*gone: int) -> None:
        take = MemoryConsumer._take
        monkeypatch.setattr(
            MemoryConsumer,
            "_take",
            lambda self, count: [message for message in take(self, count) if message.offset() not in gone],
        )

    return compact


@pytest.mark.parametrize("end", [20, 5])
def test_output_of_records_that_are_gone_is_removed_only_if_the_user_says_so(
    replayer: Replayer, orders: str, compact: Compact, end: int
) -> None:
    compact(0, 1, 3)

    with pytest.raises(DataLossError, match=rf"at least {end} records were read before, {end - 3} now.* Nothing was"):
        replayer(orders, {orders: {0: (0, end)}}, sink=TARGET, replace=True)
    assert offsets(replayer.loader)[0] == list(range(20))

    assert replayer(orders, {orders: {0: (0, end)}}, sink=TARGET, replace=True, on_data_loss="skip").rows == end - 3
    assert offsets(replayer.loader)[0] == [2, *range(4, 20)]
    # Of these offsets no output is left that could be lost.
    assert replayer(orders, {orders: {0: (0, end)}}, sink=TARGET, replace=True).rows == end - 3
    verify("loader", sink=TARGET, engine=replayer.loader.engine, kafka_config=replayer.loader.config)


def test_a_part_without_a_removed_record_is_replaced(replayer: Replayer, orders: str, compact: Compact) -> None:
    compact(0, 1, 3)

    assert replayer(orders, {orders: {0: (4, 20), 1: (2, 3)}}, sink=TARGET, replace=True).rows == 17


@pytest.mark.parametrize("replace", [True, False], ids=["replaced", "loaded-twice"])
def test_records_that_were_loaded_again_count_once(replayer: Replayer, orders: str, *, replace: bool) -> None:
    Rewinder(replayer.loader)("to-offset", 5, replace=TARGET if replace else None)
    replayer.loader(orders)

    assert replayer(orders, {orders: {0: (0, 20)}}, sink=TARGET, replace=True).rows == 20
    assert offsets(replayer.loader)[0] == list(range(20))


def test_a_rewind_has_removed_the_output_already(replayer: Replayer, orders: str, compact: Compact) -> None:
    compact(0, 1, 3)
    Rewinder(replayer.loader)("to-earliest", replace=TARGET)
    replayer.loader(orders)

    assert replayer(orders, {orders: {0: (0, 20)}}, sink=TARGET, replace=True).rows == 17


def test_a_replay_elsewhere_tells_nothing_of_the_output(replayer: Replayer, orders: str, compact: Compact) -> None:
    compact(0, 1, 3)
    replayer(orders, {orders: {0: (0, 20)}})

    with pytest.raises(DataLossError, match="at least 20 records were read before, 17 now"):
        replayer(orders, {orders: {0: (0, 20)}}, sink=TARGET, replace=True)
