"""The preview of a rewind: shown before anything is changed, saved, and executed later as it was shown. No I/O.

`previewing` makes a preview, `execution` executes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.rewinding.decision import PartitionRewind

_FORMAT = "airflow-kafka-offsets rewind 2"

# Fields that JSON holds as they are.
_PLAIN = ("group_id", "cluster_id", "generation", "scenario", "kind", "open_batch", "moves_cluster")
_PLAIN_OF_PARTITION = ("topic", "partition", "beginning", "end", "clamped", "note", "loaded_to")


@dataclass(frozen=True, slots=True)
class RewindPreview:
    """What a rewind will do. Executing it does exactly this, or nothing.

    :param group_id: the group
    :param cluster_id: of the Kafka cluster that the offsets belong to
    :param generation: of the group: a later one means that its positions were rewound since; None if nothing is stored
        of the group yet
    :param scenario: with its scope, in a few words
    :param kind: `rewind`, `undo` or `import`, for the history
    :param partitions: every partition in the scope, also those that do not change
    :param instant: the instant that a scenario of time means, in UTC
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
        """Return what a rewind with `replace` executes: also partitions that stay, and have output after their
        position.
        """
        return tuple(partition for partition in self.partitions if partition.changes or partition.reread is not None)

    @property
    def offsets_reread(self) -> int:
        """Return how many offsets will be read again."""
        return sum(partition.offsets_reread for partition in self.partitions)

    @property
    def offsets_skipped(self) -> int:
        """Return how many offsets were never loaded, and will not be."""
        return sum(partition.offsets_skipped for partition in self.partitions)

    def refuse_left_behind(self, stored: Iterable[TopicPartition]) -> None:
        """Refuse a change of the cluster that leaves positions: they would be taken for offsets of the new cluster.

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
        """Refuse to replace rows if it is not known which rows are those of the offsets that will be read again.

        :raises ConfigurationError: the offsets belong to another cluster than the rows
        """
        if self.moves_cluster:
            raise ConfigurationError(
                "Offsets of another cluster say nothing of the rows that were loaded from the old one: replace cannot "
                "be combined with a change of the cluster"
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

        The checksum finds a change by hand, by a tool or in transit. It is no signature: a user who may rewind may
        rewind to any offset.

        :raises ConfigurationError: it is not what `as_dict` returned
        """
        if not isinstance(saved, Mapping) or saved.get("format") != _FORMAT:
            raise ConfigurationError(f"This is no saved preview of a rewind: its format is not {_FORMAT!r}")
        content = {name: value for name, value in saved.items() if name != "checksum"}
        if saved.get("checksum") != _checksum(content):
            raise ConfigurationError(
                f"The saved preview of group {saved.get('group_id')!r} was changed: its checksum is not that of its "
                "content. Preview the rewind again, and execute that"
            )
        return cls(
            partitions=tuple(map(_partition, saved["partitions"])),
            instant=datetime.fromisoformat(saved["instant"]) if saved["instant"] is not None else None,
            **{name: saved[name] for name in _PLAIN},
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


def _partition_as_dict(partition: PartitionRewind) -> dict[str, Any]:
    return {
        **{name: getattr(partition, name) for name in _PLAIN_OF_PARTITION},
        "old": partition.old_offset,
        "new": partition.new_offset,
        "difference": partition.difference,
        "reread": partition.offsets_reread,
        "skipped": [list(span) for span in partition.skipped],
        "old_position": asdict(partition.old) if partition.old is not None else None,
        "new_position": asdict(partition.new) if partition.new is not None else None,
    }


def _partition(saved: Mapping[str, Any]) -> PartitionRewind:
    old, new = (
        Position(**at) if (at := saved[name]) is not None else None for name in ("old_position", "new_position")
    )
    skipped = tuple((start, end) for start, end in saved["skipped"])
    return PartitionRewind(old=old, new=new, skipped=skipped, **{name: saved[name] for name in _PLAIN_OF_PARTITION})
