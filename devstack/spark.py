"""A standalone Spark cluster of one master and one worker, from the installed PySpark."""

import json
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from devstack.java import java_home
from devstack.paths import environment, pyspark_home
from devstack.process import ServerProcess, free_port
from devstack.server import Stack

_START_TIMEOUT = 60.0


class SparkStandalone(Stack):
    """A master and a worker on free ports of this machine: executors are processes of their own, as in production.

    :param cores: of the worker
    :param memory: of the worker, in Spark's notation
    :param home: the SPARK_HOME; by default the installed PySpark
    :param host: an address of the loopback network
    :param properties: written to spark-defaults.conf in `directory`, for its own processes and for whoever submits to
        it with SPARK_CONF_DIR
    """

    def __init__(
        self,
        *,
        cores: int = 2,
        memory: str = "2g",
        home: Path | None = None,
        host: str = "127.0.0.1",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self.host = host
        self.port, self.web_port = free_port(), free_port()
        self.directory = Path(tempfile.mkdtemp(prefix="devstack-spark-"))
        defaults = self.directory / "spark-defaults.conf"
        defaults.touch(0o600)
        defaults.write_text("".join(f"{name} {value}\n" for name, value in (properties or {}).items()))
        home = home or pyspark_home()
        env = environment() | {
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(home),
            "SPARK_CONF_DIR": str(self.directory),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        launcher, address = str(home / "bin" / "spark-class"), ["--host", host]
        package = "org.apache.spark.deploy"
        self.master = ServerProcess(
            "spark master",
            [
                launcher,
                f"{package}.master.Master",
                *address,
                "--port",
                str(self.port),
                "--webui-port",
                str(self.web_port),
            ],
            log=self.directory / "master.log",
            env=env,
            scratch=self.directory,
        )
        offer = ["--cores", str(cores), "--memory", memory, "--work-dir", str(self.directory / "work")]
        ports = ["--port", str(free_port()), "--webui-port", str(free_port())]
        self.worker = ServerProcess(
            "spark worker",
            [launcher, f"{package}.worker.Worker", *address, *ports, *offer, self.master_url],
            log=self.directory / "worker.log",
            env=env,
            scratch=self.directory,
        )

    @property
    def master_url(self) -> str:
        """The value of ``spark.master`` and ``--master``."""
        return f"spark://{self.host}:{self.port}"

    def start(self) -> Self:
        """Start both, and wait until the master lists the worker as alive."""
        # Both at once, because each JVM takes seconds to start. The worker retries until the master answers.
        self.master.start()
        self.worker.start()
        self.master.wait_until(self._worker_alive, _START_TIMEOUT, "the worker to register at the master")
        return self

    def kill_worker(self) -> None:
        """Send SIGKILL to the worker and its executors."""
        self.worker.kill()

    def kill(self) -> None:
        """Send SIGKILL to both."""
        self.worker.kill()
        self.master.kill()

    def _worker_alive(self) -> bool:
        if not self.worker.running:
            raise RuntimeError(f"the Spark worker ended\n{self.worker.log_tail()}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.web_port}/json/", timeout=2) as response:
                return any(worker["state"] == "ALIVE" for worker in json.load(response)["workers"])
        except (OSError, urllib.error.URLError, ValueError):
            return False
