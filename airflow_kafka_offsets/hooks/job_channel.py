"""The worker's end of how jobs reach a submitted application; `spark.jobs` is the other end."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import tempfile
import uuid
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Protocol, Self

from airflow.sdk.log import mask_secret

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import ConfigurationError, KafkaOffsetsError, StagingError
from airflow_kafka_offsets.spark.jobs import ANSWER, END, LINE, LINES
from airflow_kafka_offsets.spark.mailbox import Mailbox
from airflow_kafka_offsets.spark.package import DIRECTORY, temporary_directory
from airflow_kafka_offsets.spark.progress import mark_of
from airflow_kafka_offsets.staging.directory import StagingDirectory

log = logging.getLogger(__name__)

# The addresses of Unix domain sockets have 108 bytes on Linux and 104 on macOS, the last of which is zero.
_LONGEST_PATH = 103

# What is created in it has an unguessable name, and is its owner's alone.
_SHORT_DIRECTORY = "/tmp"  # noqa: S108

_SOCKET = "jobs"

_HELLO = b"h"


class Channel(Protocol):
    """A way for jobs to an application, and for its answers. It is a context manager: enter it before anything else."""

    @property
    def arguments(self) -> Sequence[str]:
        """Those of the application."""

    @property
    def mark(self) -> str:
        """Of its lines, see `mark_of`."""

    @property
    def is_printed(self) -> bool:
        """Whether the application prints its lines, with the mark, where the worker sees it."""

    @property
    def error(self) -> KafkaOffsetsError | None:
        """Why the channel ended, where the end of the application does not say it."""

    def listen(self) -> socket.socket:
        """Return what is readable as soon as the application has come."""

    def accept(self) -> socket.socket:
        """Return what the answers can be read from, once `listen` is readable. It is at its end where the application
        is gone.

        :raises KafkaOffsetsError: what has come is not the application, or it cannot take jobs
        """

    def send(self, line: str) -> None:
        """Send a line; if the application is gone, it gives no answer."""

    def settle(self) -> None:
        """Receive what the application sent before it ended."""

    def disconnect(self) -> None:
        """Tell the application that there are no other jobs."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class SocketChannel:
    """A Unix socket in a directory that only its owner can enter.

    :param directory: that one
    """

    is_printed = True
    error = None

    def __init__(self, directory: Path) -> None:
        path = directory / _SOCKET
        self.arguments = (str(path),)
        self.mark = mark_of(str(path))
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._connection: socket.socket | None = None
        self._path = path

    def __enter__(self) -> Self:
        self._listener.bind(str(self._path))
        self._listener.listen(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        if self._connection is not None:
            self._connection.close()

    def listen(self) -> socket.socket:
        return self._listener

    def accept(self) -> socket.socket:
        self._connection = self._listener.accept()[0]
        # No other may connect.
        self._listener.close()
        return self._connection

    def send(self, line: str) -> None:
        assert self._connection is not None
        with suppress(ConnectionError):
            self._connection.sendall(f"{line}\n".encode())

    def settle(self) -> None:
        """Do nothing: what was sent can be read."""

    def disconnect(self) -> None:
        # The driver's Python outlives its JVM where it waits for a job, or is only about to connect.
        self._listener.close()
        if self._connection is not None:
            with suppress(OSError):  # it has closed its end
                self._connection.shutdown(socket.SHUT_RDWR)


class MailboxChannel:
    """A mailbox in the staging location.

    :param directory: of the mailbox, which does not exist yet
    :param show: takes lines of the application for the log, with their marks
    """

    is_printed = False

    def __init__(self, directory: StagingDirectory, show: Callable[[str], None]) -> None:
        token = secrets.token_hex(32)
        mask_secret(token)
        self._directory, self._token = directory, token
        self._show = show
        self.arguments = (directory.uri, token)
        self.mark = mark_of(directory.uri)
        self.error: KafkaOffsetsError | None = None
        # What the thread hears, so that it can be waited for together with the end of the application.
        self._heard, self._tells = socket.socketpair()
        self._mailbox: Mailbox | None = None
        self._thread = Thread(target=copy_context().run, args=(self._receive,), name="mailbox", daemon=True)

    def __enter__(self) -> Self:
        self._directory.create()
        try:
            self._mailbox = Mailbox.of_worker(self._directory, self._token)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        assert self._mailbox is not None
        self._mailbox.close()
        # A driver may have sent more than anybody reads.
        with suppress(OSError):
            self._heard.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join()
        self._close()

    def listen(self) -> socket.socket:
        self._thread.start()
        return self._heard

    def accept(self) -> socket.socket:
        if not self._heard.recv(1) and self.error is not None:
            raise self.error
        return self._heard

    def send(self, line: str) -> None:
        assert self._mailbox is not None
        self._mailbox.send(LINE + line)

    def settle(self) -> None:
        assert self._mailbox is not None
        if self._mailbox.has_met and self._thread.is_alive():
            self._mailbox.settle()

    def disconnect(self) -> None:
        assert self._mailbox is not None
        if self._mailbox.has_met:
            self._mailbox.send(END)
        else:
            # An application that only comes now finds nothing, and ends.
            self._mailbox.close()
            self._remove()

    def _close(self) -> None:
        self._heard.close()
        self._tells.close()
        self._remove()

    def _remove(self) -> None:
        try:
            self._directory.remove()
        except Exception as error:
            # It fails no load: a later one removes it.
            log.warning("The mailbox %s could not be removed: %s", self._directory.uri, shortened(str(error)))

    def _receive(self) -> None:
        assert self._mailbox is not None
        try:
            if self._mailbox.meet():
                self._tells.sendall(_HELLO)
                for message in self._mailbox.messages():
                    if message.startswith(LINES):
                        self._show(message.removeprefix(LINES))
                    else:
                        self._tells.sendall(message.removeprefix(ANSWER).encode())
        except KafkaOffsetsError as error:
            self.error = error
        except Exception as error:
            self.error = StagingError(f"The mailbox {self._directory.uri} failed: {shortened(str(error))}")
            self.error.__cause__ = error
        finally:
            with suppress(OSError):  # nobody reads it any more
                self._tells.shutdown(socket.SHUT_RDWR)


def mailbox_beside(staging_uri: str) -> StagingDirectory:
    """Return the directory of a new mailbox, beside that of an attempt to stage a batch."""
    return StagingDirectory(staging_uri).sibling(f"mailbox-{uuid.uuid4().hex}")


def job_directory() -> AbstractContextManager[Path]:
    """Create a directory that only its owner can enter, and whose path leaves room for the name of a socket.

    :raises ConfigurationError: there is none
    """
    parent = tempfile.gettempdir()
    if len(os.fsencode(parent)) + len(f"/{DIRECTORY}01234567/{_SOCKET}") > _LONGEST_PATH:
        long, parent = parent, _SHORT_DIRECTORY
        if not os.access(parent, os.W_OK | os.X_OK):
            raise ConfigurationError(
                f"The path of the temporary directory {long} is too long for a socket, and this user cannot create "
                f"files in {parent}: set TMPDIR to a shorter path"
            )
    return temporary_directory(parent)
