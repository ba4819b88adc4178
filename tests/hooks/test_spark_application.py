"""One application stages job after job: the socket between the launcher and the application, and who notices whose
end.
"""

from __future__ import annotations

import base64
import json
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError
from airflow_kafka_offsets.hooks import job_channel, spark
from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
from airflow_kafka_offsets.hooks.spark_log import CollapsedLog
from airflow_kafka_offsets.loading.stage import launch
from airflow_kafka_offsets.spark import package
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.transforms.dataframe import DataFrameFunction
from devstack.process import wait_until
from tests.support.submitted import SECONDS, Submitted, no_process_left, timed_out_when

SECRET = "5ecret"
PROPERTIES = {"spark.hadoop.fs.s3a.secret.key": SECRET}


@pytest.fixture(params=["client", pytest.param("cluster", marks=pytest.mark.long)], ids=["socket", "mailbox"])
def submitted(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submitted:
    submitted = Submitted(tmp_path, request.param)
    submitted.install(monkeypatch)
    return submitted


OVER_THE_SOCKET = pytest.mark.parametrize("submitted", ["client"], indirect=True, ids=["socket"])

# Every day: how a mailbox is opened, what goes through it, and whose end is noticed. All others have it in `make soak`.
OVER_BOTH = pytest.mark.parametrize("submitted", ["client", "cluster"], indirect=True, ids=["socket", "mailbox"])


@pytest.fixture
def launcher(submitted: Submitted) -> Iterator[SparkSubmitLauncher]:
    """Leaves no process, no thread and no open file behind."""
    before = open_files()
    launcher = SparkSubmitLauncher("spark_default", conf=PROPERTIES)
    with no_process_left():
        yield launcher
        launcher.close()
    assert [thread for thread in threading.enumerate() if thread.name in ("spark-submit", "mailbox")] == []
    left = open_files() - before

    def are_closed() -> bool:
        # Threads of earlier tests, such as a client's, open and close files of their own: only what stays is left.
        left.intersection_update(open_files())
        return not left

    wait_until(are_closed, SECONDS, "open files to be closed", details=lambda: f"{left}, threads: {sorted(threads())}")


def threads() -> set[str]:
    """Return the names of this process's threads, also of those that are not Python's."""
    return {name.read_text().strip() for name in Path("/proc/self/task").glob("*/comm")}


def open_files() -> set[str]:
    """Return the files, sockets and pipes of this process, but for the directory that is read here."""
    found = set()
    for file in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(file.readlink()))
    return found - {f"/proc/{os.getpid()}/fd"}


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@OVER_BOTH
def test_the_application_is_started_by_the_first_job_and_ended_by_close(
    submitted: Submitted, launcher: SparkSubmitLauncher, caplog: pytest.LogCaptureFixture
) -> None:
    launcher.close()  # there is none
    for number in (1, 2, 3):
        launcher(submitted.job(number))
    assert len(set(submitted.pids(1, 2, 3))) == 1
    launcher.close()
    assert not psutil.pid_exists(submitted.pids(1)[0])
    launcher(submitted.job(4))
    assert submitted.pids(4) != submitted.pids(1)
    assert warnings_of(caplog) == []


@OVER_THE_SOCKET
def test_secrets_go_over_the_socket_alone(submitted: Submitted, launcher: SparkSubmitLauncher) -> None:
    launcher(submitted.job(1))
    seen = submitted.process(1)
    assert (seen["properties"], seen["kafka"]["sasl.password"]) == (PROPERTIES, SECRET)
    path = Path(seen["argv"][-1])
    assert path.is_socket()
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "airflow_kafka_offsets.zip",
        "application.py",
        "jobs",
    ]
    process = psutil.Process(seen["pid"])
    assert SECRET not in json.dumps([process.cmdline(), process.environ()])
    launcher.close()
    assert not path.parent.exists()


@pytest.mark.parametrize("submitted", ["cluster"], indirect=True, ids=["mailbox"])
def test_secrets_in_a_mailbox_are_sealed(
    submitted: Submitted, launcher: SparkSubmitLauncher, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        launcher(submitted.job(1))
    seen = submitted.process(1)
    assert (seen["properties"], seen["kafka"]["sasl.password"]) == (PROPERTIES, SECRET)
    mailbox, token = Path(seen["argv"][0]), seen["argv"][1]
    assert mailbox.parent == submitted.staging.parent
    assert mailbox.stat().st_mode & 0o777 == 0o700
    files = {file.name: file.read_text() for file in mailbox.iterdir()}
    assert {"worker-00000000", "worker-00000001", "worker-00000002", "driver-00000000"} < files.keys()
    written = "".join([*files, *map(decoded, files.values())])
    process = psutil.Process(seen["pid"])
    assert SECRET not in written + json.dumps([process.cmdline(), process.environ()])
    assert token not in written
    assert token not in caplog.text
    launcher.close()
    assert not mailbox.exists()


def decoded(text: str) -> str:
    return base64.b64decode(text).decode("latin-1")


def test_a_job_that_needs_something_else_of_spark_gets_another(
    submitted: Submitted, launcher: SparkSubmitLauncher, caplog: pytest.LogCaptureFixture
) -> None:
    dataframes = DataFrameFunction("shop.clean")
    for number, transform in enumerate([None, dataframes, dataframes, None], start=1):
        launcher(submitted.job(number, transform=transform))
    first, second, third, fourth = submitted.pids(1, 2, 3, 4)
    assert second == third
    assert len({first, second, fourth}) == 3
    assert warnings_of(caplog) == []


class TestEnd:
    @OVER_BOTH
    @pytest.mark.parametrize("by", ["kill", "context"])
    def test_between_jobs_the_next_job_starts_another(
        self, submitted: Submitted, launcher: SparkSubmitLauncher, caplog: pytest.LogCaptureFixture, by: str
    ) -> None:
        launcher(submitted.job(1))
        (pid,) = submitted.pids(1)
        if by == "kill":
            os.kill(pid, signal.SIGKILL)
        else:
            submitted.stopped.touch()
        with ThreadPoolExecutor(1) as threads:
            staged = threads.submit(launcher, submitted.job(2))
            wait_until(lambda: not psutil.pid_exists(pid), SECONDS, "the end of the first")
            submitted.stopped.unlink(missing_ok=True)
            staged.result()
        assert submitted.pids(2) != [pid]
        assert warnings_of(caplog) == ["The Spark application ended after the batch before, and batch 2 starts another"]

    @pytest.mark.parametrize(("does", "status"), [("dies", 3), ("raises", 1)])
    @pytest.mark.parametrize("number", [1, 2])
    def test_within_a_job_is_its_error(
        self,
        submitted: Submitted,
        launcher: SparkSubmitLauncher,
        caplog: pytest.LogCaptureFixture,
        does: str,
        status: int,
        number: int,
    ) -> None:
        if number == 2:
            launcher(submitted.job(1))
        with pytest.raises(Exception, match=f"Error code is: {status}"):
            launcher(submitted.job(number, does))
        assert not psutil.pid_exists(submitted.pids(number)[0])
        launcher(submitted.job(3))
        assert submitted.pids(3) != submitted.pids(number)
        assert warnings_of(caplog) == []

    def test_an_error_that_is_reported_is_not_its_end(
        self, submitted: Submitted, launcher: SparkSubmitLauncher
    ) -> None:
        launcher(submitted.job(1))
        with pytest.raises(StagingError, match=r"^not like this$"):
            launch(launcher, submitted.job(2, "is_refused"), StagingDirectory(str(submitted.staging)))
        launcher(submitted.job(3))
        assert len(set(submitted.pids(1, 2, 3))) == 1

    def test_with_an_error_after_the_last_job_is_logged(
        self, submitted: Submitted, launcher: SparkSubmitLauncher, caplog: pytest.LogCaptureFixture
    ) -> None:
        launcher(submitted.job(1))
        os.kill(submitted.pids(1)[0], signal.SIGKILL)
        launcher.close()
        assert warnings_of(caplog) == [
            "The Spark application ended with an error after its last batch, which is not affected"
        ]


class TestCancel:
    @pytest.mark.parametrize("number", [1, 2])
    def test_stops_the_job_of_another_thread(
        self, submitted: Submitted, launcher: SparkSubmitLauncher, number: int
    ) -> None:
        if number == 2:
            launcher(submitted.job(1))
            launcher.cancel()  # no job is running
        with ThreadPoolExecutor(1) as threads:
            staged = threads.submit(launcher, submitted.job(number, "hangs"))
            wait_until(lambda: submitted.has_begun(number), SECONDS, "the job")
            launcher.cancel()
            with pytest.raises(Exception, match="Error code is: -9"):
                staged.result(SECONDS)
        assert not psutil.pid_exists(submitted.pids(number)[0])
        launcher(submitted.job(3))

    def test_before_there_is_a_process(
        self, submitted: Submitted, launcher: SparkSubmitLauncher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = package.write_application

        def cancelled(directory: Path) -> tuple[Path, Path]:
            launcher.cancel()
            return write(directory)

        monkeypatch.setattr(spark, "write_application", cancelled)
        with pytest.raises(Exception, match="Error code is: -9"):
            launcher(submitted.job(1, "hangs"))

    def test_an_exception_of_a_signal_stops_it(self, submitted: Submitted, launcher: SparkSubmitLauncher) -> None:
        with timed_out_when(lambda: submitted.has_begun(1)):
            launcher(submitted.job(1, "hangs"))
        assert not psutil.pid_exists(submitted.pids(1)[0])


@OVER_BOTH
@pytest.mark.parametrize("does", ["hangs", "is_staged"])
def test_the_application_ends_when_the_worker_is_killed(submitted: Submitted, does: str) -> None:
    def work() -> None:
        SparkSubmitLauncher("spark_default")(submitted.job(1, does))
        time.sleep(600)

    worker = multiprocessing.get_context("fork").Process(target=work)
    worker.start()
    try:
        wait_until(lambda: submitted.has_begun(1), SECONDS, "the job")
    finally:
        worker.kill()
        worker.join()
        submitted.orphaned.touch()
    (pid,) = submitted.pids(1)
    wait_until(lambda: not psutil.pid_exists(pid), SECONDS, "the end of the application")


@OVER_THE_SOCKET
class TestLongTemporaryDirectory:
    @pytest.fixture(autouse=True)
    def long(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        long = tmp_path / ("long" * 30)
        long.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(long))
        return long

    def test_the_socket_is_elsewhere(self, submitted: Submitted, launcher: SparkSubmitLauncher, long: Path) -> None:
        launcher(submitted.job(1))
        path = Path(submitted.process(1)["argv"][-1])
        assert path.is_socket()
        assert path.parent.stat().st_mode & 0o777 == 0o700
        assert list(long.iterdir()) == []

    def test_or_the_error_names_the_variable(
        self, submitted: Submitted, launcher: SparkSubmitLauncher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(job_channel, "_SHORT_DIRECTORY", "/nowhere")
        with pytest.raises(ConfigurationError, match=r"longlong.* is too long for a socket.*/nowhere.*: set TMPDIR"):
            launcher(submitted.job(1))


@OVER_BOTH
def test_lines_of_the_task_are_in_no_group_of_sparks(
    submitted: Submitted, launcher: SparkSubmitLauncher, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("airflow_kafka_offsets.loading.commit")
    with caplog.at_level(logging.INFO):
        for number in (1, 2, 3):
            launcher(submitted.job(number))
            log.info("Committed batch %d", number)
        launcher.close()
    lines = [line for line in caplog.messages if line.startswith(("::", "Batch", "Committed"))]
    batches = [line for number in (1, 2, 3) for line in (f"Batch {number}: staged", f"Committed batch {number}")]
    group = ["::group::Spark", "::endgroup::"]
    assert lines == [*group, *batches, *group]


def test_a_line_ends_a_group_that_is_open(caplog: pytest.LogCaptureFixture) -> None:
    folded = CollapsedLog(logging.getLogger("airflow_kafka_offsets.hooks.spark"))
    log = logging.getLogger("airflow_kafka_offsets.loading.commit")
    with caplog.at_level(logging.INFO), ThreadPoolExecutor(1) as threads, folded.apart():
        folded.fold()
        log.info("of the thread that folds")
        threads.submit(log.info, "of another").result()
    assert caplog.messages == ["::group::Spark", "of the thread that folds", "::endgroup::", "of another"]
