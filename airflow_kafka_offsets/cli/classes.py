"""`kafka-offsets archive-classes`."""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from pathlib import Path

from airflow_kafka_offsets.cli.output import note, write
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.java import check_java, class_archive
from airflow_kafka_offsets.hooks.spark import spark_home, submit_environment

_CONFIGURATIONS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")


def archive_classes(args: Namespace) -> None:
    """Write the archives of the classes that drivers load, and print their paths."""
    check_java()
    environment = submit_environment()
    submit, home = shutil.which("spark-submit", path=environment["PATH"]), spark_home("spark-submit")
    if submit is None or home is None:
        raise ConfigurationError(
            "spark-submit is not on the PATH: install the extra 'airflow-kafka-offsets[spark]' here, or Spark"
        )
    directories = [environment.get("SPARK_CONF_DIR") or str(home / "conf"), *map(environment.get, _CONFIGURATIONS)]
    for directory in filter(None, directories):
        if Path(directory).is_dir() and any(Path(directory).iterdir()):
            raise ConfigurationError(
                f"{directory} has files. Spark's driver has it in its class path, where Java archives no classes "
                "while a directory has files: empty it"
            )
    environment |= {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    for with_sql in (False, True):
        archive = class_archive(home, with_sql=with_sql)
        note(f"Java writes the classes of a load {'with' if with_sql else 'without'} a DataFrame transform")
        archive.write(submit, environment)
        write(f"{archive.path}\n")
        if not archive.java_options():
            raise ConfigurationError(
                f"Loads will not use {archive.path}: users besides root and this one may write to it or to a "
                "directory above it, or its path has spaces"
            )
