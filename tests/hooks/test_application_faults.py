"""Ends of a submitted application that are seldom met: nobody waits for them, and no process stays."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError
from airflow_kafka_offsets.hooks.job_channel import MailboxChannel
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from airflow_kafka_offsets.hooks.spark_application import ApplicationEndedError, ApplicationLauncher
from airflow_kafka_offsets.hooks.spark_log import CollapsedLog
from airflow_kafka_offsets.loading.stage import launch
from airflow_kafka_offsets.spark import mailbox
from airflow_kafka_offsets.spark.failures import report_failure
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.jobs import ANSWER, Answer, SocketJobs
from airflow_kafka_offsets.spark.mailbox import Mailbox
from airflow_kafka_offsets.staging.directory import StagingDirectory
from devstack.process import wait_until
from tests.spark.test_package import JOB
from tests.support.submitted import SECONDS, Submitted, no_process_left, timed_out_when


@pytest.fixture(params=["client", pytest.param("cluster", marks=pytest.mark.long)], ids=["socket", "mailbox"])
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


@pytest.mark.parametrize("submitted", ["client", "cluster"], indirect=True, ids=["socket", "mailbox"])
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


def test_ended_application_gets_no_job(
    submitted: Submitted, launcher: SparkSubmitLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher(submitted.job(1))
    (pid,) = submitted.pids(1)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid), SECONDS, "its end")
    application = launcher._application
    assert application is not None
    wait_until(lambda: application.has_ended, SECONDS, "the end of its log")
    sent: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(application._channel, "send", sent.append)
        with pytest.raises(ApplicationEndedError):
            application.stage(submitted.job(2))
    assert sent == []


class Service(ApplicationLauncher):
    """A service whose run ends when it is killed, or by itself.

    :param directory: of attempts
    :param begin: has the driver do something, when the run is submitted
    """

    def __init__(self, directory: Path, begin: Callable[[Service], None], *, ends: bool = False) -> None:
        super().__init__("service")
        self.mailbox, self.killed = StagingDirectory(str(directory / "mailbox-1")), threading.Event()
        self.token = ""
        self._begin, self._ends = begin, ends

    def _open(self, job: StageJob, folded: CollapsedLog, stack: ExitStack) -> tuple[Service, MailboxChannel]:
        channel = stack.enter_context(MailboxChannel(self.mailbox, folded.show_sent))
        self.token = channel.arguments[1]
        return self, channel

    def run(self) -> None:
        self._begin(self)
        if not self._ends:
            self.killed.wait()
        raise StagingError("Run 1 failed: FAILED")

    def kill(self) -> None:
        self.killed.set()

    def check(self, staging_dir: str | None) -> None:
        """Do nothing."""


@pytest.fixture
def job(tmp_path: Path) -> StageJob:
    (tmp_path / "attempt").mkdir()
    return replace(JOB, staging_uri=str(tmp_path / "attempt"))


def test_a_driver_without_a_library_is_in_the_error(tmp_path: Path, job: StageJob) -> None:
    service = Service(tmp_path, lambda service: service.mailbox.write_text("driver-00000000", mailbox._NO_LIBRARY))
    with pytest.raises(ConfigurationError, match="has no module 'cryptography'"):
        launch(service, job, StagingDirectory(job.staging_uri))
    service.close()
    assert [file.name for file in tmp_path.iterdir()] == ["attempt"]


def test_what_the_application_reports_comes_before_why_a_service_failed_it(tmp_path: Path, job: StageJob) -> None:
    service = Service(tmp_path, lambda _: report_failure(job, ConfigurationError("no pyarrow")), ends=True)
    with pytest.raises(ConfigurationError, match=r"^no pyarrow$"):
        launch(service, job, StagingDirectory(job.staging_uri))
    service.close()


def test_what_a_run_answered_before_its_end_is_received(
    tmp_path: Path, job: StageJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker reads it only after it has noticed the end: its store is slow."""
    read, settle, is_noticed = Mailbox._read, Mailbox.settle, threading.Event()

    def late(self: Mailbox) -> str | None:
        return read(self) if self._own == "driver" or is_noticed.is_set() else None

    def settles(self: Mailbox) -> None:
        is_noticed.set()
        settle(self)

    def stage(service: Service) -> None:
        driver = Mailbox.of_driver(service.mailbox, service.token)
        jobs = driver.messages()
        assert json.loads(next(jobs)[1:]) == {}
        assert next(jobs)[1:] == job.to_text()
        for answer in (Answer.BEGUN, Answer.DONE):
            driver.send(ANSWER + answer.value.decode())

    monkeypatch.setattr(Mailbox, "_read", late)
    monkeypatch.setattr(Mailbox, "settle", settles)
    service = Service(tmp_path, stage, ends=True)
    service(job)
    service.close()
    assert is_noticed.is_set()


def test_a_mailbox_that_cannot_be_removed_fails_no_load(
    tmp_path: Path, job: StageJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: StagingDirectory) -> None:
        raise OSError("503 Slow Down")

    monkeypatch.setattr(StagingDirectory, "remove", fails)
    service = Service(tmp_path, lambda _: None, ends=True)
    with pytest.raises(StagingError, match="Run 1 failed"):
        launch(service, job, StagingDirectory(job.staging_uri))
    service.close()
    assert "mailbox-1 could not be removed: 503 Slow Down" in caplog.text


@pytest.mark.parametrize("moment", ["between jobs", "within a job"])
def test_a_run_whose_driver_is_silent_is_stopped(
    tmp_path: Path, job: StageJob, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The service says for ever that it runs. A second run stages a job that the first one cannot have."""

    def stage_one(service: Service) -> None:
        driver = Mailbox.of_driver(service.mailbox, service.token)
        for answer in (Answer.BEGUN, Answer.DONE):
            driver.send(ANSWER + answer.value.decode())

    service = Service(tmp_path, stage_one)
    service(job)
    first = service._application
    assert first is not None
    if moment == "between jobs":
        monkeypatch.setattr(mailbox, "DEAD_SECONDS", 0.0)
        wait_until(lambda: first._channel.error is not None, SECONDS, "the silence")
        with pytest.raises(ApplicationEndedError):
            first.stage(job)
    else:
        send = MailboxChannel.send

        def sent_to_nobody(self: MailboxChannel, line: str) -> None:
            send(self, line)
            monkeypatch.setattr(mailbox, "DEAD_SECONDS", 0.0)

        monkeypatch.setattr(MailboxChannel, "send", sent_to_nobody)
        with pytest.raises(StagingError, match="no sign of life"):
            service(job)

    def is_closed() -> bool:
        service.close()
        return True

    assert within_seconds(is_closed)
    assert service.killed.is_set()
