"""The socket over which a submitted application gets its jobs, and what is secret: no file, argument or variable holds
it.

The launcher listens, in a directory that only its owner can enter, and sends lines of JSON: Spark properties, then
jobs. The application answers each job when it begins, and when it ends. It ends when the launcher closes the socket,
and at once where that happens while a job runs: the launcher was killed, and nobody would commit what is staged.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from functools import partial
from queue import SimpleQueue
from typing import Any

from airflow_kafka_offsets.spark.job import StageJob


class Answer(StrEnum):
    """What the application says of a job: that it begins or does not, then what became of it."""

    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"
    """The staging directory says why."""
    STOPPED = "stopped"
    """Spark's context was stopped before the job came; the application ends."""


class Jobs:
    """The jobs that a launcher sends, as the application sees them.

    :param path: of the socket
    :param end: ends this process at once; None is `os._exit`
    """

    def __init__(self, path: str, end: Callable[[], object] | None = None) -> None:
        self._end = end or partial(os._exit, 1)
        self._received = SimpleQueue[str | None]()
        self._is_running = self._is_closed = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        threading.Thread(target=self._receive, name="jobs", daemon=True).start()

    def properties(self) -> dict[str, Any]:
        """Return the Spark properties that hold secrets, which come first."""
        if (text := self._received.get()) is None:
            # The launcher is gone, and there are no jobs either.
            self._received.put(None)
            return {}
        properties: dict[str, Any] = json.loads(text)
        return properties

    def __iter__(self) -> Iterator[StageJob]:
        while (text := self._received.get()) is not None:
            yield StageJob.from_json(text)

    def answer(self, answer: Answer) -> None:
        """Send an answer of the last job."""
        # Before the launcher can know it, and close the socket.
        self._is_running = answer == Answer.BEGUN
        # The thread looks at both in the other order.
        if self._is_running and self._is_closed:
            self._end()
        # Where the launcher is gone, there is no other job.
        with suppress(ConnectionError):
            self._socket.sendall(f"{answer}\n".encode())

    def _receive(self) -> None:
        with suppress(ConnectionError), self._socket.makefile(encoding="utf-8") as lines:
            for line in lines:
                # A line that is cut off is no job.
                if line.endswith("\n"):
                    self._received.put(line)
        self._is_closed = True
        self._received.put(None)
        if self._is_running:
            self._end()
