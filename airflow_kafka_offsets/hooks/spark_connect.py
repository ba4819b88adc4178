"""Launch jobs on a server of Spark Connect, through the official provider's SparkConnectHook.

Nothing is started: each load has its own session on a server that is running, from its first job on. What was sent
into the session ends with it.
"""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Mapping
from contextlib import closing
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from airflow_kafka_offsets.core.addresses import address, is_this_machine
from airflow_kafka_offsets.core.environment import variable
from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.launchers import SessionLauncher

if TYPE_CHECKING:
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.session import SparkSession

log = logging.getLogger(__name__)

_CONNECT_SECONDS = 10.0

# A request that is lost is sent again for about a minute: PySpark's own 15 times take ten, of a server that ended.
_RETRIES, _RETRIES_AT_THE_END = 7, 1

# What the server says of a session that it has closed, or does not know since it was started again.
_GONE = "INVALID_HANDLE.SESSION_"

_SESSION = {"spark.sql.session.timeZone": "UTC"}


class SparkConnectLauncher:
    """Stages batches in its own session on a server of Spark Connect.

    :param conn_id: a connection of the official Spark provider, of type `spark_connect`
    :param conf: Spark properties of the session; they take precedence over those that this package sets
    :param name: what the server's log calls the client
    """

    def __init__(self, conn_id: str, *, conf: Mapping[str, Any] | None = None, name: str = "kafka-offsets") -> None:
        self._conn_id = conn_id
        self._conf = {**_SESSION, **(conf or {})}
        self.name = name
        self.last_batch: int | None = None
        """The batch that was last given to Spark."""
        self._session: SparkSession | None = None
        self._launcher: SessionLauncher | None = None

    def check(self, staging_dir: str | None) -> None:
        """Check, before anything is planned, that the server answers and opens a session.

        The load may wait for its group then, and a server closes idle sessions: the first job opens another.

        :raises AirflowNotFoundException: the connection does not exist
        :raises ConfigurationError: something is missing; the message says what
        :raises StagingError: the server does not answer
        """
        builder = self._builder()
        if not staging_dir and not is_this_machine(address(builder.endpoint)[0]):
            raise ConfigurationError(
                f"Connection {self._conn_id!r} leads to the Spark Connect server {builder.endpoint}: set Staging.dir "
                "to a location that this worker and Spark's executors share (s3://…, gs://…, hdfs://…, or a shared "
                "file system)"
            )
        if problem := self.weakness():
            log.warning("%s", problem)
        self._open()
        self.close()

    def weakness(self) -> str | None:
        """Return what the connection lacks to protect what is sent to the server; None where it lacks nothing."""
        builder = self._builder()
        if builder.secure or is_this_machine(address(builder.endpoint)[0]):
            return None
        return (
            f"The traffic with the Spark Connect server {builder.endpoint} is unprotected, including the code of "
            "tasks and secrets of Spark.conf: set use_ssl in the connection, and put a TLS proxy before the server"
        )

    @property
    def master(self) -> str:
        """The address of the server, in the place of a master."""
        return f"sc://{self._builder().endpoint}"

    def version(self) -> str:
        """Return the version of the server's Spark; see `check` for errors."""
        self._open()
        assert self._session is not None
        return str(self._session.version)

    def __call__(self, job: StageJob) -> None:
        """Stage a batch; once more in another session, where the server has closed this one or was started again."""
        self.last_batch = job.batch_id
        try:
            self._stage(job)
        except Exception as error:
            if _GONE not in str(error):
                raise
            log.warning("Batch %d is staged in another session: %s", job.batch_id, shortened(str(error)))
            self.close()
            self._stage(job)

    def _stage(self, job: StageJob) -> None:
        launcher = self._open()
        # `pyspark.sql.functions` makes columns of Spark Connect. `SparkSession.builder.remote` sets the same variable,
        # and another one with the URL, which has the token.
        with variable("SPARK_CONNECT_MODE_ENABLED", "1"):
            launcher(job)

    def cancel(self) -> None:
        """Interrupt the job that is running, if there is one."""
        if self._launcher is not None:
            self._launcher.cancel()

    def close(self) -> None:
        """Release the session, if there is one: the server drops the package, and what is left of jobs."""
        session, self._session, self._launcher = self._session, None, None
        if session is not None:
            _retry(session, _RETRIES_AT_THE_END)
            session.stop()

    def _open(self) -> SessionLauncher:
        if self._launcher is None:
            builder = self._builder()
            self._wait_for(builder)
            self._session = self._new_session(builder)
            # It has what the launcher calls, and PySpark does not declare it as a session.
            self._launcher = SessionLauncher(cast("Any", self._session))
        return self._launcher

    def _builder(self) -> DefaultChannelBuilder:
        """Return what opens the connection to the server."""
        from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook

        try:
            from pyspark.sql.connect.client import DefaultChannelBuilder
            from pyspark.sql.connect.session import SparkSession  # noqa: F401  # asks for more than the client
        except ImportError as error:
            raise ConfigurationError(
                f"Connection {self._conn_id!r} leads to Spark Connect, whose client cannot be imported: {error}. On "
                "the worker, install pyspark-client in the version of the server"
            ) from error
        hook = SparkConnectHook(self._conn_id)
        connection = hook.get_connection(self._conn_id)
        if not connection.host:
            raise ConfigurationError(f"Connection {self._conn_id!r} has no host: that of the Spark Connect server")
        try:
            server, found, parameters = hook.get_connection_url().partition("/;")
            # The hook leaves the slashes of a token as they are, and PySpark takes them for those of a path.
            builder = DefaultChannelBuilder(f"{server}{found}{parameters.replace('/', '%2F')}")
        except Exception:
            # The message has the URL, and that the token.
            raise ConfigurationError(
                f"Connection {self._conn_id!r} is not a valid URL of Spark Connect: set its host to a name or "
                "sc://name, without a path, and its port"
            ) from None
        builder.set(builder.PARAM_USER_AGENT, self.name)
        # Those that PySpark does not know are headers of each request.
        for header, value in connection.extra_dejson.get("headers", {}).items():
            builder.set(header.lower(), value)
        return builder

    def _wait_for(self, builder: DefaultChannelBuilder) -> None:
        """Wait until the server accepts a connection. A session would try for minutes, and not say why it fails.

        :raises StagingError: it does not
        """
        with closing(builder.toChannel()) as channel:
            if _is_ready(channel):
                return
        raise StagingError(
            f"The Spark Connect server {builder.endpoint} of connection {self._conn_id!r} does not answer: "
            f"{_reason(builder)}. Start the server, or correct host, port and use_ssl of the connection"
        )

    def _new_session(self, builder: DefaultChannelBuilder) -> SparkSession:
        from pyspark.errors import PySparkException
        from pyspark.sql.connect.session import SparkSession

        session = SparkSession.builder.channelBuilder(builder).create()
        _retry(session, _RETRIES)
        name = ""
        try:
            for name, value in self._conf.items():
                session.conf.set(name, value)
        except PySparkException as error:
            session.stop()
            condition = str(error.getCondition())
            if condition.startswith("CANNOT_MODIFY"):
                raise ConfigurationError(
                    f"Spark.conf[{name!r}] is not a property of a session: set it where the Spark Connect server "
                    f"{builder.endpoint} is started"
                ) from None
            refused = re.search(r"StatusCode\.(UNAUTHENTICATED|PERMISSION_DENIED)\s+details = \"(.*)\"", str(error))
            kind = StagingError if refused is None else ConfigurationError
            raise kind(
                f"The Spark Connect server {builder.endpoint} refused a session to connection {self._conn_id!r}: "
                f"{shortened(str(error) if refused is None else refused[2])}. Correct user id, token and use_ssl of "
                "the connection"
            ) from None
        return session


def _retry(session: SparkSession, retries: int) -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    session.client.set_retry_policies([DefaultPolicy(max_retries=retries)])


def _is_ready(channel: Any) -> bool:
    """Return whether a channel of gRPC connects, within seconds."""
    from grpc import ChannelConnectivity

    outcomes = SimpleQueue[bool]()

    def look(state: ChannelConnectivity) -> None:
        if state in (ChannelConnectivity.READY, ChannelConnectivity.TRANSIENT_FAILURE):
            outcomes.put(state is ChannelConnectivity.READY)

    channel.subscribe(look, try_to_connect=True)
    try:
        return outcomes.get(timeout=_CONNECT_SECONDS)
    except Empty:
        return False


def _reason(builder: DefaultChannelBuilder) -> str:
    """Return why a server does not accept a connection."""
    try:
        with socket.create_connection(address(builder.endpoint), timeout=_CONNECT_SECONDS):
            security = "with TLS" if builder.secure else "without TLS"
            return f"something listens there, and does not speak gRPC {security}"
    except OSError as error:
        return str(error)
