"""Ends of a submitted application that are seldom met: nobody waits for them, and no process stays."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from airflow_kafka_offsets.hooks.spark_application import ApplicationEndedError
from airflow_kafka_offsets.spark.jobs import SocketJobs
from devstack.process import wait_until
from tests.support.submitted import Submitted, no_process_left

SECONDS = 20.0


class TimedOut(BaseException):
    """As Airflow's."""


@pytest.fixture(params=["client", "cluster"], ids=["socket", "mailbox"])
def submitted(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submitted:
    submitted = Submitted(tmp_path, request.param)
    submitted.install(monkeypatch)
    return submitted


@pytest.fixture
def launcher() -> Iterator[SparkSubmitLauncher]:
    launcher = SparkSubmitLauncher("spark_default")
    with no_process_left():
        yield launcher
        launcher.close()


@contextmanager
def timed_out_when(condition: Callable[[], bool]) -> Iterator[None]:
    """Raise TimedOut in the main thread as soon as a condition holds, as the handler of a signal does."""

    def time_out(*_: object) -> None:
        raise TimedOut

    def signals() -> None:
        wait_until(condition, SECONDS, "the time to stop")
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


def within_seconds(work: Callable[[], object]) -> object:
    """Return what a function returns; where it hangs, kill what it waits for."""
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(SECONDS)
    if thread.is_alive():
        for process in psutil.Process().children(recursive=True):
            process.kill()
    assert results, "it hangs, or has raised"
    return results[0]


def test_lines_that_are_no_text_do_not_end_the_log(
    submitted: Submitted, launcher: SparkSubmitLauncher, caplog: pytest.LogCaptureFixture
) -> None:
    """As a library may print them. A pipe that nobody reads from would be full soon, and the application wait for
    ever.
    """
    submitted.prints(b"\xff\xfe caf\xe9\n" + b"as many lines as no pipe holds\n" * 5_000)
    with caplog.at_level("INFO"):
        within_seconds(lambda: launcher(submitted.job(1)))
    assert "Batch 1: staged" in caplog.messages


def test_a_driver_that_outlives_its_jvm_finds_nobody(
    submitted: Submitted, launcher: SparkSubmitLauncher, tmp_path: Path
) -> None:
    """It is only about to connect when spark-submit is killed, and has the pipe of the log open."""
    pid, children = submitted.outlives_its_parent(until=tmp_path / "killed"), psutil.Process().children()

    def is_killed() -> bool:
        """Whether the shell, in place of Java, has ended, whose status nobody has taken yet."""
        started = [process for process in psutil.Process().children() if process not in children]
        return all(process.status() == psutil.STATUS_ZOMBIE for process in started)

    def go() -> None:
        wait_until(pid.exists, SECONDS, "the driver")
        wait_until(is_killed, SECONDS, "the kill")
        (tmp_path / "killed").touch()

    going = threading.Thread(target=go)
    going.start()
    with timed_out_when(pid.exists):
        launcher(submitted.job(1))
    going.join()
    wait_until(lambda: not psutil.pid_exists(int(pid.read_text())), SECONDS, "the end of the driver")


def test_a_driver_ends_when_the_launcher_is_gone_before_it_sent_anything(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "jobs"))
        listener.listen(1)
        jobs = SocketJobs(str(tmp_path / "jobs"))
    try:
        assert within_seconds(lambda: list(jobs.lines())) == []
    finally:
        jobs._socket.close()


def test_a_driver_that_gets_what_is_no_text_ends(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "jobs"))
        listener.listen(1)
        jobs = SocketJobs(str(tmp_path / "jobs"))
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"job\n\xff\n")
    try:
        assert within_seconds(lambda: list(jobs.lines())) in ([], ["job\n"])
    finally:
        jobs._socket.close()


def test_ended_application_is_not_read_further(submitted: Submitted, launcher: SparkSubmitLauncher) -> None:
    launcher(submitted.job(1))
    (pid,) = submitted.pids(1)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid), SECONDS, "its end")
    application = launcher._application
    assert application is not None
    wait_until(lambda: application.has_ended, SECONDS, "the end of its log")
    began = time.monotonic()
    with pytest.raises(ApplicationEndedError):
        application.stage(submitted.job(2))
    assert time.monotonic() - began < 4.0
