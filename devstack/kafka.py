"""A real Kafka broker: one KRaft process, made for tests, that can be stopped, killed, frozen and brought back."""

import base64
import subprocess
import tempfile
import uuid
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from devstack.java import find_java
from devstack.kafka_jars import kafka_classpath
from devstack.process import ServerProcess, free_port
from devstack.server import Server

_START_TIMEOUT = 60.0


def _properties(data: Path, port: int, controller_port: int, overrides: dict[str, str]) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": f"CLIENT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"CLIENT://127.0.0.1:{port}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENT",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "log.dirs": str(data / "log"),
        # One broker, and a first use of groups or transactions that does not create 50 partitions.
        "offsets.topic.num.partitions": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # A test that reads a topic nobody created has a mistake in it.
        "auto.create.topics.enable": "false",
        "delete.topic.enable": "true",
        # Retention, compaction and deletion happen within a test's patience.
        "log.retention.check.interval.ms": "500",
        "log.initial.task.delay.ms": "500",
        "log.segment.delete.delay.ms": "500",
        "log.cleaner.backoff.ms": "200",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
        # Two cores are shared with Spark, Postgres and Airflow.
        "num.network.threads": "2",
        "num.io.threads": "4",
        "num.recovery.threads.per.data.dir": "2",
        # A killed broker may register again only when the controller has given up on its former self: 9 s by default.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
    }
    return "".join(f"{key}={value}\n" for key, value in (settings | overrides).items())


class KafkaBroker(Server):
    """Apache Kafka on a free port of 127.0.0.1, with its data in a temporary directory.

    Start after stop or kill keeps port and data; leaving the context removes them.

    :param heap: the JVM's maximum heap
    :param config: broker settings over those that suit tests, keyed by Kafka's names
    """

    def __init__(self, *, heap: str = "512m", config: dict[str, str] | None = None) -> None:
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="devstack-kafka-"))
        self._formatted = False
        self._properties = self.directory / "server.properties"
        self._properties.write_text(_properties(self.directory, self.port, free_port(), config or {}))
        self._java = [str(find_java()), f"-Xmx{heap}", "-Dlog4j2.disableJmx=true", "-cp", kafka_classpath()]
        self.process = ServerProcess(
            "kafka",
            [*self._java, "kafka.Kafka", str(self._properties)],
            log=self.directory / "kafka.log",
            scratch=self.directory,
        )

    @property
    def bootstrap_servers(self) -> str:
        """For ``bootstrap.servers``."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start, and wait until the broker answers a metadata request and knows itself as a live broker."""
        if not self._formatted:
            self.run_class(
                "kafka.tools.StorageTool", "format", "--cluster-id", _cluster_id(), "--config", str(self._properties)
            )
            self._formatted = True
        self.process.start()
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

        def answers() -> bool:
            try:
                return bool(admin.list_topics(timeout=1).brokers)
            except KafkaException:
                return False

        self.process.wait_until(answers, _START_TIMEOUT, "the broker's first metadata response")
        return self

    def run_class(self, name: str, *arguments: str, timeout: float = 120) -> str:
        """Run one of Kafka's command line tools by its class name, and return what it prints.

        :raises RuntimeError: the tool failed; the message has its output
        """
        done = subprocess.run([*self._java, name, *arguments], capture_output=True, text=True, timeout=timeout)
        if done.returncode != 0:
            raise RuntimeError(f"{name} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout


def _cluster_id() -> str:
    """A new cluster id in the form that Kafka uses: 16 bytes, base64 for URLs, no padding."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
