"""Values that threads read while requests wait no longer than a deadline: a server that does not answer delays no
page.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Generic, NamedTuple, TypeVar

from airflow_kafka_offsets.core.threads import in_background

T = TypeVar("T")

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 0.6
"""How long a page waits for a reading, counted from when it began."""

LATE_SECONDS = 5.0
"""How long a reading may take before a page says that a server does not answer."""


class TooSlowError(Exception):
    """A server did not answer within the time that a page has."""


class TooBusyError(Exception):
    """Earlier work takes all threads: this has not begun."""


class CachedReading(NamedTuple, Generic[T]):
    """What is known of a value.

    :param value: as it was read last; None before that
    :param age: seconds since then
    :param error: why the latest reading failed
    :param running: seconds since the reading began that has not ended; None where none is running
    """

    value: T | None
    age: float | None
    error: Exception | None
    running: float | None = None

    @property
    def failure(self) -> Exception | None:
        """Return why there is no new value: an error, or a server that does not answer."""
        if self.running is not None and self.running >= LATE_SECONDS:
            return TooSlowError()
        return self.error


class BackgroundCache(Generic[T]):
    """A value that is read again, in a separate thread, when somebody looks at one that is older than `max_age`.

    Only one thread reads it at a time, whatever the number of requests and however long it takes.

    :param read: reads the value
    :param max_age: in seconds
    """

    def __init__(self, read: Callable[[], T], max_age: float) -> None:
        self._read = read
        self._max_age = max_age
        self._changed = threading.Condition()
        self._value: T | None = None
        self._read_at: float | None = None
        self._error: Exception | None = None
        self._ended_at: float | None = None
        self._began_at: float | None = None

    def start(self) -> None:
        """Start a reading where the value is older than `max_age` and none is running."""
        with self._changed:
            is_fresh = self._ended_at is not None and time.monotonic() - self._ended_at < self._max_age
            if is_fresh or self._began_at is not None:
                return
            self._began_at = time.monotonic()
        threading.Thread(target=self._refresh, name="kafka-offsets-page", daemon=True).start()

    def look(self, deadline: float) -> CachedReading[T]:
        """Return what is known, after the running reading ends, or at the deadline if that is earlier.

        A reading that has run for longer than `PATIENCE_SECONDS` is not waited for: only the first pages after it began
        are late.

        :param deadline: by `time.monotonic()`
        """
        self.start()
        with self._changed:
            if self._began_at is not None:
                until = min(deadline, self._began_at + PATIENCE_SECONDS)
                self._changed.wait_for(lambda: self._began_at is None, max(0.0, until - time.monotonic()))
            now = time.monotonic()
            age, running = (None if since is None else now - since for since in (self._read_at, self._began_at))
            return CachedReading(self._value, age, self._error, running)

    def _refresh(self) -> None:
        value, error = self._value, None
        try:
            value = self._read()
        except Exception as failed:
            # The page shows it; the traceback may hold values of connections.
            log.warning("The page of the groups lacks what could not be read: %s", type(failed).__name__)
            error = failed
        with self._changed:
            now = time.monotonic()
            self._value, self._error, self._ended_at, self._began_at = value, error, now, None
            if error is None:
                self._read_at = now
            self._changed.notify_all()


class BoundedExecutor:
    """Work in threads of which a few run at a time: a server that does not answer occupies these, and a few threads of
    requests, of which Airflow has forty for everything.

    :param most: how many run at a time
    :param most_waiting: how many requests wait for one of these to end
    """

    def __init__(self, most: int, most_waiting: int) -> None:
        self._free = threading.BoundedSemaphore(most)
        self._waiting = threading.BoundedSemaphore(most_waiting)

    def run(self, work: Callable[[], T], seconds: float) -> T:
        """Return what the work returns.

        :raises TooBusyError: earlier work takes all threads, and the work has not begun
        :raises TooSlowError: it takes longer; it goes on
        """
        deadline = time.monotonic() + seconds
        if not self._free.acquire(blocking=False):
            self._wait(seconds)

        def run() -> T:
            try:
                return work()
            finally:
                self._free.release()

        future = in_background(run, "kafka-offsets-page")
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except FutureTimeoutError:
            if future.done():
                raise
            raise TooSlowError from None

    def _wait(self, seconds: float) -> None:
        if not self._waiting.acquire(blocking=False):
            raise TooBusyError
        try:
            if not self._free.acquire(timeout=seconds):
                raise TooBusyError
        finally:
            self._waiting.release()
