"""The last published batch and its snapshot, which a commit stores in an Iceberg table.

Each series of publications has a table property: properties survive the expiry of snapshots, and rollbacks.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from airflow_kafka_offsets.core.text import first_few, parse_unsigned
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.lake.snapshot import KnownRollbacks, PublicationResult, check_said
from airflow_kafka_offsets.sinks.table import Output

PREFIX = "kafka-offsets."

# A property of a few KB could become gigabytes. Batches of ten thousand loads over fifty partitions take less.
_MOST_REMOVED = 32 << 20

# A summary is in the metadata of the table as long as its snapshot is.
_RANGES = 50


Snapshots = Mapping[int, Snapshot]
"""Those of a table, by id."""


class Publication(NamedTuple):
    """The last publication of a series.

    :param batch: its number
    :param snapshot: the id of the snapshot; None where the table had none
    :param sequence: the number of the snapshot among all of the table
    """

    group: str
    batch: int
    result: PublicationResult = PublicationResult()
    snapshot: int | None = None
    sequence: int = 0

    def to_json(self) -> str:
        """Return it as the value of a property."""
        plain = {"group": self.group, "batch": self.batch, "rows": self.result.rows, "added": self.result.columns}
        # Thousands of batches may be replaced at once, and the metadata of the table is read by everybody.
        removed = json.dumps(self.result.removed).encode()
        if len(removed) > _MOST_REMOVED:
            raise TargetError(
                "A commit replaces rows of too many earlier batches for a property of the table. Nothing was written: "
                "abandon the batch, and replay fewer offsets at once"
            )
        packed = base64.b64encode(zlib.compress(removed)).decode()
        return json.dumps({**plain, "removed": packed, "snapshot": self.snapshot, "sequence": self.sequence})


def published(table: Table, series: str, *, with_removed: bool = False) -> Publication | None:
    """Return the last publication of a series.

    :param with_removed: with the numbers of removed rows, which may be many
    """
    text = table.properties.get(PREFIX + series)
    return None if text is None else _read(table, PREFIX + series, text, with_removed=with_removed)


def last_published(table: Table, group_id: str) -> tuple[str, Publication] | None:
    """Return the last publication of a group that is in a snapshot, with the name of its property, and without the
    numbers of removed rows.
    """
    found = [(name, _read(table, name, text)) for name, text in table.properties.items() if name.startswith(PREFIX)]
    ours = [(name, each) for name, each in found if each.group == group_id and each.snapshot is not None]
    return max(ours, key=lambda found: found[1].sequence, default=None)


def _read(table: Table, name: str, text: str, *, with_removed: bool = False) -> Publication:
    try:
        plain = json.loads(text)
        removed = _unpacked(plain["removed"]) if with_removed else []
        result = PublicationResult.parsed(plain["rows"], removed, plain["added"])
        check_said((plain["batch"], plain["sequence"], abs(plain["snapshot"] or 0)), (plain["group"],))
        return Publication(plain["group"], plain["batch"], result, plain["snapshot"], plain["sequence"])
    except (KeyError, RecursionError, TypeError, ValueError, zlib.error) as error:
        raise TargetError(
            f"Property {name!r} of Iceberg table {'.'.join(table.name())!r} cannot be read: {type(error).__name__}. "
            "It names the last loaded batch, and must not be changed"
        ) from error


def _unpacked(packed: str) -> list[list[Any]]:
    unpacking = zlib.decompressobj()
    text = unpacking.decompress(base64.b64decode(packed), _MOST_REMOVED)
    # Each has a batch, a topic, a partition and a number.
    if not unpacking.eof or text.count(b"[") > 1 + len(text) // len('[1, "t", 0, 1]'):
        raise ValueError
    found: list[list[Any]] = json.loads(text)
    return found


def summary(output: Output) -> dict[str, str]:
    """Return the summary of a snapshot for a batch."""
    return {
        f"{PREFIX}group": output.group_id,
        f"{PREFIX}batch": str(output.batch_id),
        f"{PREFIX}ranges": first_few(output.ranges, most=_RANGES),
    }


def refuse_rollback(table: Table, group_id: str, known: KnownRollbacks) -> None:
    """Raise if the table was rolled back to before the last snapshot of a group.

    If the relevant snapshots are expired, nothing is raised.

    :raises TargetError: the last snapshot of the group is not in the history of the current one
    """
    found, current = last_published(table, group_id), table.current_snapshot()
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.snapshots()}
    if found is None or _is_in_history(snapshots, found[1], current):
        return
    last = found[1]
    if known.has(_rolled_back_ms(snapshots, table, last), _last_in_history(snapshots, current, group_id)):
        return
    raise TargetError(
        f"Iceberg table {'.'.join(table.name())!r} was rolled back, or replaced: snapshot {last.snapshot}, by which "
        f"group {group_id!r} published batch {last.batch}, is not in the history of the current snapshot "
        f"{current.snapshot_id if current else None}. The positions of the group are after rows that are gone. "
        "Nothing was written. Either restore the snapshot (for example CALL system.set_current_snapshot), or, to "
        "continue without the rows, rewind the group, with replace, to where its rows end, abandon its open batch with "
        "the rewind, and load again. If no row is gone, rewind it to-current, without replace"
    )


def _rolled_back_ms(snapshots: Snapshots, table: Table, last: Publication) -> int:
    """Return when the table got a current snapshot that does not descend from a publication's."""
    rolled_back = 0
    for entry in reversed(table.history()):
        if _is_in_history(snapshots, last, snapshots.get(entry.snapshot_id)):
            break
        rolled_back = entry.timestamp_ms
    return rolled_back


def _last_in_history(snapshots: Snapshots, current: Snapshot | None, group_id: str) -> int:
    """Return the number of the last publication of a group in the history of the current snapshot; -1 where there is
    none.
    """
    for snapshot in _history(snapshots, current):
        properties = {} if snapshot.summary is None else snapshot.summary.additional_properties
        number = properties.get(f"{PREFIX}batch", "")
        if properties.get(f"{PREFIX}group") == group_id:
            with suppress(ValueError):  # of another program's
                return parse_unsigned(number)
    return -1


def _history(snapshots: Snapshots, snapshot: Snapshot | None) -> Iterator[Snapshot]:
    """Yield a snapshot and those before it, each once: metadata may say that two are each other's parent."""
    seen = set[int]()
    while snapshot is not None and snapshot.snapshot_id not in seen:
        seen.add(snapshot.snapshot_id)
        yield snapshot
        snapshot = snapshots.get(snapshot.parent_snapshot_id or 0)


def _is_in_history(snapshots: Snapshots, last: Publication, snapshot: Snapshot | None) -> bool:
    """Return whether a snapshot is that of a publication, or a later one of the same history."""
    parent = None
    for each in _history(snapshots, snapshot):
        if each.snapshot_id == last.snapshot:
            return True
        if 0 < (each.sequence_number or 0) <= last.sequence:
            return False
        parent = each.parent_snapshot_id
    if snapshot is None:
        return False
    if parent is None:
        # A new history; or the parents are expired, and pyiceberg forgets which they were.
        return last.snapshot not in snapshots
    return parent not in snapshots  # expired, and with it what would tell
