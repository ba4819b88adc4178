"""A real schema registry for the long tests: Apicurio's, with Confluent's API. Its 104 MB come from Maven, once, by
Ivy.
"""

import hashlib
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from devstack.java import find_java
from devstack.maven import fetched_once, retrieve
from devstack.paths import REPOSITORY
from devstack.process import ServerProcess, free_port, wait_until
from devstack.server import Server

# The last version that Java 17 runs.
VERSION = "3.0.9"

_ARCHIVE = f"apicurio-registry-app-{VERSION}-all.tar.gz"

# As `sha256sum` prints it.
_DIGEST = REPOSITORY / "constraints" / "registry.sha256"

_START_TIMEOUT = 120.0

# Without the parents of its POM, which are not needed for one archive, and not in every mirror.
_SETTINGS = """<ivysettings>
  <settings defaultResolver="maven"/>
  <resolvers><ibiblio name="maven" m2compatible="true" usepoms="false"/></resolvers>
</ivysettings>
"""

_DEPENDENCY = f"""
<dependency org="io.apicurio" name="apicurio-registry-app" rev="{VERSION}" transitive="false" conf="default->default">
  <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
</dependency>
"""


class SchemaRegistryServer(Server):
    """A registry with an H2 database in its memory: a stop or kill forgets what is registered."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="registry-"))
        self.port = free_port()
        home = registry_home()
        settings = {
            "quarkus.http.port": str(self.port),
            "quarkus.http.host": "127.0.0.1",
            "apicurio.storage.kind": "sql",
            "apicurio.storage.sql.kind": "h2",
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        jar = str(home / f"apicurio-registry-app-{VERSION}-runner.jar")
        command = [str(find_java()), "-Xmx384m", *options, "-jar", jar]
        self.process = ServerProcess("registry", command, log=self.directory / "registry.log", scratch=self.directory)

    @property
    def url(self) -> str:
        """Where it speaks Confluent's API."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def start(self) -> Self:
        self.process.start()
        log = self.directory / "registry.log"
        wait_until(self._answers, _START_TIMEOUT, "the registry", interval=0.5, details=log.read_text)
        return self

    def _answers(self) -> bool:
        if not self.process.running:
            raise RuntimeError(f"the registry ended:\n{(self.directory / 'registry.log').read_text()}")
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def registry_home() -> Path:
    """Return the folder with the registry's jars. A missing one is fetched.

    :raises RuntimeError: the download failed, or the archive is not the recorded one
    """
    return fetched_once(f"registry-{VERSION}", _fetch)


def _fetch(home: Path) -> None:
    with tempfile.TemporaryDirectory(dir=home) as directory:
        partial = Path(directory)
        settings = partial / "settings.xml"
        settings.write_text(_SETTINGS)
        # Ivy's cache would keep the archive a second time.
        options = ["-settings", str(settings), "-cache", f"{partial}/cache"]
        retrieve("The schema registry", partial, _DEPENDENCY, *options)
        archive = partial / _ARCHIVE
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if _DIGEST.read_text().split() != [digest, _ARCHIVE]:
            raise RuntimeError(
                f"{_ARCHIVE} is not as recorded in {_DIGEST.relative_to(REPOSITORY)}; its SHA-256 is {digest}"
            )
        with tarfile.open(archive) as opened:
            opened.extractall(home, filter="data")
