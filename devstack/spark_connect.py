"""A Spark Connect server, from the installed PySpark."""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from devstack.java import java_home
from devstack.paths import environment, pyspark_home
from devstack.process import ServerProcess, free_port, listens
from devstack.server import Server

_START_TIMEOUT = 60.0


class SparkConnectServer(Server):
    """A server on a free port of this machine. Its Python workers are this Python.

    :param master: where the server runs its queries
    :param properties: of Spark
    :param token: which clients need, in connections to `localhost` or with TLS
    """

    def __init__(
        self, *, master: str = "local[*]", properties: Mapping[str, str] | None = None, token: str | None = None
    ) -> None:
        self.port, self.token = free_port(), token
        self.directory = Path(tempfile.mkdtemp(prefix="devstack-spark-connect-"))
        conf = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.local.dir": str(self.directory),
            "spark.driver.extraJavaOptions": f"-Djava.io.tmpdir={self.directory}",
            "spark.log.level": "WARN",
            "spark.pyspark.python": sys.executable,
            **(properties or {}),
        }
        options = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
        main = "org.apache.spark.sql.connect.service.SparkConnectServer"
        self.process = ServerProcess(
            "spark connect server",
            [str(pyspark_home() / "bin" / "spark-submit"), "--master", master, "--class", main, *options],
            log=self.directory / "server.log",
            env=environment()
            | {
                "JAVA_HOME": str(java_home()),
                "SPARK_HOME": str(pyspark_home()),
                # A developer's own properties are not the tests'.
                "SPARK_CONF_DIR": str(self.directory),
            }
            | ({"SPARK_CONNECT_AUTHENTICATE_TOKEN": token} if token is not None else {}),
            scratch=self.directory,
        )

    @property
    def connection(self) -> dict[str, Any]:
        """An Airflow connection to it."""
        return {"conn_type": "spark_connect", "host": "localhost", "port": self.port, "password": self.token}

    def start(self) -> Self:
        """Start, and wait until the port is open: the server opens it last."""
        self.process.start()
        self.process.wait_until(lambda: listens(self.port), _START_TIMEOUT, "the server to listen")
        return self
