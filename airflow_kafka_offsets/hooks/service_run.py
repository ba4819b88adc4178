"""Launch the Spark application on a service that runs Spark, such as Livy or EMR Serverless. Jobs go through a mailbox
in the staging location, which the service's driver reaches.

To add a service, write a module with a `Service` and a `ServiceLauncher` of it, and add the launcher to
`hooks.connections.LAUNCHERS` by the type of its connection.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import ExitStack, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any, ClassVar, Protocol, TypeVar

from airflow_kafka_offsets.core.text import first_few, shortened
from airflow_kafka_offsets.core.threads import in_background
from airflow_kafka_offsets.escaping import printable
from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError
from airflow_kafka_offsets.hooks.job_channel import MailboxChannel, mailbox_beside
from airflow_kafka_offsets.hooks.spark_application import ApplicationLauncher
from airflow_kafka_offsets.hooks.spark_log import CollapsedLog
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.package import write_application
from airflow_kafka_offsets.spark.properties import REDACTION
from airflow_kafka_offsets.staging.directory import StagingDirectory

log = logging.getLogger(__name__)

T = TypeVar("T")

# Seconds between two questions for the state of a run.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 10.0

# Seconds for an answer: the hook may have no limit, or one for each byte.
_ANSWER_SECONDS = 120.0

# Questions in a row that a service may leave unanswered.
_MOST_FAILURES = 10


@dataclass(frozen=True)
class Submission:
    """What is submitted.

    :param name: of the application
    :param application: the URI of the Python file with the application; its path where `Staging.dir` is a path
    :param py_files: the URIs of the archive with this package, and of the user's own modules, for `--py-files`; where a
        service has no such option, the application takes them as its last arguments
    :param arguments: of the application; one is the token of the mailbox, so that they must not be logged
    :param properties: Spark properties, without those that hold secrets, which go through the mailbox; what the options
        of a DAG say of the same properties takes precedence
    """

    name: str
    application: str
    py_files: tuple[str, ...]
    arguments: tuple[str, ...]
    properties: Mapping[str, str]


class Service(Protocol):
    """A service that runs Spark applications. Its methods raise what the hook of the provider raises, and have two
    minutes each. Nothing closes a service.
    """

    def submit(self, submission: Submission) -> str:
        """Submit an application; return the id of its run."""

    def state(self, run_id: str) -> str | None:
        """Return None while a run is waiting or running, an empty text if it succeeded, and otherwise why it failed:
        the state and the reason, such as the last line of the driver's log (`core.text.shortened`).

        A state that is not known counts as running: look for those in which runs have ended. After ten errors in a row
        the run is abandoned.
        """

    def cancel(self, run_id: str) -> None:
        """End a run, which may have ended just now. An error takes the place of the one that says "was cancelled"."""


class ServiceRun:
    """A run of an application by a service.

    :param where: names the service in messages
    """

    def __init__(self, service: Service, submission: Submission, where: str) -> None:
        self._service, self._submission, self._where = service, submission, where
        self._woken, self._killed = Event(), Future[None]()

    def run(self) -> None:
        """Submit the application, and ask for its state until it has ended.

        :raises StagingError: it was not taken, failed or was cancelled, or the service does not answer
        """
        if self._killed.done():
            raise StagingError(f"The application for {self._where} was cancelled before it was submitted")
        try:
            run_id = self._ask(partial(self._service.submit, self._submission))
            shown = printable(shortened(run_id))
        except Exception as error:
            raise StagingError(f"{self._where} did not take the application: {_told(error)}") from error
        log.info("Submitted run %s to %s", shown, self._where)
        pause, failures = _FIRST_PAUSE, 0
        while True:
            if self._woken.wait(pause):
                self._woken.clear()
                pause = _FIRST_PAUSE
            if self._killed.done():
                self._ask(partial(self._service.cancel, run_id))
                raise StagingError(f"Run {shown} of {self._where} was cancelled")
            pause = min(pause * 1.5, _LONGEST_PAUSE)
            try:
                state = self._ask(partial(self._service.state, run_id), self._killed)
                failures = 0
            except Exception as error:
                if self._killed.done():
                    continue
                failures += 1
                if failures == _MOST_FAILURES:
                    raise StagingError(
                        f"The state of run {shown} of {self._where} is not known: {_told(error)}"
                    ) from error
                log.warning("The state of run %s is asked for again: %s", shown, _told(error))
                continue
            if state == "":
                return
            if state is not None:
                raise StagingError(f"Run {shown} of {self._where} failed: {printable(shortened(state))}")

    def _ask(self, question: Callable[[], T], *ends: Future[None]) -> T:
        """Return the answer of the service, unless something ends the wait for it.

        :raises StagingError: it did not come
        """
        # What is logged there belongs to the same task.
        answer = in_background(partial(copy_context().run, question))
        pending: list[Future[Any]] = [answer, *ends]
        wait(pending, _ANSWER_SECONDS, FIRST_COMPLETED)
        if not answer.done():
            raise StagingError(f"it has not answered for {_ANSWER_SECONDS:g} s")
        return answer.result()

    def kill(self) -> None:
        """Have the thread that waits cancel the run."""
        with suppress(InvalidStateError):
            self._killed.set_result(None)
        self._woken.set()

    def hurry(self) -> None:
        """Have the thread ask at once, and then again after short pauses: the application is about to end."""
        self._woken.set()


class ServiceLauncher(ApplicationLauncher):
    """A launcher of a service.

    :param options: what the service's own request takes besides the application
    :cvar title: of the service
    :cvar extra: that installs the provider
    :cvar hook: the class of the provider's hook, or of a client, as `module:class`
    :cvar required: options that must be there
    :cvar optional: options that may be there, too
    """

    title: ClassVar[str]
    extra: ClassVar[str]
    hook: ClassVar[str]
    required: ClassVar[tuple[str, ...]] = ()
    optional: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        conn_id: str,
        *,
        conf: Mapping[str, Any] | None = None,
        name: str = "kafka-offsets",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(conn_id, conf=conf, name=name)
        # Where a service has --py-files, they take the place of the property.
        self._py_files = [file for file in str(self._conf.pop("spark.submit.pyFiles", "")).split(",") if file]
        self._options = dict(options or {})
        self._run: ServiceRun | None = None

    @abstractmethod
    def service(self) -> Service:
        """Return the service. Called before anything is planned, when the options were checked, and for each
        application: make the client here, so that a wrong connection is found early, and send no request. Call
        `_make_hook` before anything of the connection is refused: it names the extra that is missing.

        :raises ConfigurationError: options contradict each other, or the provider is not installed
        """

    @property
    def master(self) -> str:
        """The service, in the place of a master."""
        return self.title

    def _check_options(self) -> None:
        if unknown := sorted(self._options.keys() - {*self.required, *self.optional}):
            raise ConfigurationError(
                f"Spark.options has {first_few(map(repr, unknown))}, which {self.title} does not take; it may have "
                f"{', '.join((*self.required, *self.optional))}"
            )
        if missing := [name for name in self.required if not self._options.get(name)]:
            raise ConfigurationError(
                f"Connection {self._conn_id!r} leads to {self.title}: set {' and '.join(missing)} in Spark.options"
            )

    def _make_hook(self, **arguments: Any) -> Any:
        """Return the hook.

        :raises ConfigurationError: the provider is not installed
        """
        module, _, name = self.hook.partition(":")
        try:
            hook = getattr(import_module(module), name)
        except ImportError as error:
            raise ConfigurationError(
                f"Connection {self._conn_id!r} leads to {self.title}, whose provider cannot be imported ({error}): pip "
                f"install 'airflow-kafka-offsets[{self.extra}]'"
            ) from error
        return hook(**arguments)

    def weakness(self) -> str | None:
        """Return what the connection lacks to protect what is sent to the service, as a sentence: loads log it, and
        `doctor` fails with it. None where it lacks nothing.
        """
        return None

    def check(self, staging_dir: str | None) -> None:
        """Check, before anything is planned, that the service can be used.

        :raises AirflowNotFoundException: the connection does not exist
        :raises ConfigurationError: something is missing; the message says what
        """
        self._check_options()
        self.service()
        if not staging_dir:
            raise ConfigurationError(
                f"Connection {self._conn_id!r} leads to {self.master}: set Staging.dir to a location that this worker, "
                "Spark's driver and its executors share (s3://…, gs://…, hdfs://…, or a shared file system)"
            )
        if problem := self.weakness():
            log.warning("%s", problem)

    def _open(self, job: StageJob, folded: CollapsedLog, stack: ExitStack) -> tuple[ServiceRun, MailboxChannel]:
        directory = mailbox_beside(job.staging_uri)
        channel = stack.enter_context(MailboxChannel(directory, folded.show_sent))
        application, package = _upload(directory)
        properties = {"spark.sql.session.timeZone": "UTC", "spark.redaction.regex": REDACTION, **self._conf}
        texts = {name: _text(value) for name, value in properties.items()}
        submission = Submission(self.name, application, (package, *self._py_files), tuple(channel.arguments), texts)
        self._run = ServiceRun(self.service(), submission, self.master)
        return self._run, channel

    def _end(self) -> bool:
        if self._run is not None:
            self._run.hurry()
        return super()._end()


def _told(error: Exception) -> str:
    return printable(shortened(str(error)))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _upload(directory: StagingDirectory) -> tuple[str, str]:
    """Write the application and the package into a directory; return their URIs."""
    with TemporaryDirectory() as temporary:
        files = write_application(Path(temporary))
        for file in files:
            directory.write_bytes(file.name, file.read_bytes())
    # Options of our file system after a question mark mean nothing to the service.
    application, package = (directory.child_uri(file.name).partition("?")[0] for file in files)
    return application, package
