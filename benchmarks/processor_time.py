"""The processor time of a load: that of this process, of all that it starts, and of the servers, which are its
children, too.

Seconds of the wall grow with what else the machine does; those of the processor hardly do. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

_PAUSE_SECONDS = 0.25
_PR_SET_CHILD_SUBREAPER = 36
_TICKS = os.sysconf("SC_CLK_TCK")


class _Process(NamedTuple):
    """A process. A number is used again, at another time."""

    pid: int
    started: int


class _Stat(NamedTuple):
    """
    :param ticks: of the process, and of those of its children that it has waited for
    :param ended: whether its parent has yet to wait for it
    """

    process: _Process
    parent: int
    ticks: int
    ended: bool


class ProcessorTime:
    """Measures the processor seconds of a block.

    The kernel adds the time of a process that ends to that of the process that waits for it, however short it was.
    Processes that outlive their parent become children of this one. The workers of PySpark's daemon are not waited for,
    because it ignores the signal of their end: such processes are looked at again and again, and what they take after
    the last look is not counted.

    At the end of the block, children that have ended and that nobody has waited for are removed.

    :ivar seconds: of the block, once it has ended
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._before: dict[_Process, _Stat] = {}
        self._unwaited: dict[_Process, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="processor time", daemon=True)

    def __enter__(self) -> Self:
        _adopt_orphans(True)
        self._before = _settled()
        self._look(self._before)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        after = _settled()
        _adopt_orphans(False)
        lost = sum(ticks for process, ticks in self._unwaited.items() if process not in after)
        self.seconds = (_sum(after) + lost - _sum(self._before)) / _TICKS
        for process in after.keys() - self._before.keys():
            if after[process].ended and after[process].parent == os.getpid():
                os.waitpid(process.pid, 0)

    def _look_on(self) -> None:
        while not self._stop.wait(_PAUSE_SECONDS):
            self._look(_own_and_below())

    def _look(self, found: dict[_Process, _Stat]) -> None:
        """Note the time of the processes that nobody will wait for."""
        ignoring = {parent for parent in {stat.parent for stat in found.values()} if _ignores_children(parent)}
        for process, stat in found.items():
            if stat.parent in ignoring:
                self._unwaited[process] = stat.ticks
            else:
                self._unwaited.pop(process, None)


def _sum(stats: dict[_Process, _Stat]) -> int:
    return sum(stat.ticks for stat in stats.values())


def _settled() -> dict[_Process, _Stat]:
    """Return this process and all below it, at a moment when none begins or ends: its time would be missing, or counted
    twice.
    """
    found = _own_and_below()
    while (again := _own_and_below()).keys() != found.keys():
        found = again
    return again


def _own_and_below() -> dict[_Process, _Stat]:
    stats = [stat for folder in Path("/proc").glob("[0-9]*") if (stat := _stat(folder)) is not None]
    children: dict[int, list[_Stat]] = {}
    for stat in stats:
        children.setdefault(stat.parent, []).append(stat)
    below = [stat for stat in stats if stat.process.pid == os.getpid()]
    for stat in below:  # which grows
        below += children.get(stat.process.pid, ())
    return {stat.process: stat for stat in below}


def _stat(folder: Path) -> _Stat | None:
    """Return what the kernel says of a process; None if it is gone."""
    try:
        text = (folder / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in parentheses, and may have any.
    state, parent, *rest = text[text.rindex(b")") + 2 :].split()
    return _Stat(_Process(int(folder.name), int(rest[17])), int(parent), sum(map(int, rest[9:13])), state == b"Z")


def _ignores_children(pid: int) -> bool:
    """Return whether the kernel forgets a process's children when they end."""
    try:
        status = Path("/proc", str(pid), "status").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False
    mask = int(status.partition(b"\nSigIgn:")[2].split(maxsplit=1)[0], 16)
    return bool(mask >> (signal.SIGCHLD - 1) & 1)


def _adopt_orphans(adopt: bool) -> None:
    """Set whether processes below this one become its children when their parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
