"""A spark-submit without Spark: the application's own loop in a process of its own, which stages jobs there.

Deploy mode `cluster`, which such a spark-submit takes for any master, has the jobs come through a mailbox.

What a job does in it is in its `group_id`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_kafka_offsets.spark import mailbox
from airflow_kafka_offsets.spark.job import StageJob
from devstack.process import wait_until
from tests.spark.test_package import JOB

# What a machine takes on which many other tests run.
SECONDS = 120.0

# Between heartbeats, and without any of them: a worker that stops for a while is not dead.
HEARTBEAT_SECONDS, DEAD_SECONDS = 0.5, 60.0

SUBMIT = """\
#!{python}
import json, os, signal, sys, time
from pathlib import Path
from airflow_kafka_offsets.exceptions import RecordError, StagingError
from airflow_kafka_offsets.spark import driver, mailbox

mailbox.HEARTBEAT_SECONDS, mailbox.DEAD_SECONDS = {seconds}
pause = mailbox.Mailbox._pause

def pause_or_give_up(self):
    if Path("{orphaned}").exists():
        mailbox.DEAD_SECONDS = 0.0
    pause(self)

mailbox.Mailbox._pause = pause_or_give_up

class Application(driver.Application):
    def stage(self, job, display):
        directory = Path(job.staging_uri)
        display.line(f"Batch {{job.batch_id}}: staged")
        process = {{
            "pid": os.getpid(), "properties": self._properties, "kafka": dict(job.kafka_config), "argv": arguments
        }}
        (directory / "process.tmp").write_text(json.dumps(process))
        (directory / "process.tmp").rename(directory / f"process-{{job.batch_id}}.json")
        if job.group_id == "hangs":
            time.sleep(600)
        elif job.group_id == "dies":
            os._exit(3)
        elif job.group_id == "raises":
            raise MemoryError("no room")
        elif job.group_id == "is_refused":
            raise StagingError("not like this")

    def is_stopped(self):
        return Path("{stopped}").exists()

driver.Application = Application
print("26/11/23 01:00:00 WARN Utils: Set SPARK_LOCAL_IP", flush=True)
arguments = sys.argv[[Path(one).name for one in sys.argv].index("application.py") + 1:]
status = driver.main(arguments)
print("26/11/23 01:00:09 WARN Utils: the end", flush=True)
sys.exit(status)
"""


class Submitted:
    """Jobs, and the processes that staged them."""

    def __init__(self, directory: Path, deploy_mode: str = "client") -> None:
        self.staging = directory / "staged" / "batch-1"
        self.staging.mkdir(parents=True)
        self.stopped = directory / "stopped"
        # Where it exists, a driver takes a worker that is silent for dead at once.
        self.orphaned = directory / "orphaned"
        programs = directory / "bin"
        programs.mkdir()
        self.program = programs / "spark3-submit"
        seconds = (HEARTBEAT_SECONDS, DEAD_SECONDS)
        script = SUBMIT.format(python=sys.executable, stopped=self.stopped, orphaned=self.orphaned, seconds=seconds)
        self._submit(script)
        extra = {"spark-binary": "spark3-submit", "deploy-mode": deploy_mode}
        connection = {"conn_type": "spark", "host": "local[2]", "extra": extra}
        self.environment = {"PATH": str(programs), "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection)}

    def _submit(self, script: str) -> None:
        self.program.write_text(script)
        self.program.chmod(0o755)

    def prints(self, output: bytes) -> None:
        """Let the application print something else before its first job."""
        script = self.program.read_text()
        self._submit(
            script.replace("status =", f"sys.stdout.buffer.write({output!r}); sys.stdout.flush()\nstatus =", 1)
        )

    def outlives_its_parent(self, until: Path) -> Path:
        """Let the driver be a child of what is submitted, and connect only when there is a file.

        :return: the file in which its process id is then
        """
        driver, pid = self.program.with_name("driver.py"), self.staging / "driver"
        wait = (
            f"Path({str(pid)!r}).write_text(str(os.getpid()))\n"
            f"while not Path({str(until)!r}).exists(): time.sleep(0.02)\n"
            "status ="
        )
        driver.write_text(self.program.read_text().replace("status =", wait, 1))
        self._submit(f'#!/bin/sh\n{sys.executable} {driver} "$@" &\nwait\n')
        return pid

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(mailbox, "HEARTBEAT_SECONDS", HEARTBEAT_SECONDS)
        monkeypatch.setattr(mailbox, "DEAD_SECONDS", DEAD_SECONDS)
        monkeypatch.setenv("PATH", self.environment["PATH"], prepend=":")
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", self.environment["AIRFLOW_CONN_SPARK_DEFAULT"])

    def job(self, batch_id: int, does: str = "is_staged", **others: Any) -> StageJob:
        return replace(JOB, batch_id=batch_id, group_id=does, tasks=(), staging_uri=str(self.staging), **others)

    def process(self, batch_id: int) -> dict[str, Any]:
        """What the process that had a job knew."""
        found: dict[str, Any] = json.loads((self.staging / f"process-{batch_id}.json").read_text())
        return found

    def pids(self, *batch_ids: int) -> list[int]:
        return [self.process(batch_id)["pid"] for batch_id in batch_ids]

    def has_begun(self, batch_id: int) -> bool:
        return (self.staging / f"process-{batch_id}.json").exists()


@contextmanager
def no_process_left() -> Iterator[None]:
    """Check that this process has no other children after the block than before it, such as the servers of the
    session.
    """
    before = psutil.Process().children()
    yield
    assert [child for child in psutil.Process().children() if child not in before] == []


class TimedOut(BaseException):
    """As Airflow's AirflowTaskTimeout, which is raised in the middle of a task by a signal."""


@contextmanager
def timed_out_when(condition: Callable[[], bool]) -> Iterator[None]:
    """Raise TimedOut in the main thread as soon as a condition holds, as the handler of a signal does."""

    def time_out(*_: object) -> None:
        raise TimedOut

    def signals() -> None:
        try:
            wait_until(condition, SECONDS, "the time to stop")
        finally:
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, time_out)
    thread = threading.Thread(target=signals)
    thread.start()
    try:
        with pytest.raises(TimedOut):
            yield
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
