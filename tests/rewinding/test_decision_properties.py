"""What holds for every decision of a rewind, whatever the scenario, the positions and the logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.rewinding.preview import PartitionRewind, decide
from airflow_kafka_offsets.rewinding.scenarios import Scenario

ID, OTHER_ID = "vVZ4aDWLQP2NkY0pxyHJYA", "Xw-aDWLQP2NkY0pxyHJYBQ"


def at(offset: int, topic_id: str | None = ID) -> Position:
    return Position(offset, topic_id, 3)


# --- properties ---


@dataclass(frozen=True)
class Situation:
    """What a decision is made from."""

    scenario: Scenario
    partitions: tuple[TopicPartition, ...]
    positions: Mapping[TopicPartition, Position]
    logs: Mapping[TopicPartition, PartitionLog]
    found: Mapping[TopicPartition, Position | None]

    def decide(self) -> tuple[PartitionRewind, ...]:
        return decide(self.scenario, self.partitions, self.positions, self.logs, self.found)


PARTITIONS = [TopicPartition(topic, partition) for topic in "tu" for partition in range(3)]


VALUES = {
    "to-offset": 40,
    "to-batch": 3,
    "to-group": "g",
    "import": "g",
    "to-datetime": "2026-11-17",
    "by-duration": "P1D",
}


offsets = st.integers(0, 80)


@st.composite
def positions_of(draw: st.DrawFn, topic_ids: tuple[str | None, ...]) -> Position:
    offset = draw(offsets)
    return Position(offset, draw(st.sampled_from(topic_ids)), draw(st.none() | st.integers(0, 9)))


@st.composite
def logs_of(draw: st.DrawFn) -> PartitionLog:
    beginning = draw(offsets)
    return PartitionLog(
        beginning,
        beginning + draw(st.integers(0, 60)),
        draw(st.sampled_from([ID, None])),
        draw(st.none() | st.integers(0, 9)),
    )


@st.composite
def situations(draw: st.DrawFn, names: tuple[str, ...] = ()) -> Situation:
    name = draw(
        st.sampled_from(names or ("to-earliest", "to-latest", "to-current", "shift-by", "from-file", "undo", *VALUES))
    )
    chosen = tuple(sorted(draw(st.lists(st.sampled_from(PARTITIONS), min_size=1, unique=True))))
    log_of = {tp: draw(logs_of()) for tp in PARTITIONS}
    stored = {tp: draw(positions_of((ID, None, OTHER_ID))) for tp in PARTITIONS if draw(st.integers(0, 3))}
    found: dict[TopicPartition, Position | None] = {}
    value = VALUES.get(name)
    if name == "shift-by":
        value = draw(st.integers(-200, 200))
        stored = {tp: replace(stored.get(tp, at(5)), topic_id=ID) for tp in PARTITIONS}
    elif name == "to-offset":
        value = draw(st.integers(0, 200))
    elif name in ("undo", "to-batch"):
        found = {tp: draw(st.none() | positions_of((ID, None))) for tp in chosen if draw(st.booleans())}
    elif name in ("to-group", "import", "to-datetime", "by-duration"):
        found = {tp: Position(draw(offsets)) for tp in chosen if draw(st.booleans())}
    elif name == "from-file":
        found = {tp: Position(draw(offsets)) for tp in chosen}
        value = {tp: position.offset for tp, position in found.items() if position is not None}
    if name != "shift-by":
        gone = [tp for tp in chosen if found.get(tp) is None and draw(st.integers(0, 5)) == 0]
        log_of = {tp: log for tp, log in log_of.items() if tp not in gone}
    return Situation(Scenario.of(name, value), chosen, stored, log_of, found)


def each(situation: Situation) -> Iterator[tuple[PartitionRewind, PartitionLog]]:
    for part in situation.decide():
        log_now = situation.logs.get(part.topic_partition)
        if log_now is not None:
            yield part, log_now


@given(situations())
def test_exactly_the_partitions_in_the_scope_are_decided(situation: Situation) -> None:
    decided = situation.decide()

    assert tuple(part.topic_partition for part in decided) == situation.partitions
    assert [part.old for part in decided] == [situation.positions.get(tp) for tp in situation.partitions]


@given(situations())
def test_a_position_that_is_moved_is_in_the_log(situation: Situation) -> None:
    for part, log_now in each(situation):
        if not part.changes or part.new is None:
            continue
        assert situation.scenario.name != "to-current"
        assert log_now.beginning <= part.new.offset <= log_now.end
        assert part.new.topic_id == log_now.topic_id
        counted = part.old if situation.scenario.name == "shift-by" else situation.found.get(part.topic_partition)
        is_before = counted is not None and counted.leader_epoch is not None and part.new.offset <= counted.offset
        assert part.new.leader_epoch == (counted if is_before and counted is not None else log_now).leader_epoch


@given(situations())
def test_the_same_question_has_the_same_answer(situation: Situation) -> None:
    assert situation.decide() == situation.decide()
    alone = [
        decide(situation.scenario, [tp], situation.positions, situation.logs, situation.found)
        for tp in situation.partitions
    ]
    assert tuple(part for (part,) in alone) == situation.decide()


@given(situations())
def test_clamped_offsets_are_noted_and_others_are_those_of_the_scenario(situation: Situation) -> None:
    for part, log_now in each(situation):
        wanted = situation.found.get(part.topic_partition)
        assert part.clamped == part.note.startswith("clamped: ")
        if wanted is not None and part.new is not None:
            assert part.clamped == (not log_now.beginning <= wanted.offset <= log_now.end)
            assert part.clamped or part.new.offset == wanted.offset


@given(situations())
def test_again_and_skipped_are_exactly_what_the_positions_differ_by(situation: Situation) -> None:
    for part in situation.decide():
        old, new = part.old, part.new
        again = set(range(*part.reread)) if part.reread is not None else set()
        skipped = {offset for span in part.skipped for offset in range(*span)}
        if old is None or new is None or part.other_topic:
            is_loaded = part.topic in {tp.topic for tp in situation.positions}
            moves = new is not None and part.changes and is_loaded
            assert skipped == (set(range(part.beginning or 0, new.offset)) if moves and new is not None else set())
            assert not again
            assert part.difference is None
            continue
        assert again == set(range(new.offset, old.offset))
        assert skipped == set(range(old.offset, new.offset))
        assert (part.offsets_reread, part.offsets_skipped) == (len(again), len(skipped))
        assert part.difference == new.offset - old.offset


@given(situations(names=("to-earliest", "to-latest", "to-offset", "shift-by", "from-file", "to-datetime")))
def test_an_undo_brings_the_positions_back(situation: Situation) -> None:
    decided = [part for part in situation.decide() if part.changes and not part.other_topic and part.new is not None]
    after = {part.topic_partition: part.new for part in decided if part.new is not None}
    before = {part.topic_partition: part.old for part in decided}

    undone = decide(Scenario.of("undo"), sorted(after), after, situation.logs, before)

    for part in undone:
        was, log_now = before[part.topic_partition], situation.logs[part.topic_partition]
        if was is None:
            assert part.new is None
        elif log_now.beginning <= was.offset <= log_now.end:
            assert part.new is not None
            assert part.new.offset == was.offset
        else:
            assert part.clamped
