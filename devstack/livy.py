"""A real Livy, whose batches run on the installed PySpark. Its jars come from Maven, once."""

import json
import os
import tempfile
import urllib.request
from pathlib import Path
from typing import Any, Self

from devstack.http_proxy import HttpProxy
from devstack.java import find_java, java_home
from devstack.maven import Jars, Module
from devstack.paths import environment, pyspark_home
from devstack.process import ServerProcess, free_port, listens
from devstack.server import Server

# The newest in Maven. It knows no Spark after 3.0, and says so; its batches are those of `spark-submit`.
VERSION = "0.7.1-incubating"

_START_TIMEOUT = 120.0

_JARS = Jars(
    "livy",
    "Livy",
    (Module("org.apache.livy", "livy-server", VERSION, transitive=True),),
    "livy.sha256",
)

_ENDED = ("success", "error", "dead", "killed")


class LivyServer(Server):
    """A server on a free port of this machine, which clients reach through a proxy.

    :ivar requests: each request, without its headers
    """

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="devstack-livy-"))
        self._port = free_port()
        self._proxy = HttpProxy(self._port, "")
        settings = {
            "livy.server.host": "127.0.0.1",
            "livy.server.port": str(self._port),
            "livy.spark.master": "local[2]",
            "livy.file.local-dir-whitelist": "/",
        }
        (self.directory / "livy.conf").write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
        (self.directory / "logs").mkdir()
        jars = f"{self.directory}{os.pathsep}{_JARS.fetched()}/*"
        opens = [
            f"--add-opens=java.{name}=ALL-UNNAMED" for name in ("base/java.lang", "security.jgss/sun.security.krb5")
        ]
        self.process = ServerProcess(
            "livy",
            [str(find_java()), "-Xmx256m", *opens, "-cp", jars, "org.apache.livy.server.LivyServer"],
            log=self.directory / "livy.log",
            env={
                "PATH": environment()["PATH"],
                "JAVA_HOME": str(java_home()),
                "SPARK_HOME": str(pyspark_home()),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_CONF_DIR": str(self.directory),
                "LIVY_HOME": str(self.directory),
                "LIVY_CONF_DIR": str(self.directory),
            },
            scratch=self.directory,
        )

    @property
    def connection(self) -> dict[str, Any]:
        """An Airflow connection to it."""
        return {"conn_type": "livy", "host": "127.0.0.1", "port": self._proxy.port}

    @property
    def requests(self) -> list[str]:
        return self._proxy.requests

    def running(self) -> int:
        """Return how many batches run."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/batches", timeout=10) as response:
            return sum(batch["state"] not in _ENDED for batch in json.load(response)["sessions"])

    def start(self) -> Self:
        """Start, and wait until requests are answered."""
        self.process.start()
        self.process.wait_until(lambda: listens(self._port), _START_TIMEOUT, "Livy to listen")
        self._proxy.__enter__()
        return self

    def close(self) -> None:
        self._proxy.__exit__()
        super().close()
