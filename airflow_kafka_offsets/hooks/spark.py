"""Launch the Spark application with `spark-submit`, through the official provider's SparkSubmitHook.

What the application does is in the package `spark`; the options that let its JVM start sooner are in `java`.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from contextlib import ExitStack
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import BaseHook, conf

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.java import check_java, java_options
from airflow_kafka_offsets.hooks.job_channel import (
    Channel,
    MailboxChannel,
    SocketChannel,
    job_directory,
    mailbox_beside,
)
from airflow_kafka_offsets.hooks.spark_application import ApplicationLauncher
from airflow_kafka_offsets.hooks.spark_hook import SparkHook, SubmitRun
from airflow_kafka_offsets.hooks.spark_log import CollapsedLog
from airflow_kafka_offsets.spark import daemon
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.package import write_application
from airflow_kafka_offsets.spark.properties import REDACTION, read_defaults, weakness

log = logging.getLogger(__name__)

_DAEMON = "spark.python.daemon.module"

_MASTER = re.compile(r"local(\[.+\])?|yarn|[\w+-]+://.+")

_DEPLOY_MODE = "spark.submit.deployMode"

# The masters in whose clusters Spark starts drivers in Python, and the properties by which spark-submit waits for them.
_CLUSTERS = ("yarn", "k8s://")

_WAIT = ("spark.yarn.submit.waitAppCompletion", "spark.kubernetes.submission.waitAppCompletion")

_PY_FILES = "spark.submit.pyFiles"

# What spark-submit inherits: where programs and their settings are, and how object stores and Kerberos know who asks.
# Nothing else of a worker's environment, which may hold a secret under any name. AIRFLOW_HOME and AIRFLOW_CTX_* hold
# none.
_INHERITED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ", "TMPDIR"),
    *("LD_*", "DYLD_*", "MALLOC_*"),
    *("JAVA_*", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "PYTHON*", "VIRTUAL_ENV", "CONDA_*", "*_NUM_THREADS"),
    *("SPARK_*", "PYSPARK_*", "HADOOP_*", "HDFS_*", "YARN_*", "KUBERNETES_*", "KRB5*"),
    *("AWS_*", "AZURE_*", "GOOGLE_*", "SSL_CERT_*", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("AIRFLOW_HOME", "AIRFLOW_CTX_*"),
)


class SparkSubmitLauncher(ApplicationLauncher):
    """Runs jobs in an application of `spark-submit`. In client deploy mode the driver runs on the machine of the task,
    in cluster deploy mode in the cluster.

    :param conn_id: a connection of the official Spark provider
    """

    def check(self, staging_dir: str | None) -> None:
        """Check, before anything is planned, that Spark can be launched.

        :raises AirflowNotFoundException: the connection does not exist
        :raises ConfigurationError: something is missing; the message says what
        """
        # The hook ignores a missing connection, and would submit to YARN instead.
        connection = BaseHook.get_connection(self._conn_id)
        hook = self._make_hook()
        master, binary = hook.resolved["master"], hook.resolved["spark_binary"]
        if _MASTER.fullmatch(master) is None:
            raise ConfigurationError(
                f"Connection {connection.conn_id!r} leads to {master!r}, which is no master of Spark: its host is "
                "local[*], spark://…, yarn or k8s://…"
            )
        self._check_deploy_mode(hook)
        if not staging_dir and not _is_local(master):
            raise ConfigurationError(
                f"Connection {connection.conn_id!r} leads to the cluster {master}: set Staging.dir to a location that "
                "the workers and Spark's executors share (s3://…, gs://…, hdfs://…, or a shared file system)"
            )
        if problem := self.weakness():
            log.warning("%s", problem)
        if shutil.which(binary, path=submit_environment()["PATH"]) is None:
            raise ConfigurationError(
                f"{binary} is not on the PATH: install the extra "
                "'airflow-kafka-offsets[spark]' on the worker, or add your Spark distribution's bin directory"
            )
        check_java()

    @property
    def master(self) -> str:
        """Return the master that the connection names."""
        return str(self._make_hook().resolved["master"])

    def weakness(self) -> str | None:
        """Return what the connection's cluster lacks to protect Kafka's credentials; None where it lacks nothing."""
        return weakness(self.master, {**_spark_defaults(), **self._conf})

    def _check_deploy_mode(self, hook: SparkHook) -> None:
        mode, place = self._deploy_mode(hook)
        master = hook.resolved["master"]
        if mode not in ("client", "cluster"):
            raise ConfigurationError(f"{mode!r} from {place} is no deploy mode of Spark: it is client or cluster")
        if mode == "client":
            return
        if not master.startswith(_CLUSTERS):
            raise ConfigurationError(
                f"Deploy mode 'cluster' cannot be used with {master}: Spark has drivers in Python in clusters of YARN "
                f"and Kubernetes only. Remove {place}."
            )
        for name in _WAIT:
            if str(self._properties(hook, mode)[name]).lower() != "true":
                raise ConfigurationError(f"{name} is not true: the end of the application would not be known")

    def _deploy_mode(self, hook: SparkHook) -> tuple[str, str]:
        """Return the deploy mode, and the place that names it: spark-submit takes the first of these."""
        for place, mode in (
            (f"'deploy-mode' from the extra of connection {self._conn_id!r}", hook.resolved["deploy_mode"]),
            (f"{_DEPLOY_MODE} from Spark.conf", self._conf.get(_DEPLOY_MODE)),
            (f"{_DEPLOY_MODE} from spark-defaults.conf", _spark_defaults().get(_DEPLOY_MODE)),
        ):
            if mode:
                return str(mode), place
        return "client", "Spark"

    def _open(self, job: StageJob, folded: CollapsedLog, stack: ExitStack) -> tuple[SubmitRun, Channel]:
        resolving = self._make_hook()
        directory = stack.enter_context(job_directory())
        application, package = write_application(directory)
        channel = self._channel(resolving, directory, job, folded)
        environment = submit_environment()
        if self._deploy_mode(resolving)[0] == "client":
            home = spark_home(resolving.resolved["spark_binary"])
            environment |= java_options(job, home, {**_spark_defaults(), **self._conf})
            if _is_local(resolving.resolved["master"]):
                # For Python workers, whose daemon is a module of the package.
                python_path = [str(package), environment.get("PYTHONPATH", "")]
                environment["PYTHONPATH"] = os.pathsep.join(filter(None, python_path))
        stack.enter_context(channel)
        hook = self._make_hook(
            folded=folded,
            py_files=",".join(filter(None, [str(package), self._conf.get(_PY_FILES)])),
            application_args=list(channel.arguments),
        )
        return SubmitRun(hook, str(application), environment), channel

    def _channel(self, hook: SparkHook, directory: Path, job: StageJob, folded: CollapsedLog) -> Channel:
        if self._deploy_mode(hook)[0] == "cluster":
            return MailboxChannel(mailbox_beside(job.staging_uri), folded.show_sent)
        return SocketChannel(directory)

    def _make_hook(self, **arguments: Any) -> SparkHook:
        hook = SparkHook(conn_id=self._conn_id, name=self.name, **arguments)
        hook.set_properties(self._properties(hook, self._deploy_mode(hook)[0]))
        return hook

    def _properties(self, hook: SparkHook, deploy_mode: str) -> dict[str, Any]:
        return {**_default_properties(hook.resolved["master"], deploy_mode), **self._conf}


def spark_home(binary: str) -> Path | None:
    """Return the directory of the Spark that a script starts, as the script finds it; None where that is not known.

    :param binary: `spark-submit`, or its path
    """
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    script = shutil.which(binary, path=submit_environment()["PATH"])
    if script is None:
        return None
    home_of_script = Path(script).resolve().parent.parent
    if (home_of_script / "jars").is_dir():
        return home_of_script
    # That of an installed PySpark asks Python.
    return _pyspark_home() if Path(script).parent.samefile(Path(sys.executable).parent) else None


def _pyspark_home() -> Path | None:
    found = find_spec("pyspark")
    return Path(found.submodule_search_locations[0]) if found and found.submodule_search_locations else None


def _spark_defaults() -> dict[str, str]:
    """Return the properties that spark-submit takes from its configuration directory."""
    home = os.environ.get("SPARK_HOME") or _pyspark_home()
    directory = os.environ.get("SPARK_CONF_DIR") or str(Path(home or "/nowhere", "conf"))
    file = Path(directory, "spark-defaults.conf")
    return read_defaults(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _default_properties(master: str, deploy_mode: str) -> dict[str, str]:
    """Return the Spark properties that this package sets."""
    properties = {
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "WARN",
        "spark.redaction.regex": REDACTION,
    }
    if deploy_mode == "cluster":
        # A mailbox has one driver. If it dies, another application stages the batch.
        # Whatever spark-defaults.conf says, spark-submit waits for the end.
        return properties | {"spark.yarn.maxAppAttempts": "1", **dict.fromkeys(_WAIT, "true")}
    # The Python of this process has this package and the transform.
    properties["spark.pyspark.driver.python"] = sys.executable
    if _is_local(master):
        # Executors run on this machine, too. An application that takes seconds needs no web server.
        properties |= {"spark.pyspark.python": sys.executable, "spark.ui.enabled": "false"}
        if _DAEMON not in _spark_defaults():
            properties[_DAEMON] = daemon.MODULE
    return properties


def _is_local(master: str) -> bool:
    return master.startswith("local")


def submit_environment() -> dict[str, str]:
    """Return the environment of spark-submit: the variables of `_INHERITED`, and of Airflow's option
    `spark_environment`.

    Its PATH ends with the directory of the running Python, as if the virtual environment were activated.
    """
    more = conf.get("kafka_offsets", "spark_environment", fallback="").replace(",", " ").split()
    environment = {
        name: value
        for name, value in os.environ.items()
        if any(fnmatchcase(name, pattern) for pattern in (*_INHERITED, *more))
    }
    environment["PATH"] = os.pathsep.join(filter(None, [os.environ.get("PATH"), str(Path(sys.executable).parent)]))
    return environment
