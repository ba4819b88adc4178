"""The `airflow` command, forked from a process that has already imported Airflow.

An `airflow dags test` spends most of its processor time on imports and on building the execution API before its first
task starts. For tests whose subject is what the command does, a server does this once; every command is a fork of it
with the environment, the configuration and the metadata database of the home that runs it. A test whose subject is the
process itself uses `AirflowHome`.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from functools import cache
from typing import IO, Any, NoReturn

from devstack.airflow import AirflowHome

_MAX_REQUEST = 1 << 20
_DAGS_TEST = (
    "airflow.cli.commands.dag_command",
    "airflow.sdk.execution_time.task_runner",
    "alembic.command",
    "sqlalchemy.dialects.postgresql.psycopg",
)


class WarmAirflowHome(AirflowHome):
    """As :class:`AirflowHome`; its commands start in a moment."""

    def run_code(self, code: str) -> subprocess.CompletedProcess[str]:
        """Run Python code as a command, as `python -c` does in the environment of the home."""
        return self.run("-c", code)

    def popen(  # type: ignore[override]
        self, *arguments: str, stdout: IO[Any], stderr: int | IO[Any] = subprocess.STDOUT
    ) -> ForkedCommand:
        """As :meth:`AirflowHome.popen`, with files in place of pipes."""
        errors = stdout if isinstance(stderr, int) else stderr
        command = _server().fork(self, arguments, stdout.fileno(), errors.fileno())
        self._commands.append(command)
        return command


class ForkedCommand:
    """What tests use of :class:`subprocess.Popen`. The process is the leader of its group."""

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

    def _wait(self, timeout: float | None) -> bool:
        if not self._ended and select.select([self._status], [], [], timeout)[0]:
            self.returncode = int(self._status.readline())
            self._ended = True
            self._status.close()
        return self._ended


class _Server:
    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()

    def fork(self, home: AirflowHome, arguments: tuple[str, ...], stdout: int, stderr: int) -> ForkedCommand:
        ours, theirs = os.pipe()
        request = {"directory": str(home.directory), "env": home.env, "arguments": arguments}
        socket.send_fds(self._socket, [json.dumps(request).encode()], [stdout, stderr, theirs])
        os.close(theirs)
        return ForkedCommand(["airflow", *arguments], os.fdopen(ours, "rb", buffering=0))

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


@cache
def _server() -> _Server:
    return _Server()


def stop_server() -> None:
    """Stop the server if it was started."""
    if _server.cache_info().currsize:
        _server().close()
        _server.cache_clear()


def _serve(requests: socket.socket) -> None:
    _import_airflow()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, fds, _, _ = socket.recv_fds(requests, _MAX_REQUEST, 3)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            _watch(json.loads(message), *fds)
        for fd in fds:
            os.close(fd)


def _watch(request: dict[str, Any], stdout: int, stderr: int, status: int) -> NoReturn:
    """Fork the command, and write its process id, and later its exit status, to a pipe."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(status)
        _run(request, stdout, stderr)
    os.write(status, f"{pid}\n".encode())
    os.close(stdout)
    os.close(stderr)
    _, ended = os.waitpid(pid, 0)
    os.write(status, f"{os.waitstatus_to_exitcode(ended)}\n".encode())
    os._exit(0)


def _run(request: dict[str, Any], stdout: int, stderr: int) -> NoReturn:
    os.setsid()
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    status: Any = 1
    try:
        _configure_airflow(request["directory"])
        _command(*request["arguments"])
        status = 0
    except SystemExit as end:
        status = end.code
        if isinstance(status, str):
            sys.stderr.write(f"{status}\n")
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status or 0)


def _command(*arguments: str) -> None:
    sys.argv = ["airflow", *arguments]
    if arguments[0] == "-c":
        exec(arguments[1], {"__name__": "__main__"})
        return
    from airflow.__main__ import main

    main()  # type: ignore[no-untyped-call]


def _import_airflow() -> None:
    """Import what commands import, and build the execution API. No thread and no connection may be there when it
    forks.
    """
    from importlib import import_module

    from airflow.cli.cli_parser import get_parser
    from airflow.sdk.execution_time.supervisor import in_process_api_server

    for name in _DAGS_TEST:
        import_module(name)
    get_parser()
    asyncio.run(_ask_for_nothing(in_process_api_server().app))


async def _ask_for_nothing(app: Any) -> None:
    """Have an API build its routes for all its versions, which the first request does."""
    import httpx

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://in-process") as client:
        assert (await client.get("/nothing")).status_code == httpx.codes.NOT_FOUND


def _configure_airflow(home: str) -> None:
    from airflow import configuration, settings  # noqa: TID251 - a home's metadata database is its own
    from airflow.providers.common.compat.sdk import conf

    configuration.AIRFLOW_HOME = home
    configuration.AIRFLOW_CONFIG = f"{home}/airflow.cfg"
    for parser in (configuration.conf, conf):
        parser.read(configuration.AIRFLOW_CONFIG)
    settings.initialize()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
