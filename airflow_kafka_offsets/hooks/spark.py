"""Launch the Spark application through the official provider's SparkSubmitHook."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import BaseHook

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.package import write_job

_OLDEST_JAVA = 17

_QUICK_START = "-XX:TieredStopAtLevel=1"

# For a transform of no more rows than these, optimized code is not worth its compilation; of three times as many it is as good.
_FEW = 1_000_000

# Airflow's configuration, connections and variables, and what its processes tell each other. Any may hold a secret,
# also those of sections that nobody knows here. AIRFLOW_HOME is none of them.
_AIRFLOWS_OWN = ("AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW__", "_AIRFLOW_", "__AIRFLOW_")


class _Hook(SparkSubmitHook):
    """The provider's hook, with what is needed of its internals in one place: it has no public way to them.

    :param defaults: Spark properties for a master, over which those of `conf` go
    """

    def __init__(
        self, *, defaults: Callable[[str], Mapping[str, str]], conf: Mapping[str, Any], **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        # The constructor takes properties, too; but which ones depends on the master, which it finds out.
        self._conf = {**defaults(self.master), **conf}

    @property
    def master(self) -> str:
        return str(self._connection["master"])

    @property
    def deploy_mode(self) -> str | None:
        deploy_mode: str | None = self._connection["deploy_mode"]
        return deploy_mode

    @property
    def spark_binary_name(self) -> str:
        return str(self._connection["spark_binary"])

    def close(self) -> None:
        """Wait for the end of spark-submit; the hook leaves the process and its pipe to the garbage collector."""
        if self._submit_sp is not None:
            self._submit_sp.wait()
            self._submit_sp.stdout.close()


class SparkSubmitLauncher:
    """Runs a job with `spark-submit`, in client deploy mode: the driver runs beside the task.

    :param conn_id: a connection of the official Spark provider
    :param conf: Spark properties over those that this package sets
    :param name: the application's name
    """

    def __init__(self, conn_id: str, *, conf: Mapping[str, Any] | None = None, name: str = "kafka-offsets") -> None:
        self._conn_id = conn_id
        self._conf = dict(conf or {})
        self.name = name
        self._hook: _Hook | None = None

    def check(self, staging_dir: str | None) -> None:
        """Find out before anything is planned whether Spark can be launched.

        :raises AirflowNotFoundException: there is no such connection; the hook alone would turn to YARN
        :raises ConfigurationError: what is missing
        """
        # The hook swallows a missing connection, and would submit to YARN instead.
        connection = BaseHook.get_connection(self._conn_id)
        hook = self._make_hook()
        master, deploy_mode = hook.master, hook.deploy_mode
        if deploy_mode not in (None, "", "client"):
            raise ConfigurationError(
                f"Connection {self._conn_id!r} has deploy-mode {deploy_mode!r}; this package submits in client mode, in "
                "which progress and errors reach the task's log. Remove 'deploy-mode' from the connection's extra."
            )
        if not staging_dir and not master.startswith("local"):
            raise ConfigurationError(
                f"Connection {connection.conn_id!r} leads to the cluster {master}: set staging_dir to a location that the "
                "workers and Spark's executors share (s3://…, gs://…, hdfs://…, or a shared file system)"
            )
        if shutil.which(hook.spark_binary_name, path=_environment()["PATH"]) is None:
            raise ConfigurationError(
                f"{hook.spark_binary_name} is not on the PATH: install the extra "
                "'airflow-kafka-offsets[spark]' on the worker, or add your Spark distribution's bin directory"
            )
        check_java()

    def __call__(self, job: StageJob) -> None:
        with tempfile.TemporaryDirectory(prefix="kafka-offsets-job-") as directory:
            files = write_job(Path(directory), job)
            hook = self._make_hook(py_files=str(files.package), application_args=[str(files.directory)])
            self._hook = hook
            try:
                hook.submit(str(files.application), env=_environment() | _java_options(job))
            except BaseException:
                # Airflow ends a task that takes too long by an exception in here, and calls on_kill only after it.
                self.on_kill()
                raise
            finally:
                self._hook = None
                hook.close()

    def on_kill(self) -> None:
        """Stop Spark when Airflow stops the task."""
        if self._hook is not None:
            self._hook.on_kill()

    def _make_hook(self, **arguments: Any) -> _Hook:
        return _Hook(defaults=_default_properties, conf=self._conf, conn_id=self._conn_id, name=self.name, **arguments)


def _default_properties(master: str) -> dict[str, str]:
    """Return the Spark properties that this package sets."""
    properties = {
        # The submitting Python is the one that has this package and the transform.
        "spark.pyspark.driver.python": sys.executable,
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "WARN",
    }
    if master.startswith("local"):
        # One machine, one Python; and no web server for an application that lives for seconds.
        properties |= {"spark.pyspark.python": sys.executable, "spark.ui.enabled": "false"}
    return properties


def check_java() -> None:
    """
    :raises ConfigurationError: there is no Java that Spark can run on; says what to do
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if java is None or shutil.which(java) is None:
        where = f"JAVA_HOME is {home!r}, which has no bin/java" if home else "there is no java on the PATH"
        raise ConfigurationError(
            f"Spark needs Java {_OLDEST_JAVA} or newer, and {where}: install a Java runtime on the worker (Debian: "
            "apt-get install openjdk-17-jre-headless) and set JAVA_HOME if it is not on the PATH"
        )
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version.group(1)) < _OLDEST_JAVA:
        raise ConfigurationError(
            f"Spark needs Java {_OLDEST_JAVA} or newer; {java} says: {(told.splitlines() or ['nothing'])[0]}"
        )


def _java_options(job: StageJob) -> dict[str, str]:
    """Spare compiling what runs for seconds: the JVM that makes spark-submit's command line, and a driver that only hands slices to
    Python, or few rows to a transform. Options of the user's own, here or in `spark.driver.extraJavaOptions`, come after these, and
    win.
    """
    is_short = job.transform is None or job.offsets <= _FEW
    names = ("SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS") if is_short else ("SPARK_LAUNCHER_OPTS",)
    return {name: f"{_QUICK_START} {os.environ.get(name, '')}".rstrip() for name in names}


def _environment() -> dict[str, str]:
    """What spark-submit inherits: nothing of Airflow's that may hold secrets, among them the database's credentials.

    Its PATH ends with the directory of the running Python, as where a virtual environment is used but not activated.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_AIRFLOWS_OWN)}
    environment["PATH"] = os.pathsep.join(filter(None, [os.environ.get("PATH"), str(Path(sys.executable).parent)]))
    return environment
