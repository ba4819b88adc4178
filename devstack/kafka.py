"""A real Kafka broker for tests: one KRaft process that can be stopped, killed, paused and started again."""

import base64
import fcntl
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from devstack.kafka_jars import kafka_jars, kafka_java
from devstack.paths import BUILD
from devstack.process import ServerProcess, free_port, listens
from devstack.server import Server

_START_TIMEOUT = 60.0

# The roles of a node follow from its listeners: one that is not the controller's makes it a broker.
CLIENT, CONTROLLER = "CLIENT", "CONTROLLER"

_SETTINGS = {
    # For one broker. The first use of groups or transactions must not create 50 partitions.
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    # A test that reads a missing topic has a mistake.
    "auto.create.topics.enable": "false",
    "delete.topic.enable": "true",
    # Retention, compaction and deletion happen within seconds. A look at the retention is one at each of a thousand
    # partitions.
    "log.retention.check.interval.ms": "2000",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "500",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # Two cores are shared with Spark, Postgres and Airflow: no record into the metadata log twice a second where
    # nothing happens.
    "metadata.max.idle.interval.ms": "5000",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "num.recovery.threads.per.data.dir": "2",
    # A killed broker may register again only after its session with the controller has expired: 9 s by default.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


def voter(node_id: int, port: int) -> str:
    """Return a controller in the form of ``controller.quorum.voters``."""
    return f"{node_id}@127.0.0.1:{port}"


def _addresses(node_id: int, voters: str, listeners: Mapping[str, int], protocols: Mapping[str, str]) -> dict[str, str]:
    addresses = {name: f"{name}://127.0.0.1:{port}" for name, port in listeners.items()}
    spoken = {CLIENT: "PLAINTEXT", CONTROLLER: "PLAINTEXT", **protocols}
    roles = dict.fromkeys("controller" if name == CONTROLLER else "broker" for name in listeners)
    settings = {
        "listeners": ",".join(addresses.values()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in spoken.items()),
    }
    if voters:
        settings |= {
            "process.roles": ",".join(roles),
            "node.id": str(node_id),
            "controller.listener.names": CONTROLLER,
            "controller.quorum.voters": voters,
        }
    else:
        settings["broker.id"] = str(node_id)
    if CLIENT in listeners:
        advertised = ",".join(address for name, address in addresses.items() if name != CONTROLLER)
        settings |= {"advertised.listeners": advertised, "inter.broker.listener.name": CLIENT}
    return settings


class KafkaNode(Server):
    """One process of a Kafka cluster on 127.0.0.1. Starting it after a stop or kill keeps ports and data.

    :param node_id: its number in the cluster
    :param cluster_id: the same for every node of the cluster
    :param voters: the cluster's controllers, see :func:`voter`; empty where a ZooKeeper has their place
    :param listeners: ports by name; with `CLIENT` the node is a broker, with `CONTROLLER` a controller
    :param protocols: what other listeners speak, by name; `CLIENT` and `CONTROLLER` are plain text
    :param directory: for the settings, data and log of this node
    :param scratch: directory to remove if this process dies without stopping; None is `directory`
    :param heap: the JVM's maximum heap
    :param java_options: more options of the JVM
    :param config: settings by Kafka's names; they override those for tests
    :param version: one of `devstack.versions`; None is that of every day
    """

    def __init__(
        self,
        node_id: int,
        *,
        cluster_id: str,
        voters: str,
        listeners: Mapping[str, int],
        directory: Path,
        heap: str,
        config: Mapping[str, str],
        java_options: Sequence[str] = (),
        scratch: Path | None = None,
        protocols: Mapping[str, str] | None = None,
        version: str | None = None,
    ) -> None:
        self.node_id = node_id
        self.port = listeners.get(CLIENT, listeners.get(CONTROLLER, 0))
        self.directory = directory
        self._ready = self._answers if CLIENT in listeners else self._listens
        self._cluster_id = cluster_id
        self._formatted = False
        self._roles = "-".join(name for name in (CLIENT, CONTROLLER) if name in listeners).lower()
        self._properties = self.directory / "server.properties"
        addresses = _addresses(node_id, voters, listeners, protocols or {})
        settings = _SETTINGS | addresses | {"log.dirs": str(self.directory / "log")}
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in (settings | dict(config)).items()))
        self._java = kafka_java(f"-Xmx{heap}", version=version)
        self._version = version
        self.process = ServerProcess(
            f"kafka node {node_id}",
            [*kafka_java(f"-Xmx{heap}", *java_options, version=version), "kafka.Kafka", str(self._properties)],
            log=self.directory / "kafka.log",
            scratch=scratch or directory,
        )

    @property
    def bootstrap_servers(self) -> str:
        """The value of ``bootstrap.servers``."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start, and wait until the broker answers a metadata request that lists it as a live broker."""
        if not self._formatted:
            self._format()
        self.process.start()
        self.process.wait_until(self._ready, _START_TIMEOUT, "its first answer")
        return self

    def run_class(self, name: str, *arguments: str, timeout: float = 120) -> str:
        """Run one of Kafka's command line tools by its class name, and return what it prints.

        :raises RuntimeError: the tool failed; the message has its output
        """
        command = [*self._java, name, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        if done.returncode != 0:
            raise RuntimeError(f"{name} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def _format(self) -> None:
        """Give the node a formatted log directory: a copy of one that Kafka's tool made for a node of the same roles.

        The tool is a JVM that takes longer than the broker's own start. The ids of a node are in one file of the
        directory alone.
        """
        template = BUILD / f"{kafka_jars(self._version).name}-formatted-{self._roles}"
        if not template.exists():
            BUILD.mkdir(exist_ok=True)
            with (BUILD / f"{template.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits here, then finds the template
                if not template.exists():
                    arguments = ["--cluster-id", self._cluster_id, "--config", str(self._properties)]
                    self.run_class("kafka.tools.StorageTool", "format", *arguments)
                    partial = Path(tempfile.mkdtemp(prefix=template.name, dir=BUILD))
                    shutil.copytree(self.directory / "log", partial, dirs_exist_ok=True)
                    partial.rename(template)
        log = self.directory / "log"
        shutil.copytree(template, log, dirs_exist_ok=True)
        ids = {"cluster.id": self._cluster_id, "node.id": str(self.node_id), "directory.id": new_cluster_id()}
        meta = log / "meta.properties"
        lines = [line.partition("=") for line in meta.read_text().splitlines() if not line.startswith("#")]
        meta.write_text("".join(f"{name}={ids.get(name, value)}\n" for name, _, value in lines))
        self._formatted = True

    def _answers(self) -> bool:
        if not self._listens():
            return False
        # A new client for each request: a client that knows other brokers might ask those.
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        try:
            return self.node_id in admin.list_topics(timeout=1).brokers
        except KafkaException:
            return False

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0


class KafkaBroker(KafkaNode):
    """Apache Kafka on a free port of 127.0.0.1, with its data in a temporary directory.

    Starting it after a stop or kill keeps port and data. Leaving the context removes them.

    :param version: one of `devstack.versions`; None is that of every day. Before 3.3, the broker has a ZooKeeper
        beside it
    :param heap: the JVM's maximum heap
    :param config: broker settings by Kafka's names; they override those for tests
    :param java_options: more options of the JVM
    :param protocols: what further listeners speak, by name; their ports are in `ports`
    """

    def __init__(
        self,
        *,
        version: str | None = None,
        heap: str = "512m",
        config: dict[str, str] | None = None,
        java_options: Sequence[str] = (),
        protocols: Mapping[str, str] | None = None,
    ) -> None:
        controller_port = free_port()
        self.ports = {name: free_port() for name in protocols or {}}
        directory = Path(tempfile.mkdtemp(prefix="devstack-kafka-"))
        self._keeper = _zookeeper(directory, version) if version in _WITH_ZOOKEEPER else None
        controller = {CONTROLLER: controller_port} if self._keeper is None else {}
        super().__init__(
            1,
            cluster_id=new_cluster_id(),
            voters=voter(1, controller_port) if controller else "",
            listeners={CLIENT: free_port(), **controller, **self.ports},
            directory=directory,
            heap=heap,
            config=(config or {}) if self._keeper is None else self._keeper.config | (config or {}),
            java_options=java_options,
            protocols=protocols,
            version=version,
        )

    def start(self) -> Self:
        if self._keeper is not None:
            # It knows the cluster, and needs no formatted directory.
            self._formatted = True
            if not self._keeper.process.running:
                self._keeper.process.start()
                self._keeper.process.wait_until(self._keeper.listens, _START_TIMEOUT, "its port")
        return super().start()

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.process.kill()
        super().close()


# Before KRaft, brokers kept the state of the cluster there.
_WITH_ZOOKEEPER = ("2.8",)


class _ZooKeeper(NamedTuple):
    process: ServerProcess
    port: int

    def listens(self) -> bool:
        return listens(self.port)

    @property
    def config(self) -> dict[str, str]:
        """The settings of a broker."""
        # A killed broker may register again only after its session has expired.
        return {"zookeeper.connect": f"127.0.0.1:{self.port}", "zookeeper.session.timeout.ms": "2000"}


def _zookeeper(directory: Path, version: str | None) -> _ZooKeeper:
    port, properties = free_port(), directory / "zookeeper.properties"
    settings = {
        "dataDir": directory / "zookeeper", "clientPort": port, "clientPortAddress": "127.0.0.1", "tickTime": 500,
        "maxSessionTimeout": 2000, "forceSync": "no", "admin.enableServer": "false",
    }  # fmt: skip
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    main = "org.apache.zookeeper.server.ZooKeeperServerMain"
    command = [*kafka_java("-Xmx128m", version=version), main, str(properties)]
    return _ZooKeeper(ServerProcess("zookeeper", command, log=directory / "zookeeper.log"), port)


def new_cluster_id() -> str:
    """Return a new cluster id in the form that Kafka uses: 16 bytes, base64 for URLs, no padding."""
    first, *rest = uuid.uuid4().bytes
    # As an argument of a command it must not begin with "-".
    return base64.urlsafe_b64encode(bytes([first & 0x7F, *rest])).decode().rstrip("=")
