"""Who loads: the task instance, or the process, that a claim and a batch belong to."""

from __future__ import annotations

import os
import socket
import uuid
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaskRun:
    """An Airflow task instance in one of its tries, or a process outside of Airflow.

    The tries of a task instance are the same owner: a later try takes over from an earlier one at once.
    """

    run_id: str
    dag_id: str | None = None
    task_id: str | None = None
    map_index: int | None = None
    try_number: int | None = None

    @classmethod
    def of_this_process(cls) -> TaskRun:
        """Return an identity that no other process has, for scripts and notebooks."""
        return cls(run_id=f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}")

    def __str__(self) -> str:
        if self.dag_id is None:
            return f"process {self.run_id}"
        mapped = f" map index {self.map_index}" if self.map_index is not None and self.map_index >= 0 else ""
        return f"dag {self.dag_id!r} task {self.task_id!r} run {self.run_id!r}{mapped}"
