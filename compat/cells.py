"""The cells of `make compat`: what each has in place of the versions of every day."""

from __future__ import annotations

from typing import NamedTuple

LOWEST = "constraints/lowest.txt"

PYTHON_3_14 = "3.14"
"""The version that `devstack.python_3_14` fetches."""

_PYENV = "~/.pyenv/versions"


class Environment(NamedTuple):
    """The environment of a cell, in the folder `compat-NAME` of the cache, made by uv.

    :param python: the interpreter, or its version
    :param constraints: a file with everything that is installed; None resolves it
    :param pins: versions of packages, where it is resolved
    :param more: packages that the constraints lack for this Python
    :param instead: versions of packages in place of those of the constraints
    :param until: the day of which Airflow's own dependencies are: an old Airflow does not work with newer ones
    """

    python: str = "3.11"
    constraints: str | None = "constraints/dev.txt"
    pins: tuple[str, ...] = ()
    until: str | None = None
    more: tuple[str, ...] = ()
    instead: tuple[str, ...] = ()


class Cell(NamedTuple):
    """A cell.

    :param servers: that are not those of every day, such as `postgres-14`
    :param environment: None is that of every day
    :param spark: the master, or `standalone`
    :param spark_home: the version of a PySpark that SPARK_HOME and PYTHONPATH name, before that of the environment
    """

    servers: tuple[str, ...] = ()
    environment: Environment | None = None
    spark: str = "local[2]"
    spark_home: str | None = None


def _airflow(version: str, until: str) -> Environment:
    return Environment(constraints=None, pins=(f"apache-airflow=={version}",), until=until)


def _python(version: str, *more: str) -> Environment:
    return Environment(python=f"{_PYENV}/{version}/bin/python", more=more)


def _spark(version: str) -> Environment:
    return Environment(instead=(f"pyspark=={version}", f"pyspark-client=={version}"))


_YAML = ("pyyaml-ft>=8.0.0",)
"""Needed from Python 3.13 on."""

# Each version of a database beside one of Kafka: a run is long, and each server is in one of them.
_SERVERS = {
    "postgres-14": "kafka-2.8",
    "postgres-15": "kafka-3.5",
    "postgres-16": "kafka-3.9",
    "postgres-17": "kafka-4.2",
    "mariadb-10.11": "kafka-2.8",
    "mariadb-11.4": "kafka-3.9",
    "mysql-8.0": "kafka-3.5",
}

OLDEST = "oldest"

CELLS: dict[str, Cell] = {
    "newest": Cell(),
    OLDEST: Cell(("kafka-2.8", "postgres-14"), Environment(constraints=LOWEST)),
    **{database: Cell((database, kafka)) for database, kafka in _SERVERS.items()},
    "standalone": Cell(spark="standalone"),
    # The Spark provider requires a client, which has the versions of Spark from 4 on.
    "spark-3.5": Cell(spark_home="3.5.9"),
    "spark-4.0": Cell(environment=_spark("4.0.4")),
    "spark-4.1": Cell(environment=_spark("4.1.3")),
    "python-3.12": Cell(environment=_python("3.12.1")),
    "python-3.13": Cell(environment=_python("3.13.0", *_YAML)),
    "python-3.14": Cell(environment=Environment(python=PYTHON_3_14, more=_YAML)),
    "airflow-3.1": Cell(environment=_airflow("3.1.8", "2026-03-25")),
    "airflow-3.2": Cell(environment=_airflow("3.2.2", "2026-06-10")),
}
"""The cells by name."""
