"""The preview of a rewind: what is shown before anything is done, saved, and executed later as it was shown. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.offsets import Position, ReadAhead
from airflow_kafka_offsets.rewinding import PartitionRewind

_FORMAT = "airflow-kafka-offsets rewind 1"


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
    def offsets_again(self) -> int:
        """How many offsets will be read again."""
        return sum(one.offsets_again for one in self.partitions)

    @property
    def offsets_skipped(self) -> int:
        """How many offsets were never loaded, and will not be."""
        return sum(one.offsets_skipped for one in self.partitions)

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
            return cls(
                group_id=_typed(saved["group_id"], str),
                cluster_id=_typed(saved["cluster_id"], str),
                generation=_optional(saved["generation"], int),
                scenario=_typed(saved["scenario"], str),
                kind=_typed(saved["kind"], str),
                partitions=tuple(map(_partition, saved["partitions"])),
                instant=datetime.fromisoformat(saved["instant"]) if saved["instant"] is not None else None,
                open_batch=_optional(saved["open_batch"], int),
                moves_cluster=_typed(saved["moves_cluster"], bool),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"The saved preview was changed, and cannot be read: {error!r}") from error

    @classmethod
    def from_json(cls, text: str) -> Preview:
        """
        :raises ConfigurationError: it is not the JSON text of a saved preview
        """
        try:
            saved = json.loads(text)
        except ValueError as error:
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
        "clamped": one.clamped,
        "note": one.note,
        "old_position": _position_as_dict(one.old),
        "new_position": _position_as_dict(one.new),
    }


def _position_as_dict(position: Position | None) -> dict[str, Any] | None:
    if position is None:
        return None
    ahead = position.ahead
    return {
        "offset": position.offset,
        "topic_id": position.topic_id,
        "leader_epoch": position.leader_epoch,
        "ahead": None if ahead is None else {"offset": ahead.offset, "before_ms": ahead.before_ms},
    }


def _partition(saved: Mapping[str, Any]) -> PartitionRewind:
    for name in ("old", "new"):
        if saved[name] != (saved[f"{name}_position"] or {"offset": None})["offset"]:
            raise ValueError(f"{name} and {name}_position are different offsets")
    return PartitionRewind(
        _typed(saved["topic"], str),
        _typed(saved["partition"], int),
        _optional(saved["beginning"], int),
        _optional(saved["end"], int),
        _position(saved["old_position"]),
        _position(saved["new_position"]),
        _typed(saved["clamped"], bool),
        _typed(saved["note"], str),
        tuple((_typed(start, int), _typed(end, int)) for start, end in saved["skipped"]),
    )


def _position(saved: Mapping[str, Any] | None) -> Position | None:
    if saved is None:
        return None
    ahead = saved["ahead"]
    offset: int = _typed(saved["offset"], int)
    if offset < 0:
        raise ValueError(f"a negative offset: {offset}")
    return Position(
        offset,
        _optional(saved["topic_id"], str),
        _optional(saved["leader_epoch"], int),
        None if ahead is None else ReadAhead(_typed(ahead["offset"], int), _typed(ahead["before_ms"], int)),
    )


def _typed(value: Any, kind: type) -> Any:
    # True is an int to isinstance.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{value!r} where {kind.__name__} is expected")
    return value


def _optional(value: Any, kind: type) -> Any:
    return None if value is None else _typed(value, kind)
