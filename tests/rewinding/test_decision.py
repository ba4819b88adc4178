"""Where a rewind moves positions to, by the rules and cases of docs/semantics.md."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from airflow_kafka_offsets.core.offsets import PartitionLog, Position, Scope, TopicPartition, partitions_in
from airflow_kafka_offsets.exceptions import NoPositionError, TopicRecreatedError, UnknownTopicError
from airflow_kafka_offsets.rewinding.preview import PartitionRewind, decide
from airflow_kafka_offsets.rewinding.scenarios import Scenario, read_offsets, write_offsets

ID, OTHER_ID = "vVZ4aDWLQP2NkY0pxyHJYA", "Xw-aDWLQP2NkY0pxyHJYBQ"


T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


Found = Mapping[TopicPartition, Position | None]


def log(beginning: int, end: int, topic_id: str | None = ID) -> PartitionLog:
    return PartitionLog(beginning, end, topic_id, 7)


def at(offset: int, topic_id: str | None = ID) -> Position:
    return Position(offset, topic_id, 3)


def one(
    name: str,
    value: object = None,
    *,
    stored: Position | None = None,
    of: PartitionLog | None = None,
    found: Found | None = None,
) -> PartitionRewind:
    """What a scenario does to one partition."""
    positions = {T0: stored} if stored is not None else {}
    (decided,) = decide(Scenario.of(name, value), [T0], positions, {T0: of} if of is not None else {}, found or {})
    return decided


def new_offset(decided: PartitionRewind) -> int:
    assert decided.new is not None
    return decided.new.offset


# --- the cases ---


@pytest.mark.parametrize(
    ("name", "value", "stored", "found", "expected"),
    [
        ("shift-by", -10, at(90), None, (80, 3)),
        ("shift-by", 0, at(90), None, (90, 3)),
        ("shift-by", 5, at(90), None, (95, 7)),
        ("undo", None, at(50), at(90), (90, 3)),
        ("to-batch", 4, at(50), at(90), (90, 3)),
        ("to-group", "other", None, at(90), (90, 3)),
        ("to-group", "other", None, at(150), (100, 3)),
        ("to-group", "other", None, at(5), (20, 7)),
        ("to-group", "other", None, Position(90, ID), (90, 7)),
        ("to-earliest", None, at(90), None, (20, 7)),
        ("to-offset", 60, at(90), None, (60, 7)),
        # Who names the offset accepts the log; a file, which may be an export, does not.
        ("to-offset", 90, at(90), None, (90, 7)),
        ("from-file", {T0: 90}, at(90), Position(90), (90, 3)),
        ("to-latest", None, at(100), None, (100, 3)),
        ("to-latest", None, Position(100, ID, 8), None, (100, 7)),
        ("undo", None, Position(90, ID, 7), at(90), (90, 3)),
        ("to-group", "other", Position(90, ID, 7), at(90), (90, 7)),
    ],
)
def test_a_position_that_is_counted_from_an_earlier_one_keeps_its_epoch(
    name: str, value: object, stored: Position | None, found: Position | None, expected: tuple[int, int]
) -> None:
    """With the leader's, a load would not notice that the log was truncated before the earlier position."""
    new = one(name, value, stored=stored, of=log(20, 100), found=None if found is None else {T0: found}).new
    assert new is not None
    assert (new.offset, new.leader_epoch) == expected


def test_r01_without_a_position_an_offset_is_chosen() -> None:
    decided = one("to-offset", 50, of=log(0, 100))

    assert decided == PartitionRewind("t", 0, 0, 100, None, Position(50, ID, 7))
    assert (decided.changes, decided.difference, decided.offsets_reread, decided.offsets_skipped) == (True, None, 0, 0)


@pytest.mark.parametrize(
    ("name", "value", "offset", "clamped"),
    [
        pytest.param("to-earliest", None, 0, False, id="r03"),
        pytest.param("to-latest", None, 200, False, id="r04"),
        pytest.param("to-current", None, 100, False, id="r05"),
        pytest.param("shift-by", 50, 150, False, id="r07"),
        pytest.param("shift-by", -50, 50, False, id="r08"),
        pytest.param("shift-by", -150, 0, True, id="r09-back"),
        pytest.param("shift-by", 150, 200, True, id="r09-forward"),
        pytest.param("shift-by", 2**63 - 1, 200, True, id="shift-far"),
        pytest.param("shift-by", -(2**63) + 1, 0, True, id="shift-far-back"),
        pytest.param("to-offset", 0, 0, False, id="beginning"),
        pytest.param("to-offset", 200, 200, False, id="end"),
        pytest.param("to-offset", 201, 200, True, id="beyond"),
    ],
)
def test_r03_to_r09_an_offset_outside_of_the_log_is_clamped(
    name: str, value: object, offset: int, clamped: bool
) -> None:
    decided = one(name, value, stored=at(100), of=log(0, 200))

    assert new_offset(decided) == offset
    assert decided.clamped is clamped
    assert bool(decided.note) is clamped
    assert decided.difference == offset - 100
    assert decided.offsets_reread == max(0, 100 - offset)
    assert decided.skipped == (((100, offset),) if offset > 100 else ())


def test_r12_each_partition_is_clamped_to_its_own_log() -> None:
    first, second = decide(Scenario.of("to-offset", 5), [T0, T1], {}, {T0: log(20, 100), T1: log(0, 10)}, {})

    assert (new_offset(first), first.clamped, first.note) == (20, True, "clamped: 5 is before the beginning offset")
    assert (new_offset(second), second.clamped, second.note) == (5, False, "")


def test_an_offset_beyond_the_end_is_clamped_and_noted() -> None:
    assert one("to-offset", 11, of=log(0, 10)).note == "clamped: 11 is beyond the end offset"


@pytest.mark.parametrize(("name", "value"), [("to-datetime", "2026-11-17"), ("by-duration", "PT1H")])
def test_r14_an_instant_is_its_first_record(name: str, value: str) -> None:
    assert one(name, value, stored=at(100), of=log(0, 100), found={T0: Position(50)}).new == Position(50, ID, 7)


@pytest.mark.parametrize(("name", "value"), [("to-datetime", "2026-11-17"), ("by-duration", "PT1H")])
def test_r19_after_the_last_record_it_is_the_end(name: str, value: str) -> None:
    decided = one(name, value, stored=at(40), of=log(0, 100))

    assert new_offset(decided) == 100
    assert decided.note == "no record at or after that instant: the end offset"
    assert not decided.clamped


def test_r22_only_what_is_in_the_scope_is_meant() -> None:
    logs = {T0: log(0, 10), T1: log(0, 10)}
    meant = partitions_in({"t": frozenset({1})}, [T0, T1, U0], logs)

    assert meant == [T1]
    (decided,) = decide(Scenario.of("to-earliest"), meant, {T0: at(5), T1: at(6)}, logs, {})
    assert decided.topic_partition == T1


def test_r28_what_was_exported_changes_nothing() -> None:
    positions = {T0: at(5), T1: at(0), U0: at(30)}
    logs = {T0: log(0, 500), T1: log(0, 0), U0: log(30, 30)}
    text = write_offsets({tp: position.offset for tp, position in positions.items()})
    found = {tp: Position(offset) for tp, offset in read_offsets(text).items()}

    decided = decide(Scenario.of("from-file", text), [T0, T1, U0], positions, logs, found)

    assert [part.changes for part in decided] == [False, False, False]
    assert [part.new for part in decided] == [positions[T0], positions[T1], positions[U0]]


# --- what else can be ---


@pytest.mark.parametrize("stored", [at(10), at(300)], ids=["before-the-log", "beyond-the-log"])
def test_to_current_is_never_clamped(stored: Position) -> None:
    decided = one("to-current", stored=stored, of=log(50, 200))

    assert (decided.new, decided.changes, decided.clamped) == (stored, False, False)


def test_a_position_whose_records_are_gone_is_moved_into_the_log() -> None:
    decided = one("to-earliest", stored=at(10), of=log(50, 200))

    assert (new_offset(decided), decided.skipped, decided.offsets_reread) == (50, ((10, 50),), 0)


def test_shift_by_leaves_partitions_without_a_position_as_they_are() -> None:
    logs = {tp: log(0, 10) for tp in (T0, T1)}
    added, moved = decide(Scenario.of("shift-by", 1), [T0, T1], {T1: at(5)}, logs, {})
    assert (added.changes, added.note) == (False, "no position is stored: left as it is")
    assert new_offset(moved) == 6


def test_shift_by_without_any_position_is_refused() -> None:
    with pytest.raises(NoPositionError, match=r"there are none of t\[0\], t\[1\]\."):
        decide(Scenario.of("shift-by", 1), [T0, T1], {}, {T0: log(0, 10), T1: log(0, 10)}, {})


@pytest.mark.parametrize("logs", [{T0: log(0, 9, OTHER_ID)}, {}], ids=["recreated", "gone"])
def test_shift_by_counts_from_no_earlier_topic(logs: Mapping[TopicPartition, PartitionLog]) -> None:
    with pytest.raises(TopicRecreatedError, match=r"t\[0\]: offset 5"):
        decide(Scenario.of("shift-by", 1), [T0], {T0: at(5)}, logs, {})


@pytest.mark.parametrize("logs", [{T0: log(0, 9, OTHER_ID)}, {}], ids=["recreated", "gone"])
def test_positions_of_an_earlier_topic_are_not_gone_back_to(logs: Mapping[TopicPartition, PartitionLog]) -> None:
    with pytest.raises(TopicRecreatedError, match=r"to-batch 3 uses .* t\[0\]: offset 5\. Name an offset"):
        decide(Scenario.of("to-batch", 3), [T0, T1], {}, {**logs, T1: log(0, 9)}, {T0: at(5), T1: at(6)})


def test_a_topic_that_was_made_anew_has_its_own_offsets() -> None:
    decided = one("to-offset", 100, stored=at(100), of=log(0, 200, OTHER_ID))

    assert decided.new == Position(100, OTHER_ID, 7)
    assert decided.changes
    assert decided.note == "the old position belongs to an earlier topic of this name"
    assert (decided.difference, decided.reread, decided.skipped) == (None, None, ((0, 100),))


def test_what_is_before_the_position_in_a_recreated_topic_or_an_added_partition_is_skipped() -> None:
    logs = {T0: log(4, 90, OTHER_ID), T1: log(0, 90), U0: log(0, 90)}
    scenario = Scenario.of("to-datetime", "2026-11-25")

    decided = decide(scenario, [T0, T1, U0], {T0: at(5)}, logs, {tp: Position(60) for tp in logs})

    assert [one.skipped for one in decided] == [((4, 60),), ((0, 60),), ()], "the first position of a topic is a choice"
    there = decide(scenario, [T0], {T0: at(5)}, logs, {T0: Position(60)}, moves_cluster=True)
    assert there[0].note == "the old position belongs to the old cluster"
    assert there[0].skipped == (), "the offsets of another cluster say nothing of what was loaded"


def test_what_is_before_the_position_of_a_partition_that_an_open_batch_has_begun_is_skipped() -> None:
    logs = {T0: log(0, 90), T1: log(0, 90), U0: log(0, 90, OTHER_ID)}
    begun = {T0: at(10), T1: at(70), U0: at(10)}
    scenario = Scenario.of("to-offset", 60)

    decided = decide(scenario, [*logs], {}, logs, {}, begun=begun)

    assert [one.skipped for one in decided] == [((10, 60),), (), ()], "the batch is of an earlier topic u"
    there = decide(scenario, [T0], {}, logs, {}, begun=begun, moves_cluster=True)
    assert there[0].skipped == (), "the batch is of another cluster"


def test_both_notes_are_told() -> None:
    decided = one("to-offset", 300, stored=at(100), of=log(0, 200, OTHER_ID))

    assert (
        decided.note
        == "clamped: 300 is beyond the end offset; the old position belongs to an earlier topic of this name"
    )


@pytest.mark.parametrize("ids", [(None, ID), (ID, None), (None, None)], ids=str)
def test_an_id_that_a_broker_did_not_tell_is_no_other_topic(ids: tuple[str | None, str | None]) -> None:
    before, now = ids
    decided = one("to-offset", 40, stored=at(100, before), of=log(0, 200, now))

    assert (decided.reread, decided.difference) == ((40, 100), -60)


def test_the_position_of_a_partition_that_is_gone_is_removed() -> None:
    decided = one("to-earliest", stored=at(100))

    assert (decided.new, decided.changes, decided.beginning, decided.end) == (None, True, None, None)
    assert (decided.difference, decided.reread, decided.skipped) == (None, None, ())
    assert decided.note == "the topic has no such partition any more: its position is removed"


def test_to_current_leaves_the_position_of_a_partition_that_is_gone() -> None:
    assert not one("to-current", stored=at(100)).changes
    of_earlier_topic = one("to-current", stored=at(100, OTHER_ID), of=log(0, 200))
    assert (of_earlier_topic.changes, "belongs to an earlier topic of this name" in of_earlier_topic.note) == (
        False,
        True,
    )


def test_undoing_what_chose_a_position_removes_it() -> None:
    decided = one("undo", stored=at(50), of=log(0, 100), found={T0: None})

    assert (decided.new, decided.changes, decided.note) == (None, True, "there was no position")


@pytest.mark.parametrize(
    ("name", "value", "note"),
    [
        ("to-group", "other", "group 'other' has no position of this partition: left as it is"),
        (
            "import",
            "legacy",
            "consumer group 'legacy' in Kafka has committed no offset of this partition: left as it is",
        ),
        ("to-batch", 3, "the history has no position of this partition: left as it is"),
    ],
)
@pytest.mark.parametrize("stored", [None, at(50)], ids=["no-position", "position"])
def test_a_partition_that_the_scenario_does_not_name_stays(
    name: str, value: object, note: str, stored: Position | None
) -> None:
    decided = one(name, value, stored=stored, of=log(0, 100), found={T1: at(3)})

    assert (decided.new, decided.changes, decided.note) == (stored, False, note)


# --- scopes ---


@pytest.mark.parametrize(
    ("scope", "meant"),
    [
        ({}, [T0, T1, U0]),
        ({"t": None}, [T0, T1]),
        ({"t": frozenset({0}), "u": None}, [T0, U0]),
        ({"t": frozenset()}, []),
    ],
    ids=str,
)
def test_a_scope_means_partitions_of_the_log(scope: Scope, meant: list[TopicPartition]) -> None:
    assert partitions_in(scope, [], [U0, T1, T0]) == meant


def test_a_stored_position_of_a_partition_that_is_gone_is_meant_too() -> None:
    gone = TopicPartition("t", 5)

    assert partitions_in({"t": None}, [gone], [T0]) == [T0, gone]
    assert partitions_in({"t": frozenset({5})}, [gone], [T0]) == [gone]


def test_partitions_that_there_are_not_are_named() -> None:
    scope = {"t": frozenset({0, 2, 7}), "u": frozenset({1})}
    with pytest.raises(UnknownTopicError) as raised:
        partitions_in(scope, [TopicPartition("t", 9)], [T0, T1, U0])
    assert str(raised.value) == (
        "There is no partition t[2] (the topic has 2: 0..1), t[7] (the topic has 2: 0..1), u[1] (the topic has 1: 0..0)"
    )
