"""How jobs reach a submitted application: the lines that a launcher sends, and the answers.

A launcher sends Spark properties as JSON, then jobs. The application answers when a job begins and ends. It ends when
the launcher says that there is no other job. If this happens during a job, or if the launcher is gone, it ends at once:
the staged files would not be committed.

A driver on the worker's machine connects to a Unix socket, in a directory that only its owner can enter. A driver
elsewhere uses a mailbox in the staging location (`spark.mailbox`).
"""

from __future__ import annotations

import os
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from queue import SimpleQueue

from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.spark.mailbox import Mailbox
from airflow_kafka_offsets.spark.progress import Display, MarkedLines, mark_of
from airflow_kafka_offsets.staging.directory import StagingDirectory

# How messages of a mailbox begin. What follows is a line of a launcher, or are lines of the application for the log.
LINE, END = "j", "e"

ANSWER, LINES = "a", "l"


class Answer(Enum):
    """The answer of the application to a job: whether it begins, then its result."""

    BEGUN = b"b"
    DONE = b"d"
    FAILED = b"f"
    """The staging directory says why."""
    STOPPED = b"s"
    """Spark's context was stopped before the job came; the application ends."""


class Jobs(ABC):
    """The jobs of an application, as the application sees them."""

    display: Display
    """Shows in the log of the task what a job does."""

    def __init__(self) -> None:
        self._received = SimpleQueue[str | None]()
        self._is_running = self._is_closed = False

    def lines(self) -> Iterator[str]:
        """Wait for each line: the Spark properties that hold secrets, then jobs."""
        return iter(self._received.get, None)

    def answer(self, answer: Answer) -> None:
        """Send an answer of the last job."""
        # Before the launcher can know it, and say that there is no other.
        self._is_running = answer is Answer.BEGUN
        # The thread that receives looks at both in the other order.
        if self._is_running and self._is_closed:
            os._exit(1)
        self._send(answer)

    @abstractmethod
    def _send(self, answer: Answer) -> None: ...

    def _close(self) -> None:
        """Note that there is no other job."""
        self._is_closed = True
        self._received.put(None)
        if self._is_running:
            os._exit(1)


def open_jobs(arguments: Sequence[str]) -> Jobs:
    """Return the jobs of this application.

    :param arguments: of the application: the path of a socket, or the URI of a mailbox and its token
    """
    return MailboxJobs(*arguments) if len(arguments) > 1 else SocketJobs(*arguments)


class SocketJobs(Jobs):
    """Jobs that come over a Unix socket.

    :param path: of the socket
    """

    def __init__(self, path: str) -> None:
        super().__init__()
        self.display = self._marked = MarkedLines(mark_of(path))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(path)
        threading.Thread(target=self._receive, name="jobs", daemon=True).start()

    def _send(self, answer: Answer) -> None:
        if answer is not Answer.BEGUN:
            self._marked.end()
        # Where the launcher is gone, there is no other job.
        with suppress(ConnectionError):
            self._socket.sendall(answer.value)

    def _receive(self) -> None:
        # What is no text is no job, either.
        with suppress(ConnectionError, ValueError), self._socket.makefile(encoding="utf-8") as lines:
            for line in lines:
                # A line that is cut off is no job.
                if line.endswith("\n"):
                    self._received.put(line)
        self._close()


class MailboxJobs(Jobs):
    """Jobs that come through a mailbox.

    :param uri: of its directory
    :param token: what the launcher gave this application alone
    """

    def __init__(self, uri: str, token: str) -> None:
        super().__init__()
        self._mailbox = Mailbox.of_driver(StagingDirectory(uri), token)
        self.display = _SentLines(mark_of(uri), self._mailbox)
        threading.Thread(target=self._receive, name="jobs", daemon=True).start()

    def _send(self, answer: Answer) -> None:
        self._mailbox.send(ANSWER + answer.value.decode())

    def _receive(self) -> None:
        # Also where somebody else wrote into the mailbox.
        try:
            with suppress(StagingError):
                for message in self._mailbox.messages():
                    if message == END:
                        break
                    self._received.put(message.removeprefix(LINE))
        finally:
            # Whatever was raised: nobody else ends the application.
            self._close()


class _SentLines(MarkedLines):
    """Sends the lines to the task that submitted the application."""

    def __init__(self, mark: str, mailbox: Mailbox) -> None:
        super().__init__(mark)
        self._mailbox = mailbox

    def _print(self, text: str) -> None:
        self._mailbox.send(LINES + text)
