"""Fetch Apache Kafka's jars from Maven, once, with the Ivy that PySpark includes."""

import fcntl
import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from devstack.java import find_java
from devstack.paths import BUILD, REPOSITORY, pyspark_home

KAFKA_VERSION = "4.2.1"
SCALA_VERSION = "2.13"
LOG4J_VERSION = "2.25.4"

# As `sha256sum *.jar` prints them.
_DIGESTS = REPOSITORY / "constraints" / "kafka-jars.sha256"

# kafka-tools has the command line tools, with which tests and benchmarks compare. It is not transitive: it also depends
# on Kafka Connect with a web server, which nothing here needs. log4j-slf4j-impl makes the broker write a log.
_IVY = f"""<ivy-module version="2.0">
  <info organisation="devstack" module="kafka"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="org.apache.kafka" name="kafka_{SCALA_VERSION}" rev="{KAFKA_VERSION}" conf="default->default"/>
    <dependency org="org.apache.kafka" name="kafka-tools" rev="{KAFKA_VERSION}" conf="default->default"
                transitive="false"/>
    <dependency org="org.apache.logging.log4j" name="log4j-slf4j-impl" rev="{LOG4J_VERSION}" conf="default->default"
                transitive="false"/>
  </dependencies>
</ivy-module>
"""

_LOG4J = """<Configuration status="WARN">
  <Appenders>
    <Console name="out"><PatternLayout pattern="%d{HH:mm:ss.SSS} %-5p %c{1} %m%n%throwable"/></Console>
  </Appenders>
  <Loggers><Root level="INFO"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


def kafka_java(*options: str) -> list[str]:
    """Return the beginning of a command that runs a class of Kafka's: Java with its options, Kafka's jars and logging.

    :param options: more options of the JVM
    """
    jars = kafka_classpath()
    log4j = Path(jars).with_name("log4j2.xml")
    logging = [f"-Dlog4j2.configurationFile={log4j}", "-Dlog4j2.disableJmx=true"]
    return [str(find_java()), *options, *logging, "-cp", jars]


def kafka_classpath() -> str:
    """Return the class path with Kafka's jars. Missing jars are fetched.

    :raises RuntimeError: the download failed, and the message ends with Ivy's output; or a jar is not the recorded one
    """
    home = BUILD / f"kafka-{KAFKA_VERSION}"
    if not home.exists():
        BUILD.mkdir(exist_ok=True)
        with (BUILD / "kafka.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits here, then finds the jars
            if not home.exists():
                _fetch(home)
    return f"{home}/*"


def _fetch(home: Path) -> None:
    (ivy,) = (pyspark_home() / "jars").glob("ivy-*.jar")
    partial = Path(tempfile.mkdtemp(prefix="kafka-", dir=home.parent))
    try:
        (partial / "ivy.xml").write_text(_IVY)
        (partial / "log4j2.xml").write_text(_LOG4J)
        pattern = f"{partial}/[artifact]-[revision](-[classifier]).[ext]"
        command = [str(find_java()), "-cp", str(ivy), "org.apache.ivy.Main", "-ivy", f"{partial}/ivy.xml"]
        # Jars are not filtered by type: one of them is an OSGi bundle.
        done = subprocess.run([*command, "-retrieve", pattern], capture_output=True, text=True)
        if done.returncode != 0 or not list(partial.glob(f"kafka_{SCALA_VERSION}-{KAFKA_VERSION}.jar")):
            output = "\n".join((done.stdout + done.stderr).splitlines()[-60:])
            raise RuntimeError(f"Kafka's jars could not be fetched from Maven:\n{output}")
        check_jars(partial)
        partial.chmod(0o755)
        partial.rename(home)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_jars(fetched: Path) -> None:
    """Compare the jars in a folder with the recorded digests: neither Ivy nor a mirror of Maven is trusted.

    :raises RuntimeError: a jar is another one, is missing, or is not recorded
    """
    found = {jar.name: hashlib.sha256(jar.read_bytes()).hexdigest() for jar in fetched.glob("*.jar")}
    lines = map(str.split, _DIGESTS.read_text().splitlines())
    recorded = {name: digest for digest, name in lines}
    if wrong := sorted(name for name in found.keys() | recorded.keys() if found.get(name) != recorded.get(name)):
        raise RuntimeError(
            f"{', '.join(wrong)}: not as recorded in {_DIGESTS.relative_to(REPOSITORY)}. If the version was changed on purpose, "
            "compare with the digests that Maven Central publishes, and record the new ones with sha256sum"
        )
