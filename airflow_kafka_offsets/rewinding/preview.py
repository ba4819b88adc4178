"""The preview of a rewind: computed from a scenario, the stored positions and the logs; shown before anything is
changed, saved, and executed later exactly as shown. No I/O.

`decide` turns a scenario into offsets by the rules of `docs/semantics.md`, to which the case ids in tests (R01, R12)
refer. `previewing` asks the history, other groups and Kafka for what some scenarios need; `execution` executes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from airflow_kafka_offsets.core.log_identity import is_other_topic
from airflow_kafka_offsets.core.offsets import OffsetRange, OfPartition, PartitionLog, Position, Span, TopicPartition
from airflow_kafka_offsets.core.plain import checked
from airflow_kafka_offsets.core.text import count, first_few
from airflow_kafka_offsets.exceptions import ConfigurationError, NoPositionError, TopicRecreatedError
from airflow_kafka_offsets.rewinding.scenarios import Scenario

Positions = Mapping[TopicPartition, Position]

Logs = Mapping[TopicPartition, PartitionLog]

LookedUp = Mapping[TopicPartition, Position | None]
"""The positions that a scenario means; None where there was no position."""

# Why another group names no offset of a partition.
_MISSING = {
    "to-group": "group {!r} has no position of this partition",
    "import": "consumer group {!r} in Kafka has committed no offset of this partition",
}


@dataclass(frozen=True, slots=True)
class PartitionRewind(OfPartition):
    """How a rewind moves the position of a partition.

    :param beginning: of the log; None if the topic no longer has the partition
    :param end: of the log
    :param old: the stored position, or None
    :param new: the position afterwards; None if none remains
    :param clamped: whether the scenario asks for an offset outside of the log
    :param note: a hint for the user, for example that the offset is clamped
    :param skipped: offsets that were never loaded, and that the move skips
    :param loaded_to: the end of the offsets at or after the new position that were loaded, and not replaced since; None
        if there are none
    """

    beginning: int | None
    end: int | None
    old: Position | None
    new: Position | None
    clamped: bool = False
    note: str = ""
    skipped: tuple[Span, ...] = ()
    loaded_to: int | None = None

    @property
    def old_offset(self) -> int | None:
        return self.old.offset if self.old is not None else None

    @property
    def new_offset(self) -> int | None:
        return self.new.offset if self.new is not None else None

    @property
    def changes(self) -> bool:
        """Return whether the position changes."""
        return self.old != self.new

    @property
    def difference(self) -> int | None:
        """Return the new offset minus the old one; None without both, or if the old one belongs to an earlier topic."""
        return None if self.old is None or self.new is None or self.other_topic else self.new.offset - self.old.offset

    @property
    def other_topic(self) -> bool:
        """Return whether the old position belongs to an earlier topic of the same name."""
        return self.old is not None and self.new is not None and is_other_topic(self.old.topic_id, self.new.topic_id)

    @property
    def reread(self) -> Span | None:
        """Return the offsets that were loaded and will be read again.

        After an earlier rewind they reach beyond the old position.
        """
        if self.new is None:
            return None
        end = self.new.offset if self.loaded_to is None else self.loaded_to
        if self.old is not None and not self.other_topic:
            end = max(end, self.old.offset)
        return (self.new.offset, end) if end > self.new.offset else None

    @property
    def offsets_reread(self) -> int:
        """Return how many offsets are read again: an upper bound of the number of records."""
        return self.reread[1] - self.reread[0] if self.reread is not None else 0

    @property
    def offsets_skipped(self) -> int:
        return sum(end - start for start, end in self.skipped)

    def __str__(self) -> str:
        """Return the move in words, for the log."""
        old, new = ("none" if offset is None else offset for offset in (self.old_offset, self.new_offset))
        note = f" ({self.note})" if self.note else ""
        return (
            f"{self.topic_partition}: position {old} → {new}, {count(self.offsets_reread, 'offset')} to be read again, "
            f"{self.offsets_skipped:,} skipped{note}"
        )

    def as_range(self) -> OffsetRange:
        """Return the move as the history records it: a range from the old offset to the new one."""
        after = self.new or self.old
        assert after is not None  # a partition without both does not change
        before = self.old or after
        if self.new is None:
            how = "removed"
        elif self.old is None:
            how = "chosen"
        else:
            how = "recreated" if self.other_topic else "rewind"
        return OffsetRange(
            *self.topic_partition,
            before.offset,
            after.offset,
            after.offset,
            after.topic_id,
            how,
            before.leader_epoch,
            after.leader_epoch,
        )

    @classmethod
    def from_range(cls, recorded: OffsetRange) -> PartitionRewind:
        """Return the move that the history records. The ends of the log are not recorded."""
        topic_id, how = recorded.topic_id, recorded.how
        old = Position(recorded.start, topic_id, recorded.leader_epoch) if how != "chosen" else None
        new = Position(recorded.end, topic_id, recorded.end_epoch) if how != "removed" else None
        return cls(*recorded.topic_partition, None, None, old, new)


def decide(
    scenario: Scenario,
    partitions: Sequence[TopicPartition],
    positions: Positions,
    logs: Logs,
    looked_up: LookedUp,
    *,
    begun: Positions | None = None,
    moves_cluster: bool = False,
) -> tuple[PartitionRewind, ...]:
    """Decide where the positions of partitions move.

    :param partitions: those in the scope
    :param looked_up: the positions that `previewing` has looked up for the scenario; None for a missing position
    :param begun: where the open batch began partitions without a position
    :param moves_cluster: whether the logs are those of another cluster, whose offsets say nothing of what was loaded
    :raises NoPositionError: the scenario counts from positions, and none is stored
    :raises TopicRecreatedError: the scenario uses positions of an earlier topic of the same name
    """
    if scenario.name == "shift-by":
        _check_shift(partitions, positions, logs)
    recreated = _of_earlier_topic(partitions, looked_up, logs)
    if recreated:
        raise TopicRecreatedError(
            f"{scenario.text} uses positions of an earlier topic of the same name, which are not valid in the current "
            f"one: {', '.join(recreated)}. Name an offset or a time instead, or leave these partitions out of the "
            "scope."
        )
    began = {} if moves_cluster or begun is None else begun
    topics = set() if moves_cluster else {tp.topic for tp in positions}
    return tuple(
        _decide_partition(
            scenario,
            tp,
            positions.get(tp),
            logs.get(tp),
            looked_up,
            began.get(tp),
            is_loaded=tp.topic in topics,
            moves_cluster=moves_cluster,
        )
        for tp in partitions
    )


def _decide_partition(
    scenario: Scenario,
    tp: TopicPartition,
    old: Position | None,
    log: PartitionLog | None,
    looked_up: LookedUp,
    began: Position | None,
    *,
    is_loaded: bool,
    moves_cluster: bool,
) -> PartitionRewind:
    stays = scenario.name == "to-current"
    if log is None:
        note = "the topic has no such partition any more" + ("" if stays else ": its position is removed")
        return PartitionRewind(*tp, None, None, old, old if stays else None, note=note)
    unchanged = PartitionRewind(*tp, log.beginning, log.end, old, old)
    if stays:
        if old is None:
            return replace(unchanged, note="no position is stored")
        of_earlier = is_other_topic(old.topic_id, log.topic_id)
        note = "the position belongs to an earlier topic of this name: name an offset or a time" if of_earlier else ""
        return replace(unchanged, note=note)
    wanted, note = _wanted_offset(scenario, tp, old, log, looked_up)
    if wanted is None:
        if tp in looked_up:
            return replace(unchanged, new=None, note="there was no position" if old is not None else "")
        return replace(unchanged, note=note)
    offset = min(max(wanted, log.beginning), log.end)
    clamped = offset != wanted
    if clamped:
        note = f"clamped: {wanted} is {'beyond the end' if offset < wanted else 'before the beginning'} offset"
    counted = old if scenario.name == "shift-by" else looked_up.get(tp)
    epoch = _epoch_at(offset, log, counted)
    moved = replace(unchanged, new=Position(offset, log.topic_id, epoch), clamped=clamped)
    if moved.other_topic:
        owner = "the old cluster" if moves_cluster else "an earlier topic of this name"
        note = "; ".join(filter(None, [note, f"the old position belongs to {owner}"]))
    elif moved.difference == 0:
        if old is None or not _changes_epoch(scenario, old.leader_epoch, epoch, is_counted=counted is not None):
            return replace(unchanged, clamped=clamped, note=note)
        note = "; ".join(filter(None, [note, "the log is accepted as it is now" if counted is None else ""]))
    # Of a topic that is loaded, a recreated or an added partition skips what is before the position, and an open batch
    # has begun its partitions. Any other first position of a topic is a choice.
    before = log.beginning if is_loaded else offset
    if began is not None and not is_other_topic(began.topic_id, log.topic_id):
        before = began.offset
    start = before if old is None or moved.other_topic else old.offset
    return replace(moved, note=note, skipped=((start, offset),) if offset > start else ())


def _epoch_at(offset: int, log: PartitionLog, counted: Position | None) -> int | None:
    """Return the leader epoch of a new position.

    Up to an earlier position its own holds: the next read proves that the log was not truncated before it. The
    leader's holds for any offset up to the end of its log, but says nothing of what was loaded.

    :param counted: the earlier position that the new one is counted from; None if it is not
    """
    if counted is None or counted.leader_epoch is None or offset > counted.offset:
        return log.leader_epoch
    return counted.leader_epoch


def _changes_epoch(scenario: Scenario, old: int | None, new: int | None, *, is_counted: bool) -> bool:
    """Return whether a rewind to the position itself changes its leader epoch.

    Who names the offset accepts the log as it is, also one that was truncated; so does each scenario that counts from
    no earlier position, if the leader went back. `undo` and `to-batch` restore what the position was.
    """
    if old == new:
        return False
    if scenario.name in ("undo", "to-batch"):
        return True
    if old is None or is_counted:
        return False
    return scenario.name == "to-offset" or (new is not None and new < old)


def _wanted_offset(
    scenario: Scenario, tp: TopicPartition, old: Position | None, log: PartitionLog, looked_up: LookedUp
) -> tuple[int | None, str]:
    """Return the offset for the scenario, and a note; None for no position."""
    match scenario.name, scenario.value:
        case "to-earliest", _:
            return log.beginning, ""
        case "to-latest", _:
            return log.end, ""
        case "to-offset", int(offset):
            return offset, ""
        case "shift-by", int(shift):
            return (old.offset + shift, "") if old is not None else (None, "no position is stored: left as it is")
    if tp in looked_up:
        wanted = looked_up[tp]
        return (wanted.offset if wanted is not None else None), ""
    if scenario.name in ("to-datetime", "by-duration"):
        return log.end, "no record at or after that instant: the end offset"
    missing = _MISSING.get(scenario.name, "the history has no position of this partition")
    return None, f"{missing.format(scenario.value)}: left as it is"


def _check_shift(partitions: Sequence[TopicPartition], positions: Positions, logs: Logs) -> None:
    if not any(tp in positions for tp in partitions):
        raise NoPositionError(
            f"shift-by counts from stored positions, and there are none of {first_few(partitions)}. Nothing was "
            "changed; name offsets for them first."
        )
    recreated = _of_earlier_topic(partitions, positions, logs)
    if recreated:
        raise TopicRecreatedError(
            "shift-by counts from stored positions, and a topic was recreated since, so they are not valid in it: "
            f"{', '.join(recreated)}. Name an offset or a time instead."
        )


def _of_earlier_topic(partitions: Sequence[TopicPartition], positions: LookedUp, logs: Logs) -> list[str]:
    """Return the partitions whose position belongs to an earlier topic of the same name, with its offset."""
    return [
        f"{tp}: offset {position.offset}"
        for tp in partitions
        if (position := positions.get(tp)) is not None
        and (tp not in logs or is_other_topic(position.topic_id, logs[tp].topic_id))
    ]


_FORMAT = "airflow-kafka-offsets rewind 3"

# Fields that JSON holds as they are.
_PLAIN = ("group_id", "cluster_id", "generation", "scenario", "kind", "open_batch", "moves_cluster")
_KINDS = ("rewind", "undo", "import")
_MOST_OF_SCENARIO = 10_000
_PLAIN_OF_PARTITION = ("topic", "partition", "clamped", "note", "loaded_to")
# How the columns of the command name them.
_SAVED_AS = {
    "beginning": "beginning_offset",
    "end": "end_offset",
    "old": "old_position",
    "new": "new_position",
}


@dataclass(frozen=True, slots=True)
class RewindPreview:
    """What a rewind will do. Executing it does exactly this, or nothing.

    :param group_id: the group
    :param cluster_id: of the Kafka cluster that the offsets belong to
    :param generation: the generation of the group, which each rewind raises; None for a new group
    :param scenario: the scenario with its scope, as text
    :param kind: `rewind`, `undo` or `import`, for the history
    :param partitions: every partition in the scope, also those that do not change
    :param instant: the instant of a scenario of time, in UTC
    :param open_batch: the group's open batch, which has to be finished or abandoned first
    :param moves_cluster: whether the stored positions belong to another cluster
    """

    group_id: str
    cluster_id: str
    generation: int | None
    scenario: str
    kind: str
    partitions: tuple[PartitionRewind, ...] = field(repr=False)
    instant: datetime | None = None
    open_batch: int | None = None
    moves_cluster: bool = False

    @property
    def changed(self) -> tuple[PartitionRewind, ...]:
        return tuple(partition for partition in self.partitions if partition.changes)

    @property
    def replacing(self) -> tuple[PartitionRewind, ...]:
        """Return the preview for a rewind with `replace`: with partitions that do not move, and have output after their
        position.
        """
        return tuple(partition for partition in self.partitions if partition.changes or partition.reread is not None)

    def moves(self, *, replace: bool) -> tuple[PartitionRewind, ...]:
        """Return what a rewind records. One `to-current` without `replace` also records positions that stay: the group
        goes on with the rows that its target has now.

        :param replace: whether it removes rows
        """
        if replace:
            return self.replacing
        stay = (partition for partition in self.partitions if partition.new is not None)
        return self.changed or (tuple(stay) if self.scenario == "to-current" else ())

    @property
    def replaced_ranges(self) -> tuple[OffsetRange, ...]:
        """Return the offsets whose output a rewind with `replace` removes."""
        moves = ((move.topic_partition, move.reread) for move in self.replacing)
        return tuple(OffsetRange(*tp, *span, span[1]) for tp, span in moves if span is not None)

    @property
    def offsets_reread(self) -> int:
        """Return how many offsets will be read again."""
        return sum(partition.offsets_reread for partition in self.partitions)

    @property
    def offsets_skipped(self) -> int:
        """Return how many offsets were never loaded, and will not be."""
        return sum(partition.offsets_skipped for partition in self.partitions)

    def refuse_left_behind(self, stored: Iterable[TopicPartition]) -> None:
        """Refuse a change of the cluster that keeps old positions: they would be used as offsets of the new cluster.

        :param stored: the partitions that have a position
        :raises ConfigurationError: some would stay
        """
        if not self.moves_cluster:
            return
        # Without a topic id, a position in the new cluster may equal the old one.
        moved = {
            partition.topic_partition
            for partition in self.partitions
            if partition.changes or (partition.new is not None and partition.new.topic_id is None)
        }
        left = sorted(set(stored) - moved)
        if left:
            raise ConfigurationError(
                f"Group {self.group_id!r} moves to Kafka cluster {self.cluster_id!r}, and {self.scenario} leaves "
                f"positions of the old one where they are: {first_few(left)}. Nothing was changed; move all of them, "
                "to an offset or a time."
            )

    def refuse_replace(self) -> None:
        """Refuse to replace rows if the rows of the offsets cannot be identified.

        :raises ConfigurationError: the offsets belong to another cluster than the rows
        """
        if self.moves_cluster:
            raise ConfigurationError(
                "Offsets of the new cluster do not identify the rows that were loaded from the old one: replace "
                "cannot be combined with a change of the cluster"
            )

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for XCom and for a file; `from_dict` reads it."""
        saved = {
            "format": _FORMAT,
            **{name: getattr(self, name) for name in _PLAIN},
            "instant": self.instant.isoformat() if self.instant is not None else None,
            "offsets_reread": self.offsets_reread,
            "offsets_skipped": self.offsets_skipped,
            "partitions": [_partition_as_dict(partition) for partition in self.partitions],
        }
        return saved | {"checksum": _checksum(saved)}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> RewindPreview:
        """Return the preview that `as_dict` saved.

        The checksum detects edits and damage. It is not a signature: a user who may rewind may rewind to any offset.

        :raises ConfigurationError: it is not what `as_dict` returned
        """
        if not isinstance(saved, Mapping) or saved.get("format") != _FORMAT:
            raise ConfigurationError(f"This is not a saved preview of a rewind: its format is not {_FORMAT!r}")
        content = {name: value for name, value in saved.items() if name != "checksum"}
        if saved.get("checksum") != _checksum(content):
            raise ConfigurationError(
                f"The saved preview of group {saved.get('group_id')!r} was changed: its checksum is not that of its "
                "content. Preview the rewind again, and execute that"
            )
        try:
            partitions = tuple(map(_partition, saved["partitions"]))
            if len({each.topic_partition for each in partitions}) < len(partitions):
                raise ValueError("a partition is named twice")
            if saved["kind"] not in _KINDS or len(str(saved["scenario"])) > _MOST_OF_SCENARIO:
                raise ValueError("it is none of the kinds of rewinds")
            instant = datetime.fromisoformat(saved["instant"]) if saved["instant"] is not None else None
            plain = {name: saved[name] for name in _PLAIN}
            return checked(cls, {"partitions": partitions, "instant": instant, **plain})
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise ConfigurationError(
                f"This is not a saved preview of a rewind: {type(error).__name__} {error}"
            ) from error

    @classmethod
    def from_json(cls, text: str) -> RewindPreview:
        """Return the preview that a JSON text holds.

        :raises ConfigurationError: it is not the JSON text of a saved preview, or was changed
        """
        try:
            saved = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"A saved preview is a JSON text; this is none: {error}") from error
        return cls.from_dict(saved)


def _checksum(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the canonical JSON: the same for any order of the keys, and for any white space."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _partition_as_dict(partition: PartitionRewind) -> dict[str, Any]:
    plain = {_SAVED_AS.get(name, name): value for name, value in asdict(partition).items()}
    return plain | {
        "old_offset": partition.old_offset,
        "new_offset": partition.new_offset,
        "difference": partition.difference,
        "reread": partition.offsets_reread,
        "skipped": [list(span) for span in partition.skipped],
    }


def _partition(saved: Mapping[str, Any]) -> PartitionRewind:
    old, new = (
        checked(Position, at) if (at := saved[name]) is not None else None for name in ("old_position", "new_position")
    )
    skipped = tuple((int(start), int(end)) for start, end in saved["skipped"])
    ends = [offset for span in skipped for offset in span]
    if any(at is not None and at.offset < 0 for at in (old, new)) or [0, *ends] != sorted([0, *ends]):
        raise ValueError("an offset is negative, or offsets are skipped twice")
    if ends and ends[-1] >= 1 << 63:
        raise ValueError("an offset is too large")
    plain = {name: saved[name] for name in _PLAIN_OF_PARTITION}
    plain |= {name: saved[_SAVED_AS[name]] for name in ("beginning", "end")}
    return checked(PartitionRewind, {"old": old, "new": new, "skipped": skipped, **plain})
