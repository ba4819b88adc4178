"""Java on the worker: whether there is one, and the archive of classes that lets it start sooner."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from airflow.sdk.configuration import conf

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.spark.class_archive import ClassArchive, has_own_options
from airflow_kafka_offsets.spark.job import StageJob

_OLDEST = 17

_QUICK_COMPILER = "-XX:TieredStopAtLevel=1"

# Up to so many rows, optimizing the code of a transform takes longer than it saves; with three times as many it breaks
# even.
_FEW_ROWS = 1_000_000

_ENVIRONMENT = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")

_PROPERTIES = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")


def check_java() -> None:
    """Check that there is a Java that Spark can run on.

    :raises ConfigurationError: there is none; the message says what to do
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


def class_archive(spark_home: Path, *, with_sql: bool) -> ClassArchive:
    """Return the archive of the classes of Spark's driver, which need not be there; its directory is that of Airflow's
    option `class_archives`.

    :param with_sql: whether the application has a session
    :raises ConfigurationError: there is no Java, no jar of Spark, or no directory for it
    """
    java = _java()
    if java is None:
        raise ConfigurationError("There is no java: see the check 'Java' of 'airflow kafka-offsets doctor'")
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    except RuntimeError:
        cache = ""  # this user has no home
    directory = conf.get("kafka_offsets", "class_archives", fallback="") or (cache and f"{cache}/airflow-kafka-offsets")
    if not directory:
        raise ConfigurationError(
            "This user has no home: set class_archives in section [kafka_offsets] of Airflow's configuration"
        )
    try:
        return ClassArchive(Path(directory), [java, _version(java)], spark_home, with_sql=with_sql)
    except OSError as error:
        raise ConfigurationError(f"Spark's jars are not found: {error}") from error


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


def _java() -> str | None:
    """Return the path of the `java` that Spark's scripts run; None where there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home) / "bin" / "java") if home else "java")


@cache
def _version(java: str) -> str:
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr


def java_options(job: StageJob, environment: Mapping[str, str], classes: str = "") -> dict[str, str]:
    """Return environment variables for the JVM that builds spark-submit's command line, and for the driver.

    The driver only hands slices to Python, or few rows to a transform. The user's own options, in these variables or in
    `spark.driver.extraJavaOptions`, come later and win.

    :param environment: may hold the user's own options
    :param classes: options of the driver for its archive of classes
    """
    is_quick = job.dataframe_transform is None or job.offsets <= _FEW_ROWS
    options = {"SPARK_LAUNCHER_OPTS": [_QUICK_COMPILER], "SPARK_SUBMIT_OPTS": [_QUICK_COMPILER] * is_quick + [classes]}
    merged = {name: " ".join([*ours, environment.get(name, "")]).strip() for name, ours in options.items()}
    return {name: text for name, text in merged.items() if text}
