"""The processor time of a load: that of this process, of all that it starts, and of the servers, which are its children, too.

Seconds of the wall grow with what else the machine does; those of the processor hardly do.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import psutil

# What a process takes after the last look before its end is not counted.
_PAUSE_SECONDS = 0.1

_Process = tuple[int, float]


class ProcessorTime:
    """Measures the processor seconds of a block, by looking at all processes again and again.

    :ivar seconds: of the block, once it has ended
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._before: dict[_Process, float] = {}
        self._last: dict[_Process, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="processor time", daemon=True)

    def __enter__(self) -> Self:
        self._before = _times()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self._last |= _times()
        self.seconds = sum(seconds - self._before.get(process, 0.0) for process, seconds in self._last.items())

    def _look_on(self) -> None:
        while not self._stop.wait(_PAUSE_SECONDS):
            self._last |= _times()


def _times() -> dict[_Process, float]:
    """Return the processor seconds of this process and of all below it. A number is used again, at another time."""
    own = psutil.Process()
    times = {}
    for process in (own, *own.children(recursive=True)):
        try:
            used = process.cpu_times()
            times[process.pid, process.create_time()] = used.user + used.system
        except psutil.NoSuchProcess:
            continue
    return times
