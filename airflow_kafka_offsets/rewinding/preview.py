"""The preview of a rewind: what is shown before anything is done, saved, and executed later as it was shown. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.rewinding.decision import PartitionRewind

_FORMAT = "airflow-kafka-offsets rewind 2"


@dataclass(frozen=True, slots=True)
class RewindPreview:
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
                f"of the old one where they are: {first_few(left)}. Nothing was changed; move all of them, to "
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
        """Return plain data, for XCom and for a file; `from_dict` reads it."""
        saved = {
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
        return saved | {"checksum": _checksum(saved)}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> RewindPreview:
        """Return the preview that `as_dict` saved.

        The checksum notices a change by hand, by a tool, or on the way; it is no signature. Who may rewind can rewind to anything.

        :raises ConfigurationError: it is not what `as_dict` made
        """
        if not isinstance(saved, Mapping) or saved.get("format") != _FORMAT:
            raise ConfigurationError(f"This is no saved preview of a rewind: its format is not {_FORMAT!r}")
        content = {name: value for name, value in saved.items() if name != "checksum"}
        if saved.get("checksum") != _checksum(content):
            raise ConfigurationError(
                f"The saved preview of group {saved.get('group_id')!r} was changed: its checksum is not that of its content. Preview "
                "the rewind again, and execute that"
            )
        return cls(
            group_id=saved["group_id"],
            cluster_id=saved["cluster_id"],
            generation=saved["generation"],
            scenario=saved["scenario"],
            kind=saved["kind"],
            partitions=tuple(map(_partition, saved["partitions"])),
            instant=datetime.fromisoformat(saved["instant"]) if saved["instant"] is not None else None,
            open_batch=saved["open_batch"],
            moves_cluster=saved["moves_cluster"],
        )

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
        saved["topic"],
        saved["partition"],
        saved["beginning"],
        saved["end"],
        _position(saved["old_position"]),
        _position(saved["new_position"]),
        saved["clamped"],
        saved["note"],
        tuple((start, end) for start, end in saved["skipped"]),
        saved["loaded_to"],
    )


def _position(saved: Mapping[str, Any] | None) -> Position | None:
    if saved is None:
        return None
    return Position(
        saved["offset"],
        saved["topic_id"],
        saved["leader_epoch"],
    )
