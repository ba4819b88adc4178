"""A server as a child process that cannot outlive us, and waiting for conditions instead of sleeping."""

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

from devstack.supervise import process_table

T = TypeVar("T")

LOG_TAIL_LINES = 40


def wait_until(
    condition: Callable[[], T],
    timeout: float,
    what: str,
    *,
    interval: float = 0.05,
    details: Callable[[], str] | None = None,
) -> T:
    """Poll until a condition holds, and return its first true value.

    :param condition: called again and again; exceptions it raises end the wait
    :param timeout: seconds
    :param what: completes the sentence "waited N s for …"
    :param interval: seconds between two looks
    :param details: called on a time-out, for what helps to find the reason
    :raises TimeoutError: the condition never held
    """
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:g} s for {what}" + (f"\n{details()}" if details else ""))
        time.sleep(interval)
    return value


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on.

    From below the range in which Linux (32768 and up) and macOS (49152 and up) pick the local ports of outgoing
    connections: a server that is stopped for a while finds its port free when it comes back.
    """
    for port in random.SystemRandom().sample(range(15_000, 32_000), 100):
        with socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port between 15000 and 32000 on 127.0.0.1")


def pid_running(pid: int) -> bool:
    """Whether a process of this id runs; one that ended and was not yet waited for does not."""
    return any(process.pid == pid for process in process_table())


class ServerProcess:
    """A server below a supervisor of ours (see :mod:`devstack.supervise`), with its output in a file.

    As a context manager it starts on entry and stops on exit; it can be started again after it ended.

    :param name: for messages
    :param command: program and arguments
    :param log: file that gets standard output and standard error, appended to
    :param env: the complete environment; ours where it is None
    :param scratch: working directory, with nothing of value in it: it is removed should we die without stopping
    :param user: run as this user (only root can)
    :param stop_signal: the signal that the server takes as "shut down in order"
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        scratch: Path | None = None,
        user: str | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.env = env
        self.scratch = scratch
        self.user = user
        self.stop_signal = stop_signal
        self.pid = 0
        self._supervisor: subprocess.Popen[str] | None = None
        self._talking = threading.Lock()

    def start(self) -> Self:
        """Start the process; whether the server is ready is for the caller to find out."""
        if self.running:
            raise RuntimeError(f"{self.name} runs already, as process {self.pid}")
        # -I -S: nothing of the environment may keep the supervisor from starting, and it starts faster.
        supervise = [sys.executable, "-I", "-S", str(Path(__file__).with_name("supervise.py"))]
        supervise += ["--user", self.user] if self.user else []
        supervise += ["--scratch", str(self.scratch)] if self.scratch else []
        with self.log.open("ab") as log:
            self._supervisor = subprocess.Popen(
                [*supervise, *self.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
                env=self.env,
                cwd=self.scratch,
                # A kill of our process group must leave the supervisor, which then cleans up.
                start_new_session=True,
            )
        self.pid = int(self._answer() or 0)
        if not self.pid:
            raise RuntimeError(f"{self.name} did not start\n{self.log_tail()}")
        return self

    def stop(self, timeout: float = 30) -> None:
        """Shut down in order, and by force when that takes longer than ``timeout`` seconds; returns when it is gone."""
        if self._supervisor is not None and self.signal(self.stop_signal):
            self.resume()  # a paused process would leave the request pending
            try:
                self._supervisor.wait(timeout)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
        self._reap()

    def kill(self) -> None:
        """SIGKILL to the server and everything below it; returns when nothing of it runs any more."""
        self.signal(signal.SIGKILL)
        self._reap()

    def pause(self) -> None:
        """SIGSTOP to the whole tree: connections stay open and nobody answers."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT to the whole tree."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> bool:
        """Have the supervisor send a signal; False when the server has ended already."""
        with self._talking:
            if self._supervisor is None or self._supervisor.poll() is not None:
                return False
            assert self._supervisor.stdin is not None
            try:
                self._supervisor.stdin.write(number.name.removeprefix("SIG") + "\n")
            except BrokenPipeError:
                return False
            return self._answer() == "ok"

    @property
    def running(self) -> bool:
        """Whether the server's process exists (it may be paused)."""
        return self._supervisor is not None and self._supervisor.poll() is None

    @property
    def exit_status(self) -> int | None:
        """The exit status of the last run, 128 plus the number for a signal; None while it runs."""
        return None if self._supervisor is None else self._supervisor.poll()

    def wait_until(self, condition: Callable[[], T], timeout: float, what: str) -> T:
        """Like :func:`wait_until`, but fails at once when the server ends, and with the tail of its log.

        :raises RuntimeError: the server ended
        :raises TimeoutError: the condition never held
        """

        def alive_and_condition() -> T:
            if not self.running:
                raise RuntimeError(
                    f"{self.name} ended with status {self.exit_status} while we waited for {what}\n{self.log_tail()}"
                )
            return condition()

        return wait_until(alive_and_condition, timeout, what, details=self.log_tail)

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The end of the log, with a headline."""
        if not self.log.exists():
            return f"({self.name} has no log)"
        tail = self.log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join([f"--- end of the log of {self.name} ({self.log})", *tail])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answer(self) -> str:
        assert self._supervisor is not None
        assert self._supervisor.stdout is not None
        return self._supervisor.stdout.readline().strip()

    def _reap(self) -> None:
        if self._supervisor is not None:
            self._supervisor.wait()
            for pipe in (self._supervisor.stdin, self._supervisor.stdout):
                if pipe is not None:
                    pipe.close()
