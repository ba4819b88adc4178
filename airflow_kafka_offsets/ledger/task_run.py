"""Which task instance a batch belongs to."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaskRun:
    """Who asks: an Airflow task instance, or a process of its own.

    Tries of one task instance are the same asker: a later try takes over from an earlier one at once.
    """

    run_id: str
    dag_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None
    try_number: int | None = None

    @classmethod
    def of_this_process(cls) -> TaskRun:
        """For scripts and notebooks: an identity that no other process has."""
        return cls(run_id=f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}")

    def __str__(self) -> str:
        if self.dag_id is None:
            return f"process {self.run_id}"
        mapped = f" map index {self.map_index}" if self.map_index is not None and self.map_index >= 0 else ""
        return f"dag {self.dag_id!r} task {self.task_id!r} run {self.run_id!r}{mapped}"
