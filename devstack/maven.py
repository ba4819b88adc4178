"""Fetch jars from Maven, once, with the Ivy that PySpark includes."""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from devstack.java import find_java
from devstack.paths import BUILD, REPOSITORY, pyspark_home


class Module(NamedTuple):
    """A module of Maven.

    :param transitive: whether the modules that it depends on are fetched, too
    :param classifiers: of its jars, where it has others than the one without a classifier, which is the empty one
    """

    organisation: str
    name: str
    version: str
    transitive: bool = False
    classifiers: tuple[str, ...] = ()

    def as_xml(self) -> str:
        of = f'org="{self.organisation}" name="{self.name}" rev="{self.version}"'
        scope = f'conf="default->default" transitive="{str(self.transitive).lower()}"'
        named = (f' m:classifier="{classifier}"' if classifier else "" for classifier in self.classifiers)
        artifacts = "".join(f'<artifact name="{self.name}"{classifier}/>' for classifier in named)
        return f"<dependency {of} {scope}>{artifacts}</dependency>"


class Jars(NamedTuple):
    """Jars in a folder of their own, which have recorded digests.

    :param name: of the folder
    :param title: in messages
    :param digests: a file of `constraints`, as `sha256sum *.jar` prints them
    :param files: other files of the folder, by name
    """

    name: str
    title: str
    modules: tuple[Module, ...]
    digests: str
    files: Mapping[str, str] = {}

    def fetched(self) -> Path:
        """Return the folder. Missing jars are fetched.

        :raises RuntimeError: the download failed, and the message ends with Ivy's output; or a jar is not the recorded one
        """
        home = BUILD / self.name
        if not home.exists():
            BUILD.mkdir(exist_ok=True)
            with (BUILD / f"{self.name}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits here, then finds the jars
                if not home.exists():
                    self._fetch(home)
        return home

    def check(self, folder: Path) -> None:
        """Compare the jars in a folder with the recorded digests: neither Ivy nor a mirror of Maven is trusted.

        :raises RuntimeError: a jar is another one, is missing, or is not recorded
        """
        digests = REPOSITORY / "constraints" / self.digests
        found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in folder.glob("*.jar")}
        recorded = {name: digest for digest, name in map(str.split, digests.read_text().splitlines())}
        wrong = sorted(name for name in found.keys() | recorded.keys() if found.get(name) != recorded.get(name))
        if wrong:
            raise RuntimeError(
                f"{', '.join(wrong)}: not as recorded in {digests.relative_to(REPOSITORY)}. If the version was changed on purpose, "
                "compare with the digests that Maven Central publishes, and record the new ones with sha256sum"
            )

    def _fetch(self, home: Path) -> None:
        (ivy,) = (pyspark_home() / "jars").glob("ivy-*.jar")
        partial = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=home.parent))
        try:
            modules = "".join(module.as_xml() for module in self.modules)
            (partial / "ivy.xml").write_text(
                '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
                f'<info organisation="devstack" module="{self.name}"/><configurations><conf name="default"/></configurations>'
                f"<dependencies>{modules}</dependencies></ivy-module>"
            )
            for name, text in self.files.items():
                (partial / name).write_text(text)
            pattern = f"{partial}/[artifact]-[revision](-[classifier]).[ext]"
            command = [str(find_java()), "-cp", str(ivy), "org.apache.ivy.Main", "-ivy", f"{partial}/ivy.xml"]
            # Jars are not filtered by type: some are OSGi bundles.
            done = subprocess.run([*command, "-retrieve", pattern], capture_output=True, text=True)
            if done.returncode != 0:
                output = "\n".join((done.stdout + done.stderr).splitlines()[-60:])
                raise RuntimeError(f"{self.title} could not be fetched from Maven:\n{output}")
            self.check(partial)
            partial.chmod(0o755)
            partial.rename(home)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
