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

_OLDEST = 17

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
