"""The child process that decodes records, forked from a process that has already imported what it needs.

A replay of dead letters without Spark starts one for each batch, and spends most of its time on the imports.
"""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from airflow_kafka_offsets.spark import isolation
from tests.support.forks import Forked, ForkServer, serve


def popen(command: list[str], *, pass_fds: list[int], env: dict[str, str], **_: Any) -> Forked:
    """Start a child as `subprocess.Popen` does for `isolation`."""
    return _server(env["ARROW_DEFAULT_MEMORY_POOL"]).fork(command, {"env": env, "cwd": str(Path.cwd())}, *pass_fds)


subprocess_of_children = SimpleNamespace(
    Popen=popen, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
)
"""What `isolation` uses of the module `subprocess`."""


@cache
def _server(memory_pool: str) -> ForkServer:
    return ForkServer(__name__, os.environ | {"ARROW_DEFAULT_MEMORY_POOL": memory_pool})


def stop_server() -> None:
    """Stop the server if it was started."""
    if _server.cache_info().currsize:
        _server("system").close()
        _server.cache_clear()


def _import() -> None:
    import pyarrow as pa

    pa.array([0])


def _run(request: dict[str, Any], connection: int) -> NoReturn:
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    child = isolation._CHILD.replace("int(sys.argv[1])", str(connection))
    try:
        exec(child, {})
    finally:
        os._exit(1)


if __name__ == "__main__":
    serve(_import, _run)
