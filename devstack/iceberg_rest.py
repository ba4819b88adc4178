"""Iceberg's own reference implementation of a REST catalog, in a Jetty. Its jars come from Maven, once."""

import os
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from devstack.java import find_java
from devstack.maven import Jars, Module
from devstack.paths import pyspark_home
from devstack.process import ServerProcess, free_port
from devstack.server import Server

# The last version whose Jetty has no more jars than these.
VERSION = "1.10.0"

_JETTY = "11.0.26"

_START_TIMEOUT = 120.0

# The class of the project's own server listens on all interfaces, so it is Jetty that starts servlet and catalog.
_JARS = Jars(
    "iceberg-rest",
    "Iceberg's REST catalog",
    (
        *(Module("org.apache.iceberg", f"iceberg-{name}", VERSION) for name in ("api", "bundled-guava", "common")),
        Module("org.apache.iceberg", "iceberg-core", VERSION, classifiers=("", "tests")),
        *(
            Module("org.eclipse.jetty", f"jetty-{name}", _JETTY)
            for name in ("http", "io", "security", "server", "servlet", "util", "xml")
        ),
        Module("jakarta.servlet", "jakarta.servlet-api", "5.0.0"),
        Module("com.github.ben-manes.caffeine", "caffeine", "2.9.3"),
        Module("org.apache.httpcomponents.client5", "httpclient5", "5.5"),
        Module("org.apache.httpcomponents.core5", "httpcore5", "5.3.4"),
        Module("org.apache.httpcomponents.core5", "httpcore5-h2", "5.3.4"),
        Module("org.xerial", "sqlite-jdbc", "3.50.3.0"),
    ),
    "iceberg-rest.sha256",
)

# PySpark has the others.
_OF_SPARK = (
    *(
        "hadoop-client-api",
        "hadoop-client-runtime",
        "avro-1",
        "jackson-annotations",
        "jackson-core",
        "jackson-databind",
    ),
    *("slf4j-api", "log4j-1.2", "log4j-api", "log4j-core", "log4j-slf4j2", "RoaringBitmap", "aircompressor"),
)

_CONFIGURATION = """<?xml version="1.0"?>
<!DOCTYPE Configure PUBLIC "-//Jetty//Configure//EN" "https://www.eclipse.org/jetty/configure_10_0.dtd">
<Configure id="server" class="org.eclipse.jetty.server.Server">
  <Call name="addConnector"><Arg><New class="org.eclipse.jetty.server.ServerConnector">
    <Arg><Ref refid="server"/></Arg>
    <Set name="host">127.0.0.1</Set>
    <Set name="port">{port}</Set>
  </New></Arg></Call>
  <New id="adapter" class="org.apache.iceberg.rest.RESTCatalogAdapter"><Arg>
    <Call class="org.apache.iceberg.CatalogUtil" name="buildIcebergCatalog">
      <Arg>backend</Arg>
      <Arg><Map>
        <Entry><Item>catalog-impl</Item><Item>org.apache.iceberg.jdbc.JdbcCatalog</Item></Entry>
        <Entry><Item>uri</Item><Item>jdbc:sqlite:{directory}/catalog.db</Item></Entry>
        <Entry><Item>jdbc.schema-version</Item><Item>V1</Item></Entry>
        <Entry><Item>clients</Item><Item>1</Item></Entry>
        <Entry><Item>warehouse</Item><Item>{warehouse}</Item></Entry>
      </Map></Arg>
      <Arg><New class="org.apache.hadoop.conf.Configuration"/></Arg>
    </Call>
  </Arg></New>
  <New id="servlet" class="org.eclipse.jetty.servlet.ServletHolder">
    <Set name="servlet">
      <New class="org.apache.iceberg.rest.RESTCatalogServlet"><Arg><Ref refid="adapter"/></Arg></New>
    </Set>
  </New>
  <Set name="handler"><New class="org.eclipse.jetty.servlet.ServletContextHandler">
    <Call name="addServlet"><Arg><Ref refid="servlet"/></Arg><Arg>/*</Arg></Call>
  </New></Set>
</Configure>
"""


class IcebergRestServer(Server):
    """A REST catalog whose tables are registered in a SQLite file, and kept in a local directory."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="iceberg-rest-"))
        self.port = free_port()
        self.warehouse = f"file://{self.directory}/lake"
        settings = self.directory / "jetty.xml"
        settings.write_text(_CONFIGURATION.format(port=self.port, directory=self.directory, warehouse=self.warehouse))
        of_spark = [str(jar) for name in _OF_SPARK for jar in (pyspark_home() / "jars").glob(f"{name}*.jar")]
        # Spark has a later version of servlets.
        jars = os.pathsep.join([*map(str, sorted(_JARS.fetched().glob("*.jar"))), *of_spark])
        command = [str(find_java()), "-Xmx384m", "-cp", jars, "org.eclipse.jetty.xml.XmlConfiguration", str(settings)]
        log = self.directory / "iceberg-rest.log"
        self.process = ServerProcess("iceberg-rest", command, log=log, scratch=self.directory)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def catalog(self) -> dict[str, str]:
        """The properties of a catalog that pyiceberg opens."""
        return {"type": "rest", "uri": self.url}

    def start(self) -> Self:
        self.process.start()
        self.process.wait_until(self._answers, _START_TIMEOUT, "the REST catalog")
        return self

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/config", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False
