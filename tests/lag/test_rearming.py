"""When a condition that stays true is worth another event."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.lag.thresholds import Edge


def edge() -> Edge:
    return Edge(timedelta(seconds=60))


def fires(subject: Edge, met: bool | None, now: float = 0, positions: str = "a", busy: bool = False) -> bool:
    return subject.fires(met, positions, busy=busy, now=now)


def test_an_edge_fires_once_when_the_condition_becomes_true() -> None:
    subject = edge()
    assert [fires(subject, met, now) for now, met in enumerate([False, True, True, True])] == [
        False,
        True,
        False,
        False,
    ]


def test_an_edge_fires_at_the_first_poll_if_the_condition_is_true() -> None:
    assert fires(edge(), True)


def test_an_edge_is_armed_again_after_the_condition_was_false() -> None:
    subject = edge()
    assert [fires(subject, met, now) for now, met in enumerate([True, False, True])] == [True, False, True]


def test_an_edge_fires_again_if_positions_moved_and_the_condition_is_still_true() -> None:
    subject = edge()
    assert fires(subject, True, 0, "a")
    assert fires(subject, True, 1, "b")
    assert not fires(subject, True, 2, "b")


def test_an_edge_fires_again_after_the_interval_if_no_position_moved() -> None:
    subject = edge()
    assert fires(subject, True, 0)
    assert not fires(subject, True, 59)
    assert fires(subject, True, 60)
    assert not fires(subject, True, 119)


def test_an_edge_waits_for_a_running_load() -> None:
    subject = edge()
    assert not fires(subject, True, 0, busy=True)
    assert fires(subject, True, 1)
    assert not fires(subject, True, 2, "b", busy=True)
    assert not fires(subject, True, 200, "b", busy=True)
    assert fires(subject, True, 201, "b")


def test_an_unknown_condition_neither_fires_nor_arms_an_edge() -> None:
    subject = edge()
    assert not fires(subject, None)
    assert fires(subject, True, 1)
    assert not fires(subject, None, 2)
    assert not fires(subject, True, 3)


looks = st.lists(st.tuples(st.sampled_from([True, False, None]), st.sampled_from("ab"), st.booleans()), max_size=30)


@given(looks)
def test_each_event_has_a_reason(seen: list[tuple[bool | None, str, bool]]) -> None:
    subject, last = edge(), None
    for number, (met, positions, busy) in enumerate(seen):
        now = 10.0 * number
        fired = fires(subject, met, now, positions, busy)
        if fired:
            assert met
            assert not busy
            if last is not None:
                at, then = last
                since = [one for one, _, _ in seen[at + 1 : number]]
                assert False in since or positions != then or number - at >= 6
            last = number, positions
        elif met and not busy:
            assert last is not None
            assert positions == last[1]
            assert number - last[0] < 6
