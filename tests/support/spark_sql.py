"""A Spark of its own that executes SQL: another engine, which reads and writes the tables that loads write."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from devstack.spark_jars import ConnectedSpark

_SESSION = """
import json, sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[2]")
for name, value in json.loads(sys.stdin.readline()).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
for statement in sys.stdin:
    try:
        answer = [list(row) for row in spark.sql(json.loads(statement)).collect()]
    except Exception as error:
        answer = {"error": str(error)}
    print("answer", json.dumps(answer, default=str), flush=True)
spark.stop()
"""

_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
}


class SparkSql:
    """Executes SQL. It is a context manager.

    :param conf: properties of the session, besides those of the connectors
    :param jars: besides those of the connectors
    """

    def __init__(self, spark: ConnectedSpark, conf: Mapping[str, str], *jars: str) -> None:
        self._conf = _CONF | spark.conf | {"spark.jars": ",".join([spark.jars, *jars])} | dict(conf)
        (py4j,) = (spark.home / "python" / "lib").glob("py4j-*.zip")
        self._env = spark.env | {"PYTHONPATH": f"{spark.home.parent}:{py4j}"}

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile("w+")
        self._directory = tempfile.TemporaryDirectory(prefix="spark-sql-")
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SESSION],
            stdin=pipe,
            stdout=pipe,
            stderr=self._log,
            text=True,
            env=self._env,
            cwd=self._directory.name,
        )
        self._send(self._conf)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()  # which ends it
        self._process.wait(60)
        self._process.stdout.close()
        self._log.close()
        self._directory.cleanup()

    def __call__(self, statement: str) -> list[tuple[Any, ...]]:
        """Execute a statement, and return its rows; dates and decimals are texts.

        :raises RuntimeError: Spark refused it, or ended
        """
        self._send(statement)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        while line and not line.startswith("answer "):  # what Delta prints
            line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise RuntimeError(f"Spark ended:\n{self._log.read()[-5000:]}")
        answer = json.loads(line.removeprefix("answer "))
        if isinstance(answer, dict):
            raise RuntimeError(f"{statement}: {answer['error']}")
        return [tuple(row) for row in answer]

    def _send(self, message: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()


@contextmanager
def inserting(insert: Callable[[int], object]) -> Iterator[list[int]]:
    """Insert rows with the ids -1, -2, … until the block ends; yield the ids of those that are there.

    :raises Exception: what an insert raised
    """
    inserted: list[int] = []
    stopped = threading.Event()

    def insert_until_stopped() -> None:
        while not stopped.is_set():
            id_ = -1 - len(inserted)
            insert(id_)
            inserted.append(id_)

    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(insert_until_stopped)
        try:
            yield inserted
        finally:
            stopped.set()
        done.result()
