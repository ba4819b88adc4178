"""What a `SharedPoll` leaves behind."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.lag.shared_poll import SharedPoll
from airflow_kafka_offsets.lag.thresholds import LagWatch
from devstack.process import wait_until

SECONDS = 30.0


@pytest.mark.parametrize("at", ["before the engine is made", "inside a query"])
def test_a_database_that_is_being_read_when_the_last_watcher_leaves_is_left_too(tmp_path: Path, at: str) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'state.db'}")
    connections: Counter[str] = Counter()
    reached, go_on = threading.Event(), threading.Event()

    @sa.event.listens_for(engine, "connect")
    def opened(*_: Any) -> None:
        connections["opened"] += 1

    @sa.event.listens_for(engine, "close")
    def closed(*_: Any) -> None:
        connections["closed"] += 1

    def hold() -> None:
        reached.set()
        assert go_on.wait(SECONDS)

    def open_engine(conn_id: str) -> sa.Engine:
        if at == "before the engine is made":
            hold()
        return engine

    @sa.event.listens_for(engine, "before_cursor_execute")
    def executing(*_: Any) -> None:
        if at == "inside a query":
            hold()

    def no_cluster() -> Any:
        raise AssertionError("not to be asked: the database has not answered")

    async def test() -> None:
        poll = SharedPoll(no_cluster, open_engine, lambda: None, lambda *_: None, lambda *_: None)
        soon = timedelta(seconds=0.01)
        results = poll.results(LagWatch(group_id="loader", conn_id="warehouse", min_lag=1, poll_interval=soon))
        first = asyncio.ensure_future(anext(results))
        assert await asyncio.to_thread(reached.wait, SECONDS)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await results.aclose()

    try:
        asyncio.run(asyncio.wait_for(test(), SECONDS))
    finally:
        go_on.set()
    closing = [one for one in threading.enumerate() if one.name.startswith("kafka-offsets-watch")]
    wait_until(lambda: not any(one.is_alive() for one in closing), SECONDS, "the threads of the watch to end")
    assert connections == {"opened": 1, "closed": 1}
