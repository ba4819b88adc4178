"""Server processes that cannot outlive this process, and waiting for conditions."""

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

    :param condition: called at each interval; its exceptions end the wait
    :param timeout: seconds
    :param what: completes the sentence "waited N s for …"
    :param interval: seconds between two calls
    :param details: called on a time-out; its text is added to the error
    :raises TimeoutError: the condition never held
    """
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:g} s for {what}" + (f"\n{details()}" if details else ""))
        time.sleep(interval)
    return value


def listens(port: int) -> bool:
    """Return whether a server on this machine accepts connections at a port."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1.

    It is below the range from which Linux (32768 and up) and macOS (49152 and up) take the local ports of outgoing
    connections. The port of a stopped server is therefore still free when the server starts again.
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
    """Return whether a process of this id runs. A zombie does not run."""
    return any(process.pid == pid for process in process_table())


class ServerProcess:
    """A server process under a supervisor (see :mod:`devstack.supervise`), with its output in a file.

    As a context manager it starts on entry and stops on exit. It can be started again after it has ended.

    :param name: for messages
    :param command: program and arguments
    :param log: file that gets standard output and standard error, appended to
    :param env: the complete environment; None is ours
    :param scratch: working directory; it is removed if this process dies without stopping
    :param user: run as this user (only root can)
    :param stop_signal: the signal for an orderly shutdown
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
        """Start the process. Do not wait until the server is ready."""
        if self.running:
            raise RuntimeError(f"{self.name} runs already, as process {self.pid}")
        # -I -S: the supervisor ignores Python's environment variables, and starts faster.
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
        """Shut down in order, or kill the server after ``timeout`` seconds. Return when it has ended."""
        if self._supervisor is not None and self.signal(self.stop_signal):
            self.resume()  # a paused process would not handle the signal
            try:
                self._supervisor.wait(timeout)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
        self._reap()

    def kill(self) -> None:
        """Send SIGKILL to the server and its descendants. Return when all have ended."""
        self.signal(signal.SIGKILL)
        self._reap()

    def pause(self) -> None:
        """Send SIGSTOP to the whole tree: connections stay open, requests get no answer."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT to the whole tree."""
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal through the supervisor. Return False if the server has ended already."""
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
        """Whether the server's process exists. It may be paused."""
        return self._supervisor is not None and self._supervisor.poll() is None

    @property
    def exit_status(self) -> int | None:
        """The exit status of the last run, 128 plus the number for a signal; None while it runs."""
        return None if self._supervisor is None else self._supervisor.poll()

    def wait_until(self, condition: Callable[[], T], timeout: float, what: str) -> T:
        """Wait like :func:`wait_until`, but fail at once if the server ends. Errors contain the tail of its log.

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
        """Return the end of the log, with a headline."""
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
