"""Runs of the DAG under test with the real `airflow` command, each a process group that a test may kill."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from devstack.kafka import KafkaBroker
from devstack.process import wait_until
from tests.support.warm_airflow import WarmAirflowHome

DAGS = Path(__file__).parent / "dags"
TIMEOUT = 180.0


class Run:
    """`airflow dags test` of one run, begun and not awaited."""

    def __init__(self, home: WarmAirflowHome, date: str) -> None:
        self._output: IO[str] = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self.process = home.popen("dags", "test", "load_under_test", date, stdout=self._output)

    def kill(self) -> None:
        """SIGKILL to the process group: the task, spark-submit, Spark and its Python workers."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> tuple[int, str]:
        """Wait for its end; the exit status, and all that it printed."""
        status = self.process.wait(timeout=TIMEOUT)
        return status, self.output()

    def output(self) -> str:
        self._output.flush()
        self._output.seek(0)
        return self._output.read()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something is so, and fail at once where the run ends before."""

        def seen() -> bool:
            if condition():
                return True
            assert self.process.poll() is None, f"the run ended before {what}:\n{self.output()[-5000:]}"
            return False

        wait_until(seen, TIMEOUT, what)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.kill()
        self._output.close()


class Runs:
    """An Airflow home whose runs of the DAG under test load topics into a database."""

    def __init__(self, home: WarmAirflowHome) -> None:
        self.home = home
        self._runs: list[Run] = []

    def begin(self, date: str = "2026-01-01", **options: Any) -> Run:
        """Begin a run; the same date is the same task instance, another date another run."""
        self.home.env["LOAD_UNDER_TEST"] = json.dumps(options)
        # A transform beside the DAG imports the DAG's file, on Spark too.
        self.home.env["AIRFLOW__KAFKA_OFFSETS__SPARK_ENVIRONMENT"] = "LOAD_UNDER_TEST"
        run = Run(self.home, date)
        self._runs.append(run)
        return run

    def close(self) -> None:
        for run in self._runs:
            run.close()


@contextmanager
def airflow_runs(
    kafka: KafkaBroker, warehouse: str, *, spark: str = "local[2]", config: dict[str, Any] | None = None
) -> Iterator[Runs]:
    """
    :param warehouse: what AIRFLOW_CONN_WAREHOUSE says
    :param config: librdkafka settings of the connection
    """
    extra = {"bootstrap.servers": kafka.bootstrap_servers, **(config or {})}
    connections = {
        "kafka_default": json.dumps({"conn_type": "kafka", "extra": extra}),
        "spark_default": json.dumps({"conn_type": "spark", "host": spark}),
        "warehouse": warehouse,
    }
    with WarmAirflowHome(dags=DAGS, connections=connections) as home:
        runs = Runs(home)
        try:
            yield runs
        finally:
            runs.close()


def airflow_uri(engine: Engine) -> str:
    """A connection of Airflow's to the database of an engine."""
    return engine.url.set(drivername="postgres").render_as_string(hide_password=False)


def waits_for_a_lock(engine: Engine, statement: str) -> bool:
    """Whether a session of the database waits, in a statement that begins so, for a lock that somebody else holds."""
    query = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND starts_with(query, :statement)"
    )
    with engine.connect() as conn:
        return bool(conn.scalar(sa.text(query), {"statement": statement}))


@contextmanager
def locked(engine: Engine, table: str, mode: str) -> Iterator[None]:
    """Hold a lock, so that another process stops exactly where it first wants what the lock forbids."""
    with engine.connect() as conn, conn.begin():
        conn.execute(sa.text(f"LOCK TABLE {table} IN {mode} MODE"))
        yield
