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


def class_archive(spark_home: Path | None, properties: Mapping[str, str], *, with_sql: bool) -> ClassArchive | None:
    """Return the archive of the classes of Spark's driver; None where Airflow's option `class_archives`, or an option of Java, says so,
    or where Java would write none.

    :param properties: Spark's, as the application gets them
    :param with_sql: whether the application has a session
    """
    java = _java()
    if java is None or spark_home is None or not conf.getboolean("kafka_offsets", "class_archives", fallback=True):
        return None
    options = [os.environ.get(name, "") for name in _ENVIRONMENT] + [properties.get(name, "") for name in _PROPERTIES]
    if has_own_options(options) or _has_directories(spark_home, properties):
        return None
    try:
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        jars = spark_home / "jars"
        kind = [java, _version(java), str(jars), str(jars.stat().st_mtime_ns), str(with_sql)]
    except (OSError, RuntimeError):  # this user has no home, or this Spark no jars
        return None
    return ClassArchive(Path(cache, "airflow-kafka-offsets", "classes"), kind)


def _has_directories(spark_home: Path, properties: Mapping[str, str]) -> bool:
    """Return whether the class path may have a directory with files in it: then Java writes no archive, and ends with an error."""
    settings = Path(os.environ.get("SPARK_CONF_DIR") or spark_home / "conf")
    others = [os.environ.get(name) for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")]
    others.append(properties.get("spark.driver.extraClassPath"))
    return any(others) or (settings.is_dir() and any(settings.iterdir()))


def _java() -> str | None:
    """Return the path of the `java` that Spark's scripts run; None where there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(str(Path(home) / "bin" / "java") if home else "java")


@cache
def _version(java: str) -> str:
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
