"""Values that threads read: a request waits for a while, and a server that does not answer occupies one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from airflow_kafka_offsets.plugin import background
from airflow_kafka_offsets.plugin.background import BackgroundCache, BoundedExecutor, TooBusyError, TooSlowError


def test_one_thread_reads_whoever_looks() -> None:
    end, readings = threading.Event(), []

    def read() -> int:
        readings.append(1)
        end.wait()
        return 7

    value = BackgroundCache(read, 60.0)
    for _ in range(5):
        assert value.look(time.monotonic()).value is None
    end.set()

    assert value.look(time.monotonic() + 30).value == 7
    assert len(readings) == 1


def test_an_error_leaves_the_last_value() -> None:
    answers: Iterator[int | Exception] = iter([7, ValueError("gone")])

    def read() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    value = BackgroundCache(read, 0.0)
    assert value.look(time.monotonic() + 30).error is None
    look = value.look(time.monotonic() + 30)

    assert look.value == 7
    assert isinstance(look.error, ValueError)


def test_a_reading_that_is_late_is_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PATIENCE_SECONDS", 0.0)
    end = threading.Event()
    value = BackgroundCache(end.wait, 60.0)

    assert value.look(time.monotonic() + 3_600).value is None

    end.set()


def test_a_server_that_hangs_is_a_failure_beside_the_last_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PATIENCE_SECONDS", 0.0)
    end, first = threading.Event(), iter([7])
    value = BackgroundCache(lambda: next(first, None) or end.wait(60), 0.0)
    while value.look(time.monotonic()).value is None:
        pass
    value.start()

    assert value.look(time.monotonic()).failure is None
    monkeypatch.setattr(background, "LATE_SECONDS", 0.0)
    look = value.look(time.monotonic())

    assert (look.value, type(look.failure)) == (7, TooSlowError)
    end.set()


def test_work_that_is_too_slow_is_left_alone() -> None:
    end, limited = threading.Event(), BoundedExecutor(1, 1)

    with pytest.raises(TooSlowError) as slow:
        limited.run(end.wait, 0.01)
    with pytest.raises(TooBusyError):
        limited.run(lambda: 1, 0.01)
    assert type(slow.value) is TooSlowError
    end.set()

    assert limited.run(lambda: 2, 30.0) == 2


def test_more_work_than_may_wait_is_refused_at_once() -> None:
    end, limited, found = threading.Event(), BoundedExecutor(1, 2), list[object]()

    def run(number: int) -> None:
        try:
            found.append(limited.run(lambda: end.wait(60) and number, 60.0))
        except TooBusyError:
            found.append("busy")
            end.set()

    # Nobody ends before the fourth of them was refused.
    threads = [threading.Thread(target=run, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert found[0] == "busy"
    assert len(set(found)) == 4


def test_an_error_of_the_work_is_raised() -> None:
    with pytest.raises(TimeoutError, match="of the work"):
        BoundedExecutor(1, 1).run(_fail, 30.0)


def _fail() -> None:
    raise TimeoutError("of the work")
