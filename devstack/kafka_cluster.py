"""A real Kafka cluster of one controller and two brokers, for tests in which a partition's leader changes."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from confluent_kafka.admin import AdminClient, PartitionMetadata

from devstack.kafka import CLIENT, CONTROLLER, KafkaNode, new_cluster_id, voter
from devstack.process import free_port, wait_until
from devstack.server import Stack

CONTROLLER_ID = 1
BROKER_IDS = (2, 3)

_FAILOVER_TIMEOUT = 120.0

_CONFIG = {
    # A dead follower must not block acks=all for long. A slow machine must not make a live follower look dead.
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.wait.max.ms": "100",
    # Tests decide which broker leads: no broker takes its partitions back by itself.
    "auto.leader.rebalance.enable": "false",
    # The state of groups and transactions must survive the broker that a test kills.
    "offsets.topic.replication.factor": "2",
    "transaction.state.log.replication.factor": "2",
}


class KafkaCluster(Stack):
    """Three processes of Kafka on 127.0.0.1: a controller (node 1) and the brokers 2 and 3.

    Each is a server of its own: ``cluster.brokers[2].kill()``, ``.start()``, ``.pause()``. The session of a killed
    broker expires after 3 s. Only then does another broker lead its partitions.

    :param config: settings of all nodes by Kafka's names; they override those for tests
    """

    def __init__(self, *, config: dict[str, str] | None = None) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="devstack-kafka-cluster-"))
        self._cluster_id = new_cluster_id()
        self._config = _CONFIG | (config or {})
        self._controller_port = free_port()
        self.controller = self._node(CONTROLLER_ID, {CONTROLLER: self._controller_port}, heap="256m")
        self.brokers = {number: self._node(number, {CLIENT: free_port()}, heap="384m") for number in BROKER_IDS}

    def _node(self, number: int, listeners: dict[str, int], heap: str) -> KafkaNode:
        directory = self.directory / f"node-{number}"
        directory.mkdir()
        return KafkaNode(
            number,
            cluster_id=self._cluster_id,
            voters=voter(CONTROLLER_ID, self._controller_port),
            listeners=listeners,
            directory=directory,
            # If this process dies, the supervisor of the last node removes the directory of the cluster.
            scratch=self.directory,
            heap=heap,
            config=self._config,
        )

    @property
    def nodes(self) -> list[KafkaNode]:
        """The controller, then the brokers."""
        return [self.controller, *self.brokers.values()]

    @property
    def bootstrap_servers(self) -> str:
        """The value of ``bootstrap.servers``: both brokers, even if they are stopped."""
        return ",".join(broker.bootstrap_servers for broker in self.brokers.values())

    def start(self) -> Self:
        """Start the nodes that do not run, and wait until they are ready."""
        stopped = [node for node in self.nodes if not node.process.running]
        # All at once: no broker is ready before the controller is.
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(KafkaNode.start, stopped))
        return self

    def kill(self) -> None:
        """Send SIGKILL to all nodes. Data and ports stay."""
        for node in self.nodes:
            node.kill()

    def partition(self, topic: str, partition: int = 0) -> PartitionMetadata:
        """Return the metadata of a partition from a live broker: ``leader`` (-1: none), ``replicas`` and ``isrs``."""
        # A new client: an older one may answer from its cache.
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        return admin.list_topics(topic, timeout=10).topics[topic].partitions[partition]

    def wait_for_leader(self, broker: int, topic: str, partition: int = 0) -> None:
        """Wait until a broker leads a partition; -1 waits until no broker does."""
        wait_until(
            lambda: self.partition(topic, partition).leader == broker,
            _FAILOVER_TIMEOUT,
            f"{topic}[{partition}] to have the leader {broker}",
        )

    def wait_for_replicas(self, brokers: set[int], topic: str, partition: int = 0) -> None:
        """Wait until exactly these brokers are in sync."""
        wait_until(
            lambda: set(self.partition(topic, partition).isrs) == brokers,
            _FAILOVER_TIMEOUT,
            f"{topic}[{partition}] to have the replicas {brokers} in sync",
        )
