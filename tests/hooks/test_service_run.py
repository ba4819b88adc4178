"""Applications on a service that is a process of this machine, without Spark. `test_services` has real ones."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import psutil
import pytest

from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.hooks import service_run
from airflow_kafka_offsets.hooks.livy import Livy
from airflow_kafka_offsets.hooks.service_run import Service, ServiceLauncher, ServiceRun, Submission
from devstack.process import wait_until
from tests.support.submitted import Submitted, no_process_left

CONF = {"spark.executor.cores": 2, "spark.a": True, "spark.submit.pyFiles": "s3://a/one.zip,s3://a/two.zip"}
SECRETS = {"spark.hadoop.fs.s3a.secret.key": "5ecret"}


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_run, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(service_run, "_LONGEST_PAUSE", 0.05)


class Processes:
    """A service whose runs are processes."""

    def __init__(self, program: Path) -> None:
        self._program = program
        self.submissions: list[Submission] = []
        self.runs: dict[str, subprocess.Popen[bytes]] = {}

    def submit(self, submission: Submission) -> str:
        self.submissions.append(submission)
        run_id = f"run-{len(self.runs)}"
        command = [str(self._program), submission.application, *submission.arguments]
        self.runs[run_id] = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return run_id

    def state(self, run_id: str) -> str | None:
        status = self.runs[run_id].poll()
        return status if status is None else f"exit status {status}" if status else ""

    def cancel(self, run_id: str) -> None:
        self.runs[run_id].kill()
        self.runs[run_id].wait()


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submitted:
    submitted = Submitted(tmp_path)
    submitted.install(monkeypatch)
    return submitted


@pytest.fixture
def processes(submitted: Submitted) -> Processes:
    return Processes(submitted.program)


@pytest.fixture
def launcher(processes: Processes, submitted: Submitted) -> Iterator[ServiceLauncher]:
    class Launcher(ServiceLauncher):
        title = "Processes"

        def service(self) -> Service:
            return processes

    launcher = Launcher("spark_default", conf=CONF | SECRETS, name="dag.task")
    with no_process_left():
        yield launcher
        launcher.close()
    assert [path.name for path in submitted.staging.parent.iterdir()] == [submitted.staging.name]


def test_one_run_of_a_service_stages_all_jobs(
    submitted: Submitted, processes: Processes, launcher: ServiceLauncher, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for number in (1, 2):
            launcher(submitted.job(number))
        launcher.close()
    (submission,) = processes.submissions
    assert len(set(submitted.pids(1, 2))) == 1
    assert (submission.name, submission.properties["spark.executor.cores"]) == ("dag.task", "2")
    assert submission.properties["spark.a"] == "true"
    assert [file.rpartition("/")[2] for file in submission.py_files] == [
        "airflow_kafka_offsets.zip",
        "one.zip",
        "two.zip",
    ]
    assert "spark.submit.pyFiles" not in submission.properties
    assert "5ecret" not in repr(submission)
    assert submitted.process(1)["properties"] == SECRETS
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["Submitted run run-0 to Processes", "Batch 1: staged", "Batch 2: staged"]


def test_why_a_run_failed_is_in_the_error(submitted: Submitted, launcher: ServiceLauncher) -> None:
    with pytest.raises(StagingError, match=r"^Run run-0 of Processes failed: exit status 3$"):
        launcher(submitted.job(1, "dies"))
    launcher(submitted.job(2))


def test_a_job_that_is_cancelled_ends_its_run(submitted: Submitted, launcher: ServiceLauncher) -> None:
    with ThreadPoolExecutor(1) as threads:
        staged = threads.submit(launcher, submitted.job(1, "hangs"))
        wait_until(lambda: submitted.has_begun(1), 30, "the job")
        launcher.cancel()
        with pytest.raises(StagingError, match="Run run-0 of Processes was cancelled"):
            staged.result(30)
    assert not psutil.pid_exists(submitted.pids(1)[0])


class Answers:
    """A service with answers for each question for a state."""

    run_id = "r1"

    def __init__(self, *answers: str | Exception | None) -> None:
        self._answers = iter(answers)
        self.cancelled: list[str] = []

    def submit(self, submission: Submission) -> str:
        if not submission.application:
            raise RuntimeError("403: the quota is used up")
        return self.run_id

    def state(self, run_id: str) -> str | None:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def cancel(self, run_id: str) -> None:
        self.cancelled.append(run_id)


SUBMISSION = Submission("name", "/application.py", ("/package.zip",), ("/mailbox", "token"), {})


def test_a_service_that_does_not_answer_is_asked_again() -> None:
    lost = ConnectionError("reset by peer")
    ServiceRun(Answers(None, *[lost] * 9, None, *[lost] * 9, ""), SUBMISSION, "Processes").run()
    with pytest.raises(StagingError, match="The state of run r1 of Processes is not known: reset by peer"):
        ServiceRun(Answers(*[lost] * 10), SUBMISSION, "Processes").run()


class Silent(Answers):
    """A service that does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.end = Event(), Event()

    def state(self, run_id: str) -> str | None:
        self.asked.set()
        self.end.wait()
        return ""


@pytest.fixture
def silent() -> Iterator[Silent]:
    service = Silent()
    yield service
    service.end.set()


def test_a_service_that_is_silent_is_left_after_some_time(monkeypatch: pytest.MonkeyPatch, silent: Silent) -> None:
    monkeypatch.setattr(service_run, "_ANSWER_SECONDS", 0.01)
    with pytest.raises(
        StagingError, match=r"state of run r1 of Processes is not known: it has not answered for 0\.01 s"
    ):
        ServiceRun(silent, SUBMISSION, "Processes").run()


def test_a_run_of_a_silent_service_is_cancelled_at_once(monkeypatch: pytest.MonkeyPatch, silent: Silent) -> None:
    monkeypatch.setattr(service_run, "_ANSWER_SECONDS", 600)
    run = ServiceRun(silent, SUBMISSION, "Processes")
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(run.run)
        assert silent.asked.wait(30)
        run.kill()
        run.kill()
        with pytest.raises(StagingError, match="Run r1 of Processes was cancelled"):
            done.result(30)
    assert silent.cancelled == ["r1"]


def test_what_a_service_says_is_escaped(caplog: pytest.LogCaptureFixture) -> None:
    odd = "a \x1b[31mred\nFAKE"
    service = Answers(ConnectionError(odd), f"dead: {odd}")
    service.run_id = odd
    with caplog.at_level(logging.INFO), pytest.raises(StagingError) as failed:
        ServiceRun(service, SUBMISSION, "Processes").run()
    assert "\x1b" not in f"{failed.value}{caplog.text}"
    assert not any("\n" in message for message in (str(failed.value), *caplog.messages))
    assert str(failed.value).endswith(r"dead: a \x1b[31mred\nFAKE")


class LivyHook:
    """Livy's, for a batch that failed."""

    def get_batch(self, run_id: str) -> dict[str, Any]:
        return {"state": "dead", "log": ["\nstderr: ", "KeyError: 'a'", "\nYARN: "]}

    def get_batch_logs(self, run_id: str, start: int, size: int) -> dict[str, Any]:
        return {"total": 10**15, "log": ["\x1b[31mred\u202e", "KeyError: 'a'"]}


def test_the_log_of_a_livy_batch_is_escaped_and_asked_for_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert Livy(LivyHook(), {}).state("7") == "dead: KeyError: 'a'"
    assert caplog.messages == [r"\x1b[31mred\u202e", "KeyError: 'a'"]


def test_a_submission_that_is_refused_names_the_service() -> None:
    refused = Submission("name", "", (), (), {})
    with pytest.raises(StagingError, match="Processes did not take the application: 403: the quota is used up"):
        ServiceRun(Answers(), refused, "Processes").run()


def test_a_run_that_is_killed_before_it_starts_is_not_submitted() -> None:
    service = Answers()
    run = ServiceRun(service, SUBMISSION, "Processes")
    run.kill()
    with pytest.raises(StagingError, match="was cancelled before it was submitted"):
        run.run()
    assert service.cancelled == []


@pytest.mark.parametrize("does", ["hurry", "kill"])
def test_a_run_that_waits_to_ask_again_is_woken(monkeypatch: pytest.MonkeyPatch, does: str) -> None:
    monkeypatch.setattr(service_run, "_FIRST_PAUSE", 600)
    service = Answers("")
    run = ServiceRun(service, SUBMISSION, "Processes")
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(run.run)
        getattr(run, does)()
        assert (str(done.exception(30)), service.cancelled) in [
            ("None", []),
            ("Run r1 of Processes was cancelled", ["r1"]),
            ("The application for Processes was cancelled before it was submitted", []),
        ]
