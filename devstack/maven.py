"""Fetch jars from Maven, once, with the Ivy that PySpark includes."""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
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
    :param digests: a file of `constraints`, as `sha256sum *.jar` prints them; of several folders, with their names
    :param files: other files of the folder, by name
    """

    name: str
    title: str
    modules: tuple[Module, ...]
    digests: str
    files: Mapping[str, str] = {}

    def fetched(self) -> Path:
        """Return the folder. Missing jars are fetched.

        :raises RuntimeError: the download failed, or a jar is not the recorded one
        """
        return fetched_once(self.name, self.fetch)

    def check(self, folder: Path) -> None:
        """Compare the jars in a folder with the recorded digests: neither Ivy nor a mirror of Maven is trusted.

        :raises RuntimeError: a jar is another one, is missing, or is not recorded
        """
        digests = REPOSITORY / "constraints" / self.digests
        found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in folder.glob("*.jar")}
        recorded = {
            name.rpartition("/")[2]: digest
            for digest, name in map(str.split, digests.read_text().splitlines())
            if name.rpartition("/")[0] in ("", self.name)
        }
        wrong = sorted(name for name in found.keys() | recorded.keys() if found.get(name) != recorded.get(name))
        if wrong:
            raise RuntimeError(
                f"{', '.join(wrong)}: not as recorded in {digests.relative_to(REPOSITORY)}. If the version was changed "
                "on purpose, compare with the digests that Maven Central publishes, and record the new ones with "
                "sha256sum"
            )

    def fetch(self, partial: Path) -> None:
        """Fetch the jars into a folder, and check them.

        :raises RuntimeError: as `fetched`
        """
        retrieve(self.title, partial, "".join(module.as_xml() for module in self.modules))
        for name, text in self.files.items():
            (partial / name).write_text(text)
        self.check(partial)


def unpacked(jars: Jars, unpack: Callable[[Path, Path], None]) -> Path:
    """Return a folder with what is packed in a jar, which is fetched where the folder is missing.

    :param jars: the one jar; the folder has its name
    :param unpack: is called with the jar and the folder
    """

    def fetch(partial: Path) -> None:
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            jars.fetch(Path(folder))
            (jar,) = Path(folder).glob("*.jar")
            unpack(jar, partial)

    return fetched_once(jars.name, fetch)


def fetched_once(name: str, fetch: Callable[[Path], None]) -> Path:
    """Return a folder of what is fetched once, and fetch it where it is missing.

    :param fetch: fills a new folder
    """
    home = BUILD / name
    if home.exists():
        return home
    BUILD.mkdir(exist_ok=True)
    with (BUILD / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits here, then finds the folder
        if not home.exists():
            partial = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=BUILD))
            try:
                fetch(partial)
                partial.chmod(0o755)
                partial.rename(home)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return home


def retrieve(title: str, folder: Path, dependencies: str, *options: str) -> None:
    """Have Ivy fetch dependencies into a folder.

    :param dependencies: elements of Ivy's XML
    :param options: more arguments of Ivy
    :raises RuntimeError: the download failed; the message has Ivy's output, and ends with what to do
    """
    (ivy,) = (pyspark_home() / "jars").glob("ivy-*.jar")
    module = folder / "ivy.xml"
    module.write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="devstack" module="fetched"/><configurations><conf name="default"/></configurations>'
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    command = [str(find_java()), "-cp", str(ivy), "org.apache.ivy.Main", *options, "-ivy", str(module)]
    # Jars are not filtered by type: some are OSGi bundles.
    pattern = f"{folder}/[artifact]-[revision](-[classifier]).[ext]"
    cache = Path.home() / ".ivy2"
    cache.mkdir(exist_ok=True)
    with (cache / "devstack.lock").open("w") as lock:
        # Two checkouts of a user would write the same files of Ivy's cache.
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = subprocess.run([*command, "-retrieve", pattern], capture_output=True, text=True)
    if done.returncode != 0:
        output = "\n".join((done.stdout + done.stderr).splitlines()[-60:])
        raise RuntimeError(
            f"{title} could not be fetched from Maven:\n{output}\nRun the command again. If it fails again: is "
            f"https://repo1.maven.org reachable? A damaged file of Ivy is below {cache}/cache, which can be removed"
        )
