"""Spark with the connectors of Kafka, Delta and Iceberg: what benchmarks compare with, and what reads tables in tests.

Iceberg's connector is for Spark 4.1 so far, which is installed beside the environment where it is asked for.
"""

import fcntl
import importlib.metadata
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from devstack.java import java_home
from devstack.kafka_jars import SCALA_VERSION
from devstack.maven import Jars, Module
from devstack.paths import BUILD, REPOSITORY, environment, pyspark_home

DELTA_VERSION = "4.4.0"
ICEBERG_VERSION = "1.12.0"

_REQUIREMENTS = REPOSITORY / "constraints" / "spark-4.1.txt"


def _kafka(spark: str, clients: str, pool: str) -> tuple[Module, ...]:
    return (
        Module("org.apache.spark", f"spark-sql-kafka-0-10_{SCALA_VERSION}", spark),
        Module("org.apache.spark", f"spark-token-provider-kafka-0-10_{SCALA_VERSION}", spark),
        Module("org.apache.kafka", "kafka-clients", clients),
        Module("org.apache.commons", "commons-pool2", pool),
    )


# What Spark includes is left out: Delta and the connector of Kafka would bring other versions of Hadoop, Jackson and
# Parquet.
_DELTA_JARS = Jars(
    "spark-connectors",
    "Spark's connectors",
    (
        *_kafka(importlib.metadata.version("pyspark"), "3.9.2", "2.13.1"),
        Module("org.postgresql", "postgresql", "42.7.8"),
        Module("io.delta", f"delta-spark_4.2_{SCALA_VERSION}", DELTA_VERSION),
        Module("io.delta", "delta-storage", DELTA_VERSION),
        Module("io.delta", "delta-kernel-api", DELTA_VERSION),
        Module("io.delta", "delta-kernel-defaults", DELTA_VERSION),
        Module("io.delta", "delta-kernel-unitycatalog", DELTA_VERSION),
    ),
    "spark-connectors.sha256",
)
_ICEBERG_JARS = Jars(
    "spark-4.1-connectors",
    "the connectors of Spark 4.1",
    (
        *_kafka("4.1.1", "3.9.1", "2.12.1"),
        Module("org.apache.iceberg", f"iceberg-spark-runtime-4.1_{SCALA_VERSION}", ICEBERG_VERSION),
    ),
    "spark-4.1-connectors.sha256",
)


class ConnectedSpark(NamedTuple):
    """A Spark with connectors.

    :param home: its SPARK_HOME
    :param jars: the value of `--jars`
    :param conf: its properties: with Iceberg, the catalog `lake` has its tables below the property
        `spark.sql.catalog.lake.warehouse`
    """

    home: Path
    jars: str
    conf: dict[str, str]

    @property
    def env(self) -> dict[str, str]:
        """The environment of `spark-submit`, and of Spark's daemons."""
        env = environment()
        path = os.pathsep.join([str(self.home / "bin"), env["PATH"]])
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        return env | {"PATH": path, "SPARK_HOME": str(self.home), "JAVA_HOME": str(java_home()), **python}


def spark_with_delta() -> ConnectedSpark:
    """Return the installed Spark with the connectors of Kafka, Delta and Postgres. Missing jars are fetched.

    :raises RuntimeError: the download failed
    """
    conf = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    return ConnectedSpark(pyspark_home(), _paths(_DELTA_JARS), conf)


def spark_with_iceberg() -> ConnectedSpark:
    """Return Spark 4.1 with the connectors of Kafka and Iceberg. What is missing is fetched.

    :raises RuntimeError: the download failed
    """
    conf = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
    }
    return ConnectedSpark(_spark_4_1(), _paths(_ICEBERG_JARS), conf)


def _paths(jars: Jars) -> str:
    return ",".join(map(str, sorted(jars.fetched().glob("*.jar"))))


def _spark_4_1() -> Path:
    installed = BUILD / "spark-4.1"
    stamp = installed / "installed"
    with (BUILD / "spark-4.1.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != _REQUIREMENTS.read_text():
            shutil.rmtree(installed, ignore_errors=True)
            own = BUILD / "tools" / "bin" / "uv"
            uv = str(own) if own.exists() else "uv"
            # Its Python part comes from the same folder, through SPARK_HOME.
            command = [uv, "pip", "install", "--quiet", "--no-deps", "--require-hashes", "--python", sys.executable]
            build = ["--build-constraints", str(REPOSITORY / "constraints" / "build.txt")]
            done = subprocess.run(
                [*command, *build, "--target", str(installed), "-r", str(_REQUIREMENTS)], capture_output=True, text=True
            )
            if done.returncode != 0:
                raise RuntimeError(f"Spark 4.1 could not be installed:\n{done.stderr}")
            stamp.write_text(_REQUIREMENTS.read_text())
    return installed / "pyspark"
