"""A Hadoop cluster on this machine: HDFS and YARN's ResourceManager in one JVM, and a JVM for each NodeManager.

The first JVM is driven through Py4J, which PySpark brings: nothing of Java has to be compiled. A NodeManager is a
process of its own, so that it can fail as a machine does, with all of its containers.
"""

from __future__ import annotations

import getpass
import json
import os
import signal
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from xml.sax.saxutils import escape

from py4j.java_gateway import GatewayParameters, JavaGateway

from devstack.java import find_java, java_home
from devstack.maven import Jars, Module
from devstack.paths import environment, pyspark_home
from devstack.process import ServerProcess, free_port
from devstack.server import Stack

# That of the clients that PySpark includes.
HADOOP_VERSION = "3.5.0"

_JARS = Jars(
    f"hadoop-{HADOOP_VERSION}",
    "Hadoop's servers",
    (
        Module("org.apache.hadoop", "hadoop-client-minicluster", HADOOP_VERSION),
        # What its classes refer to, and neither it nor PySpark has.
        Module("junit", "junit", "4.13.2"),
        Module("org.mockito", "mockito-core", "4.11.0"),
        Module("org.bouncycastle", "bcprov-jdk18on", "1.82"),
        Module("org.bouncycastle", "bcpkix-jdk18on", "1.82"),
        Module("org.bouncycastle", "bcutil-jdk18on", "1.82"),
    ),
    "hadoop.sha256",
)

_START_TIMEOUT = 120.0

# JVMs that live for seconds.
_QUICK = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

_MANAGER = "org.apache.hadoop.yarn.server.resourcemanager"

_SERVERS = {
    # It needs no file of its own.
    "yarn.resourcemanager.scheduler.class": f"{_MANAGER}.scheduler.fifo.FifoScheduler",
    "yarn.scheduler.include-port-in-node-name": "true",
    "yarn.scheduler.minimum-allocation-mb": "128",
    # That a node or a driver has ended is known in seconds rather than in ten minutes.
    "yarn.resourcemanager.nodemanagers.heartbeat-interval-ms": "200",
    "yarn.nm.liveness-monitor.expiry-interval-ms": "10000",
    "yarn.am.liveness-monitor.expiry-interval-ms": "20000",
    "yarn.nodemanager.sleep-delay-before-sigkill.ms": "250",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99.5",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    # What containers wrote can be looked at after their end.
    "yarn.nodemanager.delete.debug-delay-sec": "3600",
}

# Mounts empty directories where only this process and its children see them, and runs a command.
_HIDE = 'while [ "$1" != -- ]; do mount -t tmpfs none "$1" || exit 1; shift; done; shift; exec "$@"'


class Node:
    """A NodeManager.

    :param number: its number in the cluster
    """

    def __init__(self, cluster: HadoopCluster, number: int, memory_mb: int, hidden: Sequence[Path]) -> None:
        self.directory = cluster.directory / f"node-{number}"
        """Has the directories and the logs of its containers."""
        self.address, self.web_address = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
        conf = cluster.configuration(
            f"node-{number}-conf",
            {
                "yarn.nodemanager.address": self.address,
                "yarn.nodemanager.localizer.address": f"127.0.0.1:{free_port()}",
                "yarn.nodemanager.webapp.address": self.web_address,
                "yarn.nodemanager.local-dirs": f"{self.directory}/local",
                "yarn.nodemanager.log-dirs": f"{self.directory}/logs",
                "yarn.nodemanager.resource.memory-mb": str(memory_mb),
                "yarn.nodemanager.resource.cpu-vcores": "8",
                **_SERVERS,
            },
        )
        command = cluster.java("256m", conf, "org.apache.hadoop.yarn.server.nodemanager.NodeManager")
        if hidden:
            as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
            command = ["unshare", "--mount", *as_root, "sh", "-c", _HIDE, "sh", *map(str, hidden), "--", *command]
        self.process = cluster.process(f"node-{number}", command)

    def start(self) -> None:
        """Start it, and do not wait."""
        self.process.start()

    def kill(self) -> None:
        """Send SIGKILL to it and to all processes of its containers."""
        self.process.kill()

    def containers(self) -> dict[str, set[int]]:
        """Return the processes of the containers that run, by id. The first of an application has the driver in cluster
        mode; its number is 1.
        """
        found: dict[str, set[int]] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                environ = dict(v.partition("=")[::2] for v in (entry / "environ").read_text("latin-1").split("\0"))
            except OSError:
                continue
            if environ.get("LOCAL_DIRS", "").startswith(str(self.directory)):
                found.setdefault(environ.get("CONTAINER_ID", ""), set()).add(int(entry.name))
        return found

    def kill_container(self, container: str) -> bool:
        """Send SIGKILL to the processes of a container; return False where it has ended."""
        killed = False
        while pids := self.containers().get(container):
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed = True
                except ProcessLookupError:
                    pass
        return killed


class HadoopCluster(Stack):
    """A cluster on free ports of 127.0.0.1.

    :param nodes: the number of NodeManagers; without one there is only HDFS
    :param memory_mb: what each has for containers
    :param hidden: directories that containers find empty, as on another machine
    """

    def __init__(self, *, nodes: int = 1, memory_mb: int = 4096, hidden: Sequence[Path] = ()) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="devstack-yarn-"))
        self.hdfs_port, web_port, self._gateway_port = free_port(), free_port(), free_port()
        self._web = f"http://127.0.0.1:{web_port}"
        names = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
        self._yarn = {f"yarn.resourcemanager.{name}": f"127.0.0.1:{free_port()}" for name in names} | {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.webapp.address": f"127.0.0.1:{web_port}",
        }
        self.conf_dir = self.configuration("conf", {})
        """The value of HADOOP_CONF_DIR."""
        gateway = ["--enable-auth", str(self._gateway_port)]
        command = self.java("512m", self.configuration("master-conf", _SERVERS), "py4j.GatewayServer")
        self.master = self.process("master", [*command, *gateway])
        self.nodes = [Node(self, number, memory_mb, hidden) for number in range(1, nodes + 1)]

    @property
    def hdfs(self) -> str:
        """The URI of its HDFS."""
        return f"hdfs://127.0.0.1:{self.hdfs_port}"

    def start(self) -> Self:
        """Start all, and wait until the ResourceManager has the nodes."""
        # All at once, because each JVM takes seconds to start: NodeManagers retry until the ResourceManager answers.
        for process in (self.master, *(node.process for node in self.nodes)):
            process.start()
        self._start_master()
        self.master.wait_until(self._all_nodes_run, _START_TIMEOUT, "the NodeManagers to register")
        return self

    def kill(self) -> None:
        """Send SIGKILL to all processes."""
        for node in self.nodes:
            node.kill()
        self.master.kill()

    def applications(self) -> list[dict[str, Any]]:
        """Return what the ResourceManager knows of its applications, the oldest first."""
        found = (json.loads(_page(f"{self._web}/ws/v1/cluster/apps"))["apps"] or {}).get("app", [])
        return sorted(found, key=lambda application: str(application["id"]))

    def pages(self) -> dict[str, str]:
        """Return the pages that the ResourceManager has of itself and its applications, by their URLs."""
        urls = [f"{self._web}/{path}" for path in ("cluster", "conf", "ws/v1/cluster/info", "ws/v1/cluster/apps")]
        for application in self.applications():
            name = application["id"]
            urls += [f"{self._web}/cluster/app/{name}", f"{self._web}/ws/v1/cluster/apps/{name}/appattempts"]
            urls.append(f"{self._web}/cluster/appattempt/{name.replace('application', 'appattempt')}_000001")
        return {url: _page(url) for url in urls}

    def spark(self, deploy_mode: str) -> dict[str, str]:
        """Return the properties of Spark for applications on a cluster of one small machine."""
        properties = {
            "spark.submit.deployMode": deploy_mode,
            # Else hundreds of megabytes are uploaded for each application.
            "spark.yarn.jars": f"local:{pyspark_home()}/jars/*",
            "spark.pyspark.python": sys.executable,
            "spark.executor.instances": "1",
            "spark.executor.cores": "2",
            "spark.executor.memory": "512m",
            "spark.driver.memory": "512m",
            "spark.ui.enabled": "false",
        }
        properties |= {f"spark.{of}.SPARK_LOCAL_IP": "127.0.0.1" for of in ("yarn.appMasterEnv", "executorEnv")}
        return properties | {f"spark.{of}.extraJavaOptions": " ".join(_QUICK) for of in ("driver", "executor")}

    def configuration(self, name: str, properties: Mapping[str, str]) -> Path:
        """Write the configuration of a server, or of clients.

        :param name: of its directory
        :param properties: besides the addresses
        """
        directory = self.directory / name
        directory.mkdir()
        core = {"fs.defaultFS": self.hdfs, "hadoop.tmp.dir": f"{self.directory}/tmp"}
        for file, content in (("core-site.xml", core), ("yarn-site.xml", {**self._yarn, **properties})):
            elements = (
                f"<property><name>{key}</name><value>{escape(value)}</value></property>"
                for key, value in content.items()
            )
            (directory / file).write_text(f"<configuration>{''.join(elements)}</configuration>\n")
        return directory

    def java(self, heap: str, conf: Path, main: str) -> list[str]:
        """Return the command that runs a class of Hadoop's."""
        path = f"{conf}:{_JARS.fetched()}/*:{pyspark_home()}/jars/*"
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.lang", "java.util")]
        return [
            str(find_java()),
            f"-Xmx{heap}",
            *_QUICK,
            "-Dlog4j2.level=WARN",
            *opened,
            "-cp",
            path,
            main,
        ]

    def process(self, name: str, command: Sequence[str]) -> ServerProcess:
        """Return a process of the cluster, with a log of its own."""
        env = environment() | {"JAVA_HOME": str(java_home()), "HADOOP_USER_NAME": getpass.getuser()}
        return ServerProcess(
            f"yarn {name}", command, log=self.directory / f"{name}.log", env=env, scratch=self.directory
        )

    def _start_master(self) -> None:
        token = self.master.wait_until(self._gateway_token, _START_TIMEOUT, "Py4J")
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=self._gateway_port, auth_token=token))
        try:
            hadoop = gateway.jvm.org.apache.hadoop
            conf = hadoop.hdfs.HdfsConfiguration()
            conf.set("hdfs.minidfs.basedir", f"{self.directory}/hdfs")
            hadoop.hdfs.MiniDFSCluster.Builder(conf).nameNodePort(self.hdfs_port).numDataNodes(1).build()
            if self.nodes:
                manager = hadoop.yarn.server.resourcemanager.ResourceManager()
                manager.init(hadoop.yarn.conf.YarnConfiguration())
                manager.start()
        finally:
            gateway.close()

    def _gateway_token(self) -> str | None:
        # It prints its port and the token.
        lines = self.master.log.read_text().splitlines()
        port = str(self._gateway_port)
        return next(iter(lines[lines.index(port) + 1 :]), None) if port in lines else None

    def _all_nodes_run(self) -> bool:
        if not self.nodes:
            return True
        if ended := [node for node in self.nodes if not node.process.running]:
            raise RuntimeError(f"a NodeManager ended\n{ended[0].process.log_tail()}")
        nodes = json.loads(_page(f"{self._web}/ws/v1/cluster/nodes"))["nodes"] or {}
        running = [node for node in nodes.get("node", []) if node["state"] == "RUNNING"]
        return len(running) == len(self.nodes)


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        return str(response.read().decode())
