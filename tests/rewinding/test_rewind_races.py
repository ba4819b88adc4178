"""A rewind while a load runs: nobody writes from positions that are no longer there, and nothing is loaded twice for
it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_kafka_offsets import Coordination, Staging
from airflow_kafka_offsets.exceptions import FencedError, OpenBatchError, RewindConflictError
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.loading import plan
from airflow_kafka_offsets.rewinding.execution import RewindResult, abandon_batch
from devstack.process import wait_until
from tests.support.clients import produce
from tests.support.dying_load import DyingLoad, Load
from tests.support.loads import TopicFactory, names, rows
from tests.support.rewinds import TARGET, Rewinder, once

pytestmark = [pytest.mark.server, pytest.mark.broker]

RUN = TaskRun("run-1", "dag", "task", -1, 1)
# Of two threads that start at once.
ROUNDS = 5


@pytest.fixture
def load(rewinder: Rewinder, half: str) -> Load:
    """The load of the other half, for a process of its own."""
    url = rewinder.loader.engine.url.render_as_string(hide_password=False)
    return Load(url, rewinder.loader.kafka.bootstrap_servers, (half,), RUN, {"staging": Staging(slice_offsets=40)})


def slip_in(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, work: Callable[[], object], *, after: bool = False
) -> None:
    """Have work done at a function's door, the first time that somebody comes by."""
    original = getattr(owner, name)
    left = [work]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not after and left:
            left.pop()()
        result = original(*args, **kwargs)
        if after and left:
            left.pop()()
        return result

    monkeypatch.setattr(owner, name, wrapped)


@pytest.mark.parametrize(
    ("owner", "door", "replace"),
    [
        # Whether rows are removed makes no difference to the load: one of its doors has both every day.
        pytest.param(
            plan,
            door,
            replace,
            id=f"{where}-{'replace' if replace else 'add'}",
            marks=[] if replace or door == "record_plan" else [pytest.mark.long],
        )
        for door, where in (
            ("read_generation", "before-it-looks"),
            ("decide_now", "before-it-plans"),
            ("record_plan", "before-the-plan-is-recorded"),
        )
        for replace in (False, True)
    ],
)
def test_a_load_that_has_planned_from_old_positions_plans_anew(
    rewinder: Rewinder, half: str, monkeypatch: pytest.MonkeyPatch, owner: Any, door: str, replace: bool
) -> None:
    slip_in(monkeypatch, owner, door, lambda: rewinder("to-offset", 50, replace=TARGET if replace else None))

    result = rewinder.loader(half)

    assert result.rows == 150
    assert rewinder.times(half) == once((0, 50 if replace else 100), (50, 200))
    assert rewinder.history() == [(1, "load", "committed"), (2, "rewind", "committed"), (3, "load", "committed")]
    rewinder.prove()


def test_a_load_that_has_nothing_to_do_sees_a_rewind(
    rewinder: Rewinder, half: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewinder.loader(half)
    # It has looked, found nothing new, and ends; what is reopened then is the next load's.
    slip_in(monkeypatch, plan, "decide_for_claim", lambda: rewinder("to-offset", 50, replace=TARGET), after=True)

    assert rewinder.loader(half).batches == ()

    rewinder.prove()
    assert rewinder.loader(half).rows == 150
    assert rewinder.times(half) == once((0, 200))
    rewinder.prove()


@pytest.mark.parametrize(
    "point", ["after the ranges are stored", "while a slice is read", "after it is marked as staged"]
)
def test_while_its_batch_is_open_positions_stay(rewinder: Rewinder, half: str, load: Load, point: str) -> None:
    with DyingLoad(load, point) as running:
        running.reach(point)
        preview = rewinder.preview("to-offset", 50)
        assert preview.open_batch == 2
        with pytest.raises(OpenBatchError, match="has the open batch 2"):
            rewinder.execute(preview, replace=TARGET)
        assert finished(running).rows == 100

    with pytest.raises(RewindConflictError, match="position 100 in the preview, position 200 now"):
        rewinder.execute(preview, replace=TARGET)
    assert rewinder.times(half) == once((0, 200))
    rewinder.prove()


@pytest.mark.parametrize(
    ("point", "alone"),
    [
        # What fences the load is the same with a rewind as without: one point has both every day.
        pytest.param(
            point,
            alone,
            id=f"{point}-{'alone' if alone else 'with-a-rewind'}",
            marks=[pytest.mark.long] if alone and point != "while a slice is read" else [],
        )
        for point in (
            "after the ranges are stored",
            "while a slice is read",
            "after the manifest",
            "after it is marked as staged",
        )
        for alone in (False, True)
    ],
)
def test_a_load_whose_batch_is_abandoned_writes_nothing(
    rewinder: Rewinder, half: str, load: Load, point: str, alone: bool
) -> None:
    with DyingLoad(load, point) as running:
        running.reach(point)
        if alone:
            abandon_batch("loader", 2, engine=rewinder.loader.engine)
        else:
            rewinder("to-offset", 50, replace=TARGET, abandon=2)
        told = finished(running)

    assert isinstance(told, FencedError), told
    assert "Batch 2 of group 'loader' was abandoned while this attempt" in str(told)
    assert "abandoned by " in str(told)
    position = 100 if alone else 50
    assert rewinder.positions(half) == {0: position}
    assert rewinder.times(half) == once((0, position))
    rewinder.prove()
    rewinder.loader(half)
    assert rewinder.times(half) == once((0, 200))
    rewinder.prove()


def test_the_next_load_need_not_wait_for_the_lease_of_one_that_was_abandoned(
    rewinder: Rewinder, half: str, load: Load
) -> None:
    with DyingLoad(load, "while a slice is read") as running:
        running.reach("while a slice is read")
        rewinder("to-offset", 50, replace=TARGET, abandon=2)

        # The other one stands where it stood, and holds nothing any more.
        rewinder.loader(half, coordination=Coordination(on_busy="fail"))

        assert isinstance(finished(running), FencedError)
    assert rewinder.times(half) == once((0, 200))
    rewinder.prove()


def test_a_rewind_waits_for_a_commit_under_way_and_then_finds_a_conflict(
    rewinder: Rewinder, half: str, load: Load
) -> None:
    with DyingLoad(load, "inside the transaction") as running, ThreadPoolExecutor(1) as beside:
        running.reach("inside the transaction")
        preview = rewinder.preview("to-offset", 50)
        rewound = beside.submit(rewinder.execute, preview, replace=TARGET, abandon=2)
        if rewinder.loader.engine.dialect.name == "postgresql":
            wait_until(lambda: waits_for_a_lock(rewinder), 30, "the rewind to wait for the load's transaction")
        assert not rewound.done()
        assert finished(running).rows == 100
        error = rewound.exception(timeout=60)

    assert isinstance(error, RewindConflictError), error
    assert rewinder.times(half) == once((0, 200))
    rewinder.prove()


def test_one_of_two_concurrent_rewinds_finds_a_conflict(rewinder: Rewinder, half: str) -> None:
    for _ in range(ROUNDS):
        previews = [rewinder.preview("to-offset", offset) for offset in (30, 60)]
        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(rewinder.execute, preview, replace=TARGET) for preview in previews]
            told = [one.exception(timeout=60) or one.result() for one in done]

        assert sorted(type(one).__name__ for one in told) == [RewindConflictError.__name__, RewindResult.__name__], told
        winner = 30 if isinstance(told[0], RewindResult) else 60
        assert rewinder.positions(half) == {0: winner}
        assert rewinder.times(half) == once((0, winner))
        rewinder.loader(half)
    assert rewinder.times(half) == once((0, 200))
    rewinder.prove()


def test_two_tries_of_a_task_rewind_once(rewinder: Rewinder, half: str) -> None:
    preview = rewinder.preview("shift-by", -10)
    with ThreadPoolExecutor(2) as pool:
        tries = [
            pool.submit(rewinder.execute, preview, replace=TARGET, run=TaskRun("run", "dag", "rewind", -1, number))
            for number in (1, 2)
        ]
        done = {one.result(timeout=60) for one in tries}

    assert done == {RewindResult(2, 1, 10, 0)}
    assert rewinder.positions(half) == {0: 90}
    rewinder.prove()


def test_one_of_two_concurrent_rewinds_of_a_new_group_finds_a_conflict(rewinder: Rewinder, topic: TopicFactory) -> None:
    name = topic()
    produce(rewinder.loader.kafka, name, names(0, 10))
    for number in range(ROUNDS):
        group = Rewinder(rewinder.loader, f"new-{number}")
        previews = [group.preview("to-offset", offset, name, new_group=True) for offset in (3, 6)]
        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(group.execute, preview) for preview in previews]
            told = [one.exception(timeout=60) or one.result() for one in done]

        assert sorted(type(one).__name__ for one in told) == [RewindConflictError.__name__, RewindResult.__name__], told
        assert group.positions(name) == {0: 3 if isinstance(told[0], RewindResult) else 6}


def finished(running: DyingLoad) -> Any:
    """Let it go on to its end.

    :return: its result, or the error that ended it
    """
    running.go_on()
    while isinstance(told := running.result(), str):  # it comes by again
        running.go_on()
    return told


def waits_for_a_lock(rewinder: Rewinder) -> bool:
    query = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return bool(rows(rewinder.loader.engine, query))
