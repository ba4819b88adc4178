"""A replay that is killed, or frozen, or runs beside a load: its records are there once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_offsets import Coordination, Staging
from airflow_kafka_offsets.exceptions import (
    FencedError,
    GroupBusyError,
)
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.support.clients import produce
from tests.support.dying_load import REPLAY_POINTS, DyingLoad, Load, Replay
from tests.support.loads import Loader, names, positions, rows
from tests.support.replays import RUN, group_row, offsets, proved, url

pytestmark = pytest.mark.server

WAYS = pytest.mark.parametrize(
    ("table", "replacing"), [("elsewhere", False), ("target", True)], ids=["append", "replace"]
)

DAILY_WHERE_ROWS_ARE_REPLACED = {"inside the transaction of a replay", "after COMMIT"}
"""Points at which a replay that replaces rows is killed every day; one that appends is killed at all of them, and `make
soak` has them all for both.
"""


def a_replay(loader: Loader, topic: str, tmp_path: Path, table: str, replacing: bool) -> Replay:
    return Replay(
        url(loader),
        loader.kafka.bootstrap_servers,
        (topic,),
        RUN,
        {"sink": SqlTable(table), "staging": Staging(dir=str(tmp_path / "staging"), slice_offsets=8)},
        {topic: {0: (2, 18), 1: (0, 10)}},
        replacing,
    )


def assert_replayed_once(loader: Loader, replacing: bool) -> None:
    if not replacing:
        assert offsets(loader, "elsewhere") == {0: list(range(2, 18)), 1: list(range(10))}
    assert offsets(loader) == {0: list(range(20)), 1: list(range(20))}
    assert rows(loader.engine, "SELECT state, count(*) FROM offset_batches WHERE kind = 'replay' GROUP BY state") == [
        ("committed", 1)
    ]
    proved(loader)


@pytest.mark.parametrize(
    ("point", "table", "replacing"),
    [
        pytest.param(
            point,
            "target" if replacing else "elsewhere",
            replacing,
            id=f"{point}-{'replace' if replacing else 'append'}",
            marks=[pytest.mark.long] if replacing and point not in DAILY_WHERE_ROWS_ARE_REPLACED else [],
        )
        for point in sorted(REPLAY_POINTS)
        for replacing in (False, True)
    ],
)
@pytest.mark.broker
def test_killed_at_any_point_and_tried_again(
    inline_loader: Loader, orders: str, tmp_path: Path, point: str, table: str, replacing: bool
) -> None:
    doomed = a_replay(inline_loader, orders, tmp_path, table, replacing)
    with DyingLoad(doomed, point) as process:
        process.reach(point)
        process.kill()

    with DyingLoad(replace(doomed, run=replace(RUN, try_number=2))) as process:
        result = process.result()

    assert isinstance(result, LoadResult), result
    assert (result.records, result.rows) == (26, 26)
    assert_replayed_once(inline_loader, replacing)


@pytest.mark.long
@WAYS
@pytest.mark.parametrize("point", sorted(REPLAY_POINTS.keys() - {"inside the transaction of a replay"}))
@pytest.mark.broker
def test_a_try_that_wakes_after_a_later_one_changes_nothing(
    inline_loader: Loader, orders: str, tmp_path: Path, point: str, table: str, replacing: bool
) -> None:
    first = a_replay(inline_loader, orders, tmp_path, table, replacing)
    with DyingLoad(first, point) as sleeper:
        sleeper.reach(point)
        with DyingLoad(replace(first, run=replace(RUN, try_number=2))) as second:
            done = second.result()
        assert isinstance(done, LoadResult), done
        sleeper.go_on()
        told = sleeper.result()

    overtaken = point not in ("before planning a replay", "after COMMIT", "before clean-up", "during clean-up")
    assert isinstance(told, FencedError if overtaken else LoadResult), told
    assert_replayed_once(inline_loader, replacing)


# What is replayed into the group's own table is what could get in the way of the load.
@pytest.mark.parametrize(
    ("table", "replacing"),
    [pytest.param("elsewhere", False, id="append", marks=pytest.mark.long), pytest.param("target", True, id="replace")],
)
@pytest.mark.broker
def test_beside_a_load_that_is_at_work(
    inline_loader: Loader, orders: str, tmp_path: Path, table: str, replacing: bool
) -> None:
    produce(inline_loader.kafka, orders, names(500, 5), 0)
    load = Load(url(inline_loader), inline_loader.kafka.bootstrap_servers, (orders,), TaskRun("load", "dag", "load"))
    with DyingLoad(load, "after the manifest") as loading:
        loading.reach("after the manifest")
        before = group_row(inline_loader)
        with DyingLoad(a_replay(inline_loader, orders, tmp_path, table, replacing)) as process:
            assert isinstance(process.result(), LoadResult)
        assert group_row(inline_loader) == before
        assert positions(inline_loader.engine) == {(orders, 0): 20, (orders, 1): 20}
        loading.go_on()
        result = loading.result()

    assert isinstance(result, LoadResult), result
    assert positions(inline_loader.engine) == {(orders, 0): 25, (orders, 1): 20}
    assert offsets(inline_loader) == {0: list(range(25)), 1: list(range(20))}
    proved(inline_loader)


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
@WAYS
@pytest.mark.broker
def test_only_a_commit_into_the_groups_table_keeps_its_loads_out(
    inline_loader: Loader, orders: str, tmp_path: Path, table: str, replacing: bool
) -> None:
    point = "inside the transaction of a replay"
    produce(inline_loader.kafka, orders, names(500, 5), 0)
    with DyingLoad(a_replay(inline_loader, orders, tmp_path, table, replacing), point) as process:
        process.reach(point)
        if replacing:
            with pytest.raises(GroupBusyError):
                inline_loader(orders, coordination=Coordination(on_busy="fail"))
        else:
            assert inline_loader(orders, coordination=Coordination(on_busy="fail")).rows == 5
        process.go_on()
        assert isinstance(process.result(), LoadResult)

    inline_loader(orders)
    assert offsets(inline_loader) == {0: list(range(25)), 1: list(range(20))}
    proved(inline_loader)
