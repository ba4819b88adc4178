"""Processes that are forked from one which has already imported what they need.

A module whose processes these are ends with a call of `serve`, and is run by a `ForkServer`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any, NoReturn

_MAX_REQUEST = 1 << 20
_MAX_FDS = 3


class Forked:
    """What tests use of :class:`subprocess.Popen`."""

    stdout: IO[str] | None = None
    stderr: IO[str] | None = None

    def __init__(self, args: list[str], status: IO[bytes]) -> None:
        self.args = args
        self.returncode: int = 0
        self._status = status
        self._ended = False
        self.pid = int(status.readline())

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self.returncode if self._wait(0.0) else None

    def wait(self, timeout: float | None = None) -> int:
        """
        :raises subprocess.TimeoutExpired: the process still runs after ``timeout`` seconds
        """
        if not self._wait(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return self.returncode

    def kill(self) -> None:
        """Kill the process, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _wait(self, timeout: float | None) -> bool:
        if not self._ended and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(self._status.readline())
            self._ended = True
            self._status.close()
        return self._ended


class ForkServer:
    """A process that forks others.

    :param module: the name of the one that it runs
    :param env: of the process
    """

    def __init__(self, module: str, env: Mapping[str, str] | None = None) -> None:
        self._socket, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env=env,
        )
        theirs.close()

    def fork(self, args: list[str], request: Mapping[str, Any], *fds: int) -> Forked:
        """Fork a process.

        :param args: what it is called
        :param request: what `serve` passes on in it, with the files
        """
        ours, theirs = os.pipe()
        socket.send_fds(self._socket, [json.dumps(request).encode()], [*fds, theirs])
        os.close(theirs)
        return Forked(args, os.fdopen(ours, "rb", buffering=0))

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


def serve(prepare: Callable[[], None], run: Callable[..., NoReturn]) -> None:
    """Fork a process for each request of the `ForkServer` that runs this module, until that closes.

    :param prepare: imports what they need; it leaves no thread and no connection, which a fork would lack or share
    :param run: is the process, and takes a request and its files
    """
    requests = socket.socket(fileno=int(sys.argv[1]))
    prepare()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, fds, _, _ = socket.recv_fds(requests, _MAX_REQUEST, _MAX_FDS)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            _watch(run, json.loads(message), *fds)
        for fd in fds:
            os.close(fd)


def _watch(run: Callable[..., NoReturn], request: dict[str, Any], *fds: int) -> NoReturn:
    """Fork the process, and write its process id, and later its exit status, to the last file, which is a pipe."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *others, status = fds
    pid = os.fork()
    if pid == 0:
        os.close(status)
        run(request, *others)
    os.write(status, f"{pid}\n".encode())
    for fd in others:
        os.close(fd)
    _, ended = os.waitpid(pid, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)
