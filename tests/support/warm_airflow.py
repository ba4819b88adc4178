"""The `airflow` command, forked from a process that has already imported Airflow.

An `airflow dags test` spends most of its processor time on imports and on building the execution API before its first
task starts. For tests whose subject is what the command does, a server does this once; every command is a fork of it
with the environment, the configuration and the metadata database of the home that runs it. A test whose subject is the
process itself uses `AirflowHome`.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

from devstack.airflow import AirflowHome, command_line
from tests.support.forks import Forked, ForkServer, serve

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
    ) -> Forked:
        """As :meth:`AirflowHome.popen`, with files in place of pipes."""
        errors = stdout if isinstance(stderr, int) else stderr
        request = {"directory": str(self.directory), "env": self.env, "arguments": arguments}
        command = _server().fork(command_line(*arguments), request, stdout.fileno(), errors.fileno())
        self._commands.append(command)
        return command


@cache
def _server() -> ForkServer:
    return ForkServer(__name__)


def stop_server() -> None:
    """Stop the server if it was started."""
    if _server.cache_info().currsize:
        _server().close()
        _server.cache_clear()


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
        if (arguments := request["arguments"])[0] == "-c":
            exec(arguments[1], {"__name__": "__main__"})
        else:
            run_command(*arguments)
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


def run_command(*arguments: str) -> None:
    """Run a command of Airflow's in this process.

    :raises SystemExit: it ended with another status than 0
    """
    sys.argv = command_line(*arguments)
    of_airflow = Path(sys.argv[0]).name == "airflow"
    import_module("airflow.__main__" if of_airflow else "airflow_kafka_offsets.cli.program").main()


def _import_airflow() -> None:
    """Import what commands import, and build the execution API. No thread and no connection may be there when it
    forks.
    """
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
    serve(_import_airflow, _run)
