"""A mailbox between a worker and a driver: what others who write into its directory can do. How an application uses it:
`tests.hooks.test_spark_application`.
"""

from __future__ import annotations

import builtins
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError
from airflow_kafka_offsets.spark import mailbox as module
from airflow_kafka_offsets.spark.jobs import MailboxJobs
from airflow_kafka_offsets.spark.mailbox import Mailbox, MailboxEndedError
from airflow_kafka_offsets.staging.directory import StagingDirectory
from devstack.s3 import S3Server

TOKEN = "7" * 64

WORKERS_KEY, DRIVERS_KEY, DRIVERS_FIRST = "worker-00000000", "driver-00000000", "driver-00000001"


@pytest.fixture
def directory(tmp_path: Path) -> StagingDirectory:
    directory = StagingDirectory(str(tmp_path / "mailbox"))
    directory.create()
    return directory


def opened(directory: StagingDirectory) -> tuple[Mailbox, Mailbox]:
    worker = Mailbox.of_worker(directory, TOKEN)
    driver = Mailbox.of_driver(directory, TOKEN)
    assert worker.meet()
    return worker, driver


def taken(mailbox: Mailbox, number: int) -> list[str]:
    """The next messages."""
    messages = mailbox.messages()
    return [next(messages) for _ in range(number)]


def file(directory: StagingDirectory, name: str) -> Path:
    return Path(directory.path, name)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(st.lists(st.tuples(st.booleans(), st.text(min_size=1))))
def test_messages_of_both_sides_arrive_in_their_order(
    directory: StagingDirectory, messages: list[tuple[bool, str]]
) -> None:
    shutil.rmtree(directory.path)
    directory.create()
    worker, driver = opened(directory)
    for is_workers, text in messages:
        (worker if is_workers else driver).send(text)
    of_worker, of_driver = ([text for is_workers, text in messages if is_workers is side] for side in (True, False))
    assert (taken(driver, len(of_worker)), taken(worker, len(of_driver))) == (of_worker, of_driver)
    # Each object is written once, and shows nothing of what is in it.
    names = sorted(path.name for path in Path(directory.path).iterdir())
    assert len(names) == 2 + len(messages)


@pytest.mark.server
@pytest.mark.long
def test_an_object_store_has_a_mailbox(monkeypatch: pytest.MonkeyPatch) -> None:
    with S3Server() as server:
        server.client().create_bucket(Bucket="lake")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret)
        place = f"127.0.0.1:{server.port}&scheme=http&region={server.region}"
        directory = StagingDirectory(f"s3://lake/staging/mailbox?endpoint_override={place}")
        directory.create()
        worker, driver = opened(directory)
        driver.send("begun")
        assert taken(worker, 1) == ["begun"]
        directory.remove()
        monkeypatch.setattr(module, "HEARTBEAT_SECONDS", 0.05)
        with pytest.raises(MailboxEndedError, match="was removed"):
            taken(driver, 1)


class TestSomebodyElseWrites:
    """Who may write into the staging location, and does not know the token."""

    def test_a_driver_with_another_token_is_not_met(self, directory: StagingDirectory) -> None:
        worker = Mailbox.of_worker(directory, TOKEN)
        with pytest.raises(StagingError, match=r"worker-00000000 in .* is not from the worker of this application"):
            Mailbox.of_driver(directory, "8" * 64)
        other = StagingDirectory(f"{directory.uri}-other")
        other.create()
        Mailbox.of_worker(other, "8" * 64)
        Mailbox.of_driver(other, "8" * 64)
        shutil.copy(file(other, DRIVERS_KEY), file(directory, DRIVERS_KEY))
        with pytest.raises(StagingError, match=r"see who else may write into Staging\.dir"):
            worker.meet()

    def test_a_worker_with_another_token_is_not_met(self, directory: StagingDirectory) -> None:
        Mailbox.of_worker(directory, "8" * 64)
        with pytest.raises(StagingError, match=r"worker-00000000 in .* is not from the worker"):
            Mailbox.of_driver(directory, TOKEN)

    def test_the_key_of_an_earlier_worker_is_not_that_of_this_driver(self, directory: StagingDirectory) -> None:
        """A driver proves the worker's key with its own, so that an old pair cannot be played again."""
        opened(directory)
        drivers = file(directory, DRIVERS_KEY).read_text()
        shutil.rmtree(directory.path)
        directory.create()
        worker = Mailbox.of_worker(directory, TOKEN)
        file(directory, DRIVERS_KEY).write_text(drivers)
        with pytest.raises(StagingError, match="driver-00000000"):
            worker.meet()

    @pytest.mark.parametrize(
        "change",
        [
            pytest.param(lambda first, second: first[:-8] + second[-8:], id="a changed message"),
            pytest.param(lambda first, second: second, id="another message"),
            pytest.param(lambda first, second: "ü", id="no base64"),
            pytest.param(lambda first, second: "x" * (5 << 20), id="more than a driver writes"),
        ],
    )
    def test_a_message_that_is_not_the_drivers(
        self, directory: StagingDirectory, change: Callable[[str, str], str]
    ) -> None:
        worker, driver = opened(directory)
        driver.send("done")
        driver.send("not done")
        first, second = file(directory, DRIVERS_FIRST), file(directory, "driver-00000002")
        first.write_text(change(first.read_text(), second.read_text()))
        with pytest.raises(StagingError, match=r"driver-00000001 in .* is not from the driver of this application"):
            taken(worker, 1)

    def test_a_message_of_the_worker_is_none_of_the_driver(self, directory: StagingDirectory) -> None:
        worker, _ = opened(directory)
        worker.send("job")
        shutil.copy(file(directory, "worker-00000001"), file(directory, DRIVERS_FIRST))
        with pytest.raises(StagingError, match="driver-00000001"):
            taken(worker, 1)


def test_a_second_driver_of_the_same_application_ends(directory: StagingDirectory) -> None:
    """As where a cluster starts it again: the first one may have jobs."""
    opened(directory)
    with pytest.raises(StagingError, match="has a driver already"):
        Mailbox.of_driver(directory, TOKEN)


def test_a_driver_that_comes_too_late_ends(directory: StagingDirectory) -> None:
    with pytest.raises(StagingError, match="has no key of a worker: it has ended, or its files are not shared"):
        Mailbox.of_driver(directory, TOKEN)


def test_the_worker_learns_that_the_driver_has_no_library(
    directory: StagingDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = Mailbox.of_worker(directory, TOKEN)
    imported = builtins.__import__

    def without(name: str, *arguments: Any, **others: Any) -> Any:
        if name.startswith("cryptography"):
            raise ModuleNotFoundError(name)
        return imported(name, *arguments, **others)

    with monkeypatch.context() as patch:
        patch.setattr(builtins, "__import__", without)
        with pytest.raises(ConfigurationError, match="Install cryptography"):
            Mailbox.of_driver(directory, TOKEN)
    with pytest.raises(ConfigurationError, match=r"no module 'cryptography'.* install it where the driver runs"):
        worker.meet()


class Clock:
    """Time passes in the pauses of a side that reads, and nowhere else, however slow the machine is.

    `meanwhile` is what the other side does in each pause.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.meanwhile: Callable[[], object] = lambda: None

    def monotonic(self) -> float:
        return self.now

    def pause(self) -> None:
        self.now += 1.0
        self.meanwhile()


class TestEnd:
    @pytest.fixture(autouse=True)
    def clock(self, monkeypatch: pytest.MonkeyPatch) -> Clock:
        clock = Clock()
        monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(Mailbox, "_pause", clock.pause)
        return clock

    def test_a_side_that_is_silent_is_dead(self, directory: StagingDirectory) -> None:
        worker, _ = opened(directory)
        with pytest.raises(MailboxEndedError, match=r"The driver gave no sign of life for 121 s"):
            taken(worker, 1)

    def test_a_side_that_reads_is_alive(self, directory: StagingDirectory, clock: Clock) -> None:
        worker, driver = opened(directory)

        def reads() -> None:
            worker._stay_alive()
            if clock.now == 10 * module.DEAD_SECONDS:
                worker.send("job")

        clock.meanwhile = reads
        assert taken(driver, 1) == ["job"]

    def test_a_mailbox_that_is_removed_ends_both(self, directory: StagingDirectory) -> None:
        _, driver = opened(directory)
        directory.remove()
        with pytest.raises(MailboxEndedError, match="was removed"):
            taken(driver, 1)

    @pytest.mark.parametrize("has_directories", [True, False])
    def test_a_removed_mailbox_ends_a_driver_that_has_more_to_say(
        self, directory: StagingDirectory, clock: Clock, has_directories: bool
    ) -> None:
        """Long before the worker would be taken for dead, and also where a store creates what is missing, as an object
        store does.
        """
        _, driver = opened(directory)
        directory.remove()
        if not has_directories:
            Path(directory.path).mkdir()
        clock.meanwhile = lambda: driver.send("a line for the log")
        with pytest.raises(MailboxEndedError, match="was removed"):
            taken(driver, 1)
        assert clock.now < module.DEAD_SECONDS

    def test_what_a_store_does_not_take_is_written_later(
        self, directory: StagingDirectory, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker, driver = opened(directory)
        write, fails = StagingDirectory.write_text, [True] * 3

        def unsteady(self: StagingDirectory, name: str, text: str) -> None:
            if fails and fails.pop():
                raise OSError("503 Slow Down")
            write(self, name, text)

        monkeypatch.setattr(StagingDirectory, "write_text", unsteady)
        worker.send("first")
        worker.send("second")
        clock.meanwhile = worker._stay_alive
        assert taken(driver, 2) == ["first", "second"]

    def test_a_write_whose_answer_was_lost_is_not_repeated(
        self, directory: StagingDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """HDFS would refuse it for ever: no file is renamed to one that exists."""
        worker, driver = opened(directory)
        write, asked = StagingDirectory.write_text, list[str]()

        def loses_answers(self: StagingDirectory, name: str, text: str) -> None:
            asked.append(name)
            write(self, name, text)
            raise OSError("connection reset")

        monkeypatch.setattr(StagingDirectory, "write_text", loses_answers)
        worker.send("first")
        worker.send("second")
        assert taken(driver, 2) == ["first", "second"]
        assert asked == ["worker-00000001", "worker-00000002"]

    def test_a_store_that_fails_while_the_driver_is_awaited(
        self, directory: StagingDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker = Mailbox.of_worker(directory, TOKEN)
        Mailbox.of_driver(directory, TOKEN)
        read, fails = StagingDirectory.read_text, [OSError("503 Slow Down"), RuntimeError("safe mode")]

        def unsteady(self: StagingDirectory, name: str, most: int | None = None) -> str:
            if fails:
                raise fails.pop()
            return read(self, name, most)

        monkeypatch.setattr(StagingDirectory, "read_text", unsteady)
        assert worker.meet()

    def test_an_object_that_is_being_written_is_not_there_yet(self, directory: StagingDirectory, clock: Clock) -> None:
        """As Azure shows it."""
        worker, driver = opened(directory)
        driver.send("done")
        file_, text = file(directory, DRIVERS_FIRST), file(directory, DRIVERS_FIRST).read_text()
        file_.write_text("")
        clock.meanwhile = lambda: file_.write_text(text)
        assert taken(worker, 1) == ["done"]

    def test_a_driver_ends_whatever_its_store_raises(
        self, directory: StagingDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Mailbox.of_worker(directory, TOKEN)
        monkeypatch.setattr(Mailbox, "messages", lambda _: iter([][0]))
        monkeypatch.setattr(threading, "excepthook", lambda _: None)
        assert list(MailboxJobs(directory.uri, TOKEN).lines()) == []

    def test_why_a_store_cannot_be_read_is_in_the_error(
        self, directory: StagingDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        worker, _ = opened(directory)

        def fails(*_: object) -> str:
            raise OSError("403 Forbidden")

        monkeypatch.setattr(StagingDirectory, "read_text", fails)
        with pytest.raises(MailboxEndedError, match=r"no sign of life for .*: 403 Forbidden"):
            taken(worker, 1)
