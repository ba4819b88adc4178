"""Java on the worker: whether there is one, and what saves the JVM of Spark's driver time: a compiler that is quick, or
sparing, and an archive of classes, which it need not read, check and link one by one.

Java calls it class data sharing (https://docs.oracle.com/en/java/javase/17/vm/class-data-sharing.html). A JVM takes no
archive of another Java or of other jars, and goes on without it. To write one, a JVM has to be started for that: some
options keep it from starting then. A load of 1,000 records takes 1.3 s of the processor less with an archive, 4.3 s
less with a DataFrame transform.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from airflow.providers.common.compat.sdk import conf

from airflow_kafka_offsets.exceptions import ConfigurationError, StagingError
from airflow_kafka_offsets.spark.job import StageJob

_OLDEST = 17

_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"

# The thresholds of HotSpot's optimizing compiler (`java -XX:+PrintFlagsFinal`) times ten: it optimizes what runs for
# each row, and not the rest of Spark as well, which takes a quarter of the JVM's processor time for 5,000,000 orders.
_SPARING_COMPILER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 -XX:Tier4CompileThreshold=150000 "
    "-XX:Tier4BackEdgeThreshold=400000"
)

# Up to so many rows, optimizing the code of a transform takes longer than it saves.
_FEW_ROWS = 1_000_000

_ENVIRONMENT = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

_PROPERTIES = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")

# Options of Java by which users share classes themselves, or do not share them.
_OWN = re.compile(r"-Xshare|SharedArchiveFile|ArchiveClassesAtExit|AutoCreateSharedArchive|UseSharedSpaces|-XX:AOT")

# What a JVM says of an archive that it does not take.
_QUIET = "-Xlog:cds*=off -Xlog:class+path*=off"

# What the drivers of loads do, without Kafka.
_APPLICATIONS = {
    False: """
from pyspark import SparkContext

context = SparkContext.getOrCreate()
assert context.parallelize(range(2), 2).mapPartitions(lambda numbers: numbers).collect() == [0, 1]
""",
    True: """
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.getOrCreate()
rows = spark.range(2).selectExpr("id", "string(id) name", "decimal(id) amount", "timestamp_seconds(id) at")
rows = rows.mapInArrow(lambda batches: batches, rows.schema).where(F.col("id") >= 0).withColumn("name", F.upper("name"))
assert rows.mapInArrow(lambda batches: batches, rows.schema).count() == 2
""",
}


def check_java() -> None:
    """Check that there is a Java that Spark can run on.

    :raises ConfigurationError: there is none; the message says what to do
    :raises StagingError: it was killed
    """
    home = os.environ.get("JAVA_HOME")
    java = _java()
    if java is None:
        where = f"JAVA_HOME is {home!r}, which has no bin/java" if home else "there is no java on the PATH"
        raise ConfigurationError(
            f"Spark needs Java {_OLDEST} or newer, and {where}: install a Java runtime on the worker (Debian: "
            "apt-get install openjdk-17-jre-headless) and set JAVA_HOME if it is not on the PATH"
        )
    said = _version(java)
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version.group(1)) < _OLDEST:
        raise ConfigurationError(
            f"Spark needs Java {_OLDEST} or newer; {java} says: {(said.splitlines() or ['nothing'])[0]}"
        )


def java_options(job: StageJob, spark_home: Path | None, properties: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables for the JVM that builds spark-submit's command line, and for the driver.

    The driver only hands slices to Python, or rows to a transform. The user's own options, in these variables or in
    `spark.driver.extraJavaOptions`, come later and win.

    :param properties: Spark's, as the application gets them
    """
    with_sql = job.dataframe_transform is not None
    compiler = _QUICK_COMPILER if not with_sql or job.offsets <= _FEW_ROWS else _SPARING_COMPILER
    classes = class_options(spark_home, properties, with_sql=with_sql)
    options = {"SPARK_LAUNCHER_OPTS": [_QUICK_COMPILER], "SPARK_SUBMIT_OPTS": [compiler, classes]}
    return {name: " ".join(filter(None, [*ours, os.environ.get(name)])) for name, ours in options.items()}


def class_options(spark_home: Path | None, properties: Mapping[str, str], *, with_sql: bool) -> str:
    """Return the options of a driver that finds its classes in an archive; "" where there is none, or the user's
    options say otherwise.

    :param properties: Spark's, as the application gets them
    """
    options = [os.environ.get(name, "") for name in _ENVIRONMENT] + [properties.get(name, "") for name in _PROPERTIES]
    if spark_home is None or has_own_options(options):
        return ""
    try:
        return class_archive(spark_home, with_sql=with_sql).java_options()
    except ConfigurationError:
        # Spark says itself what it lacks.
        return ""


def class_archive(spark_home: Path, *, with_sql: bool) -> ClassArchive:
    """Return the archive of the classes of Spark's driver, which need not be there; its directory is that of Airflow's
    option `class_archives`.

    :param with_sql: whether the application has a session
    :raises ConfigurationError: there is no Java, no jar of Spark, or no directory for it
    """
    java = _java()
    if java is None:
        raise ConfigurationError("There is no java: see the check 'Java' of 'kafka-offsets doctor'")
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    except RuntimeError:
        cache = ""  # this user has no home
    directory = conf.get("kafka_offsets", "class_archives", fallback="") or (cache and f"{cache}/airflow-kafka-offsets")
    if not directory:
        raise ConfigurationError(
            "This user has no home directory: set class_archives in section [kafka_offsets] of Airflow's configuration"
        )
    try:
        return ClassArchive(Path(directory), [java, _version(java)], spark_home, with_sql=with_sql)
    except OSError as error:
        raise ConfigurationError(f"Spark's jars are not found: {error}") from error


def _java() -> str | None:
    """Return the path of the `java` that Spark's scripts run; None where there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home) / "bin" / "java") if home else "java")


@cache
def _version(java: str) -> str:
    """Return what a Java says of its version.

    :raises StagingError: it was killed, as where memory is short
    """
    done = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    if done.returncode < 0:
        raise StagingError(f"{java} -version was killed by signal {-done.returncode}. Nothing was read; run it again")
    return done.stderr


class ClassArchive:
    """The archive of the classes of one kind of application.

    :param directory: of all archives
    :param java: what the `java` that Spark runs says of its version, and its path
    :param spark_home: the directory of Spark
    :param with_sql: whether the application has a session
    """

    def __init__(self, directory: Path, java: Iterable[str], spark_home: Path, *, with_sql: bool) -> None:
        kind = "\n".join([*java, str(with_sql), *_jars(spark_home)])
        self.path = directory / f"{hashlib.sha256(kind.encode()).hexdigest()[:16]}.jsa"
        self._with_sql = with_sql

    def java_options(self) -> str:
        """Return the options of a JVM that reads the archive; "" where there is none, or others could have written
        it.
        """
        # Options end at spaces.
        if re.search(r"""[\s"'\\]""", str(self.path)) or not _is_trusted(self.path):
            return ""
        return f"-XX:SharedArchiveFile={self.path} {_QUIET}"

    def write(self, submit: str, environment: Mapping[str, str]) -> None:
        """Run an application that does what the drivers of loads do, and have its JVM write the archive.

        :param submit: the path of spark-submit
        :raises ConfigurationError: no archive was written; says why
        """
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.path.parent) as work:
            application, partial = Path(work, "application.py"), Path(work, self.path.name)
            application.write_text(_APPLICATIONS[self._with_sql], encoding="utf-8")
            done = subprocess.run(
                [submit, "--master", "local[2]", "--conf", "spark.ui.enabled=false", str(application)],
                env={**environment, "SPARK_SUBMIT_OPTS": f"-XX:ArchiveClassesAtExit={partial}"},
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            if done.returncode != 0 or not partial.exists():
                said = "; ".join([*done.stdout.splitlines(), *done.stderr.splitlines()][-5:])
                raise ConfigurationError(f"Java wrote no archive of classes (exit code {done.returncode}): {said}")
            partial.chmod(0o644)
            partial.replace(self.path)


def has_own_options(options: Iterable[str]) -> bool:
    """Return whether options of Java share classes in a way of their own, or not at all."""
    return any(map(_OWN.search, options))


def _jars(spark_home: Path) -> list[str]:
    """Return what tells the jars of a Spark from other ones.

    :raises OSError: there are none
    """
    states = [(jar.name, jar.stat()) for jar in sorted((spark_home / "jars").iterdir())]
    return [str(spark_home), *(f"{name} {state.st_size} {state.st_mtime_ns}" for name, state in states)]


def _is_trusted(path: Path) -> bool:
    """Return whether only this user and root can have written a file: a JVM runs what is in it."""
    owners = {0, os.geteuid()}
    try:
        state = path.lstat()
        if not stat.S_ISREG(state.st_mode) or state.st_uid not in owners or state.st_mode & 0o022:
            return False
        above = [directory.stat() for directory in path.resolve().parents]
    except OSError:
        return False
    return all(each.st_uid in owners and (not each.st_mode & 0o022 or each.st_mode & stat.S_ISVTX) for each in above)
