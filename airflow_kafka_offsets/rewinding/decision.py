"""Where a rewind moves positions to: a pure decision from a scenario, stored positions and log ends. No I/O.

The rules are those of `docs/semantics.md`; the case ids in tests (R01, R12, …) refer to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import PartitionLog, Position, TopicPartition
from airflow_kafka_offsets.core.spans import Span
from airflow_kafka_offsets.exceptions import NoPositionError, TopicRecreatedError
from airflow_kafka_offsets.rewinding.scenarios import Scenario


@dataclass(frozen=True, slots=True)
class PartitionRewind:
    """What a rewind does to a partition.

    :param beginning: of the log; None where the topic has no such partition any more
    :param end: of the log
    :param old: the stored position, or None
    :param new: the position afterwards; None where there will be none
    :param clamped: whether the scenario asked for an offset outside of the log
    :param note: what there is to say of it, clamping included
    :param skipped: offsets that are passed over and were never loaded
    :param loaded_to: how far offsets at the new position or beyond were loaded by the history, and not replaced since; None where
        none were, or the old position says it
    """

    topic: str
    partition: int
    beginning: int | None
    end: int | None
    old: Position | None
    new: Position | None
    clamped: bool = False
    note: str = ""
    skipped: tuple[Span, ...] = ()
    loaded_to: int | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def changes(self) -> bool:
        """Whether the position is another one afterwards."""
        return self.old != self.new

    @property
    def difference(self) -> int | None:
        """Of the offsets; None where there is no position before or after, or it is of an earlier topic of that name."""
        return None if self.old is None or self.new is None or self.other_topic else self.new.offset - self.old.offset

    @property
    def other_topic(self) -> bool:
        """Whether the old position belongs to an earlier topic of the same name."""
        return self.old is not None and self.new is not None and is_other_topic(self.old.topic_id, self.new.topic_id)

    @property
    def again(self) -> Span | None:
        """The offsets that were loaded and are read again.

        Those beyond the old position are among them, where it stood further on before an earlier rewind.
        """
        if self.new is None:
            return None
        reach = self.new.offset if self.loaded_to is None else self.loaded_to
        if self.old is not None and not self.other_topic:
            reach = max(reach, self.old.offset)
        return (self.new.offset, reach) if reach > self.new.offset else None

    @property
    def offsets_again(self) -> int:
        """How many offsets are read again: an upper bound of the number of records."""
        return self.again[1] - self.again[0] if self.again is not None else 0

    @property
    def offsets_skipped(self) -> int:
        return sum(end - start for start, end in self.skipped)


def decide(
    scenario: Scenario,
    partitions: Sequence[TopicPartition],
    positions: Mapping[TopicPartition, Position],
    logs: Mapping[TopicPartition, PartitionLog],
    found: Mapping[TopicPartition, Position | None],
) -> tuple[PartitionRewind, ...]:
    """Decide where the positions of partitions go.

    :param partitions: those in the scope
    :param found: for scenarios whose offsets were asked for elsewhere: an instant's (a partition without such a record is
        left out), a file's, a batch's, another group's; None where there was no position then
    :raises NoPositionError: the scenario counts from positions that are not stored; names every partition
    :raises TopicRecreatedError: positions of an earlier topic of the same name are wanted or counted from
    """
    if scenario.name == "shift-by":
        _check_shift(partitions, positions, logs)
    _check_topics(scenario, partitions, logs, found)
    return tuple(_decided(scenario, tp, positions.get(tp), logs.get(tp), found) for tp in partitions)


def _decided(
    scenario: Scenario,
    tp: TopicPartition,
    old: Position | None,
    log: PartitionLog | None,
    found: Mapping[TopicPartition, Position | None],
) -> PartitionRewind:
    if log is None:
        gone = "the topic has no such partition any more: its position is removed"
        if scenario.name == "to-current":
            return PartitionRewind(*tp, None, None, old, old, note="the topic has no such partition any more")
        return PartitionRewind(*tp, None, None, old, None, note=gone)
    unchanged = PartitionRewind(*tp, log.beginning, log.end, old, old)
    if scenario.name == "to-current":
        return replace(unchanged, note="" if old is not None else "no position is stored")
    wanted, note = _wanted(scenario, tp, old, log, found)
    if wanted is None:
        if tp in found:
            return replace(unchanged, new=None, note="there was no position" if old is not None else "")
        return replace(unchanged, note=note)
    offset = min(max(wanted.offset, log.beginning), log.end)
    clamped = offset != wanted.offset
    if offset < wanted.offset:
        note = f"clamped: {wanted.offset} is beyond the end offset"
    elif offset > wanted.offset:
        note = f"clamped: {wanted.offset} is before the beginning offset"
    another = old is not None and is_other_topic(old.topic_id, log.topic_id)
    if another:
        note = "; ".join(filter(None, [note, "the old position belongs to an earlier topic of this name"]))
    if old is not None and old.offset == offset and not another:
        return replace(unchanged, clamped=clamped, note=note)
    # Sound for any offset up to the log's end: the log of this leader reaches it.
    new = Position(offset, log.topic_id, log.leader_epoch)
    skipped: tuple[Span, ...] = ()
    if old is not None and not another and offset > old.offset:
        skipped = ((old.offset, offset),)
    return PartitionRewind(*tp, log.beginning, log.end, old, new, clamped, note, skipped)


def _wanted(
    scenario: Scenario,
    tp: TopicPartition,
    old: Position | None,
    log: PartitionLog,
    found: Mapping[TopicPartition, Position | None],
) -> tuple[Position | None, str]:
    """Where the scenario wants the position, and what there is to say of it; None where it wants none, or says nothing."""
    name = scenario.name
    if name == "to-earliest":
        return Position(log.beginning), ""
    if name == "to-latest":
        return Position(log.end), ""
    if name == "to-offset":
        assert isinstance(scenario.value, int)
        return Position(scenario.value), ""
    if name == "shift-by":
        assert isinstance(scenario.value, int)
        assert old is not None
        return Position(old.offset + scenario.value), ""
    if tp in found:
        return found[tp], ""
    if name in ("to-datetime", "by-duration"):
        return Position(log.end), "no record at or after that instant: the end offset"
    of = {
        "to-group": f"group {scenario.value!r} has no position of it",
        "import": f"consumer group {scenario.value!r} of Kafka's has committed nothing of it",
    }
    return None, f"{of.get(name, 'the history knows nothing of it')}: left as it is"


def _check_shift(
    partitions: Sequence[TopicPartition],
    positions: Mapping[TopicPartition, Position],
    logs: Mapping[TopicPartition, PartitionLog],
) -> None:
    missing = [tp for tp in partitions if tp not in positions]
    if missing:
        raise NoPositionError(
            f"shift-by counts from stored positions, and none is stored of {', '.join(map(str, missing))}. Nothing was "
            "changed; leave them out of the scope, or name offsets for them first."
        )
    recreated = [tp for tp in partitions if tp not in logs or is_other_topic(positions[tp].topic_id, logs[tp].topic_id)]
    if recreated:
        raise TopicRecreatedError(
            "shift-by counts from stored positions, and a topic was deleted and created again since, so that these mean "
            f"nothing in it: {', '.join(f'{tp}: position {positions[tp].offset}' for tp in recreated)}. Name an offset or a "
            "time instead."
        )


def _check_topics(
    scenario: Scenario,
    partitions: Sequence[TopicPartition],
    logs: Mapping[TopicPartition, PartitionLog],
    found: Mapping[TopicPartition, Position | None],
) -> None:
    recreated = [
        (tp, wanted)
        for tp in partitions
        if (wanted := found.get(tp)) is not None
        and (tp not in logs or is_other_topic(wanted.topic_id, logs[tp].topic_id))
    ]
    if recreated:
        raise TopicRecreatedError(
            f"{scenario.text} means positions of an earlier topic of the same name, which mean nothing in the one that is "
            f"there now: {', '.join(f'{tp}: offset {wanted.offset}' for tp, wanted in recreated)}. Name an offset or a time "
            "instead, or leave these partitions out of the scope."
        )
