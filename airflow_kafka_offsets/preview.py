"""The preview of a rewind: what is shown before anything is done, saved, and executed later as it was shown. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.listing import listed
from airflow_kafka_offsets.offsets import Position, TopicPartition
from airflow_kafka_offsets.rewinding import PartitionRewind
from airflow_kafka_offsets.scenarios import MOST

_FORMAT = "airflow-kafka-offsets rewind 2"
_KINDS = ("rewind", "undo", "import")
# What the column of a partition holds.
_MOST_PARTITIONS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Preview:
    """What a rewind would do. Executing it does exactly this, or nothing.

    :param cluster_id: of the Kafka cluster that the offsets are of
    :param generation: of the group: another one later means that its positions were rewound since; None where the group is not
        known yet
    :param scenario: in a few words
    :param kind: `rewind`, `undo` or `import`, for the history
    :param partitions: every partition in the scope, those that do not change among them
    :param instant: where the scenario is one of time, the instant that it means, in UTC
    :param open_batch: the group's open batch, which has to be finished or abandoned first
    :param moves_cluster: whether the positions belonged to another cluster
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
        return tuple(one for one in self.partitions if one.changes)

    @property
    def replacing(self) -> tuple[PartitionRewind, ...]:
        """What is to be done where the output of what is read again is replaced: not only where a position changes."""
        return tuple(one for one in self.partitions if one.changes or one.again is not None)

    @property
    def offsets_again(self) -> int:
        """How many offsets will be read again."""
        return sum(one.offsets_again for one in self.partitions)

    @property
    def offsets_skipped(self) -> int:
        """How many offsets were never loaded, and will not be."""
        return sum(one.offsets_skipped for one in self.partitions)

    def refuse_left_behind(self, stored: Iterable[TopicPartition]) -> None:
        """A group belongs to one cluster: positions that stay as they are would be taken for offsets of the new one.

        :param stored: the partitions that have a position
        :raises ConfigurationError: some would stay
        """
        if not self.moves_cluster:
            return
        same = {one.topic_partition for one in self.partitions if one.new is not None and one.new.topic_id is None}
        moved = {one.topic_partition for one in self.changed} | same
        left = sorted(set(stored) - moved)
        if left:
            raise ConfigurationError(
                f"Group {self.group_id!r} goes over to Kafka cluster {self.cluster_id!r}, and {self.scenario} leaves positions "
                f"of the old one where they are: {listed(left)}. Nothing was changed; move all of them, to "
                "an offset or a time."
            )

    def refuse_replace(self) -> None:
        """
        :raises ConfigurationError: which rows are of the offsets that will be read again cannot be known
        """
        if self.moves_cluster:
            raise ConfigurationError(
                "Offsets of another cluster say nothing of the rows that were loaded from the old one: replace cannot be combined "
                "with a change of the cluster"
            )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for XCom and for a file; `from_dict` reads it."""
        return {
            "format": _FORMAT,
            "group_id": self.group_id,
            "cluster_id": self.cluster_id,
            "generation": self.generation,
            "scenario": self.scenario,
            "kind": self.kind,
            "instant": self.instant.isoformat() if self.instant is not None else None,
            "open_batch": self.open_batch,
            "moves_cluster": self.moves_cluster,
            "offsets_again": self.offsets_again,
            "offsets_skipped": self.offsets_skipped,
            "partitions": [_partition_as_dict(one) for one in self.partitions],
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Preview:
        """
        :raises ConfigurationError: it is not what `as_dict` made
        """
        if not isinstance(saved, Mapping) or saved.get("format") != _FORMAT:
            raise ConfigurationError(f"This is no saved preview of a rewind: its format is not {_FORMAT!r}")
        try:
            read = cls(
                group_id=_typed(saved["group_id"], str),
                cluster_id=_typed(saved["cluster_id"], str),
                generation=_number(saved["generation"]),
                scenario=_typed(saved["scenario"], str),
                kind=_typed(saved["kind"], str),
                partitions=tuple(map(_partition, _typed(saved["partitions"], list))),
                instant=datetime.fromisoformat(saved["instant"]) if saved["instant"] is not None else None,
                open_batch=_number(saved["open_batch"]),
                moves_cluster=_typed(saved["moves_cluster"], bool),
            )
            _check(read, saved)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"The saved preview was changed, and cannot be read: {error!r}") from error
        return read

    @classmethod
    def from_json(cls, text: str) -> Preview:
        """
        :raises ConfigurationError: it is not the JSON text of a saved preview
        """
        try:
            saved = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"A saved preview is a JSON text; this is none: {error}") from error
        return cls.from_dict(saved)


def _partition_as_dict(one: PartitionRewind) -> dict[str, Any]:
    return {
        "topic": one.topic,
        "partition": one.partition,
        "beginning": one.beginning,
        "end": one.end,
        "old": one.old.offset if one.old is not None else None,
        "new": one.new.offset if one.new is not None else None,
        "difference": one.difference,
        "again": one.offsets_again,
        "skipped": [list(span) for span in one.skipped],
        "loaded_to": one.loaded_to,
        "clamped": one.clamped,
        "note": one.note,
        "old_position": _position_as_dict(one.old),
        "new_position": _position_as_dict(one.new),
    }


def _position_as_dict(position: Position | None) -> dict[str, Any] | None:
    if position is None:
        return None
    return {
        "offset": position.offset,
        "topic_id": position.topic_id,
        "leader_epoch": position.leader_epoch,
    }


def _partition(saved: Mapping[str, Any]) -> PartitionRewind:
    return PartitionRewind(
        _typed(saved["topic"], str),
        _typed(saved["partition"], int),
        _number(saved["beginning"]),
        _number(saved["end"]),
        _position(saved["old_position"]),
        _position(saved["new_position"]),
        _typed(saved["clamped"], bool),
        _typed(saved["note"], str),
        tuple((_offset(start), _offset(end)) for start, end in saved["skipped"]),
        _number(saved["loaded_to"]),
    )


def _position(saved: Mapping[str, Any] | None) -> Position | None:
    if saved is None:
        return None
    return Position(
        _offset(saved["offset"]),
        _optional(saved["topic_id"], str),
        _number(saved["leader_epoch"], _MOST_PARTITIONS),
    )


def _check(read: Preview, saved: Mapping[str, Any]) -> None:
    """
    :raises ValueError: it says one thing in two ways, or what no preview says
    """
    if read.kind not in _KINDS:
        raise ValueError(f"kind {read.kind!r}")
    if read.instant is not None and read.instant.tzinfo is None:
        raise ValueError(f"an instant without a time zone: {saved['instant']}")
    places = [one.topic_partition for one in read.partitions]
    if len(places) != len(set(places)):
        raise ValueError(
            f"partitions that are there twice: {sorted({str(tp) for tp in places if places.count(tp) > 1})}"
        )
    for one in read.partitions:
        _check_partition(one)
    made, told = read.as_dict(), dict(saved)
    # What is shown, and not executed, is told by the rest.
    if made != told:
        names = sorted(map(str, made.keys() ^ told.keys() | {name for name in made if made[name] != told.get(name)}))
        raise ValueError(f"{', '.join(names)}: not what the rest of it says")


def _check_partition(one: PartitionRewind) -> None:
    tp = one.topic_partition
    if not 0 <= one.partition <= _MOST_PARTITIONS:
        raise ValueError(f"a partition numbered {one.partition}")
    if (one.beginning is None) != (one.end is None):
        raise ValueError(f"{tp}: one end of the log")
    log = (one.beginning, one.end) if one.beginning is not None and one.end is not None and one.changes else None
    if log is not None and one.new is not None and not log[0] <= one.new.offset <= log[1]:
        raise ValueError(f"{tp}: offset {one.new.offset} is outside of the log, {one.beginning}..{one.end}")
    if one.loaded_to is not None and (one.new is None or one.loaded_to <= one.new.offset):
        raise ValueError(f"{tp}: loaded to {one.loaded_to}, which is not beyond the new position")
    passed = (one.old.offset, one.new.offset) if one.old is not None and one.new is not None else (0, 0)
    for start, end in one.skipped:
        if not passed[0] <= start < end <= passed[1]:
            raise ValueError(f"{tp}: offsets {start}..{end} are not passed over")
        passed = (end, passed[1])


def _offset(value: Any) -> int:
    number = _number(value)
    if number is None:
        raise TypeError("null where a number is expected")
    return number


def _number(value: Any, most: int = MOST) -> int | None:
    number: int | None = _optional(value, int)
    if number is not None and not 0 <= number <= most:
        raise ValueError(f"a number that is negative or too large: {number}")
    return number


def _typed(value: Any, kind: type) -> Any:
    # True is an int to isinstance.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{value!r} where {kind.__name__} is expected")
    return value


def _optional(value: Any, kind: type) -> Any:
    return None if value is None else _typed(value, kind)
