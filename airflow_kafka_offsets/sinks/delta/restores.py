"""Whether a RESTORE took rows away: the positions and the application transactions of a table do not go back with
it.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.delta.published import published_by
from airflow_kafka_offsets.sinks.delta.snapshot import DeltaSnapshot


def refuse_restored(snapshot: DeltaSnapshot, group_id: str, last_rewind: datetime | None) -> None:
    """Raise if the table was restored to a version before the last publication of a group.

    A later publication of the group, or a rewind, shows that somebody saw to it.

    :param last_rewind: when the group was rewound last
    :raises TargetError: rows of the group may be gone
    """
    restores: list[dict[str, Any]] = []
    for entry in snapshot.history():
        published = published_by(entry)
        if published is not None and published.group_id == group_id:
            break
        if entry["operation"] == "RESTORE":
            restores.append(entry)
    else:
        return
    version = snapshot.version
    for restore in restores:
        # Those between are of a state that an earlier one of the list has undone.
        if restore["version"] <= version:
            version = _restored_version(restore)
    is_rewound = last_rewind is not None and restores and restores[0]["timestamp"] <= last_rewind.timestamp() * 1000
    if version < published.version and not is_rewound:
        raise TargetError(
            f"Table {snapshot.name!r} was restored to version {version} by its version {restores[0]['version']}, and "
            f"batch {published.batch_id} of group {group_id!r} was committed to it as version {published.version}: its "
            "rows are gone, and the positions say that they are there. Nothing was written. Restore the table to "
            f"version {restores[-1]['version'] - 1}, or rewind the group to where its rows end now and load again "
            "(abandon its open batch with the rewind)"
        )


def _restored_version(restore: dict[str, Any]) -> int:
    """Return the version to which a table was restored; -1 where the log has a time instead."""
    parameters = restore.get("operationParameters", {})
    version = parameters.get("version")
    try:
        return int(version if isinstance(version, int) else json.loads(version))
    except (TypeError, ValueError):
        return -1
