"""Launch the Spark application with `spark-submit`, through the official provider's SparkSubmitHook.

What the application does is in the package `spark`; the options that let its JVM start sooner are in `java`.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import BaseHook, conf

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.java import check_java, java_options
from airflow_kafka_offsets.hooks.spark_application import ApplicationEndedError, SparkApplication, SparkHook
from airflow_kafka_offsets.spark import daemon
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.properties import REDACTION, read_defaults, split_secrets, weakness

log = logging.getLogger(__name__)

_DAEMON = "spark.python.daemon.module"

_MASTER = re.compile(r"local(\[.+\])?|yarn|[\w+-]+://.+")

_DEPLOY_MODE = "spark.submit.deployMode"

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


class SparkSubmitLauncher:
    """Runs jobs in an application of `spark-submit`, in client deploy mode: the driver runs on the machine of the task.

    :param conn_id: a connection of the official Spark provider
    :param conf: Spark properties; they take precedence over those that this package sets. Those that hold secrets are
        in no argument and no environment variable: the application sets them itself (see `spark.properties`)
    :param name: the application's name
    """

    def __init__(self, conn_id: str, *, conf: Mapping[str, Any] | None = None, name: str = "kafka-offsets") -> None:
        self._conn_id = conn_id
        self._conf, self._secrets = split_secrets(conf or {})
        self.name = name
        self.last_batch: int | None = None
        """The batch that was last given to Spark."""
        self._application: SparkApplication | None = None
        self._with_sql = False
        self._is_staging = self._is_cancelled = False

    def check(self, staging_dir: str | None) -> None:
        """Check, before anything is planned, that Spark can be launched.

        :raises AirflowNotFoundException: the connection does not exist
        :raises ConfigurationError: something is missing; the message says what
        """
        # The hook ignores a missing connection, and would submit to YARN instead.
        connection = BaseHook.get_connection(self._conn_id)
        hook = self._make_hook()
        master, deploy_mode, binary = (hook.resolved[name] for name in ("master", "deploy_mode", "spark_binary"))
        # spark-submit takes the first of these places that names one.
        for place, mode in (
            (f"'deploy-mode' from the extra of connection {self._conn_id!r}", deploy_mode),
            (f"{_DEPLOY_MODE} from Spark.conf", self._conf.get(_DEPLOY_MODE)),
            (f"{_DEPLOY_MODE} from spark-defaults.conf", _spark_defaults().get(_DEPLOY_MODE)),
        ):
            if mode == "client":
                break
            if mode:
                raise ConfigurationError(
                    f"Deploy mode {mode!r} cannot be used: this package needs client mode, in which progress and "
                    f"errors reach the task's log. Remove {place}."
                )
        if _MASTER.fullmatch(master) is None:
            raise ConfigurationError(
                f"Connection {connection.conn_id!r} leads to {master!r}, which is no master of Spark: its host is "
                "local[*], spark://…, yarn or k8s://…"
            )
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

    def __call__(self, job: StageJob) -> None:
        """Stage a job in the application of the jobs before, or start one."""
        self.last_batch = job.batch_id
        self._is_cancelled, self._is_staging = False, True
        try:
            self._stage(job)
        except BaseException:
            # Its error is the one that is raised.
            if self._application is not None and self._application.has_ended:
                self._end()
            raise
        finally:
            self._is_staging = False

    def cancel(self) -> None:
        """Stop the application, if it stages a job."""
        if self._is_staging:
            self._is_cancelled = True
            if self._application is not None:
                self._application.kill()

    def close(self) -> None:
        """End the application, if one is running."""
        if not self._end():
            log.warning("The Spark application ended with an error after its last batch, which is not affected")

    def _end(self) -> bool:
        """End the application, if one is running; return whether spark-submit had no error."""
        application, self._application = self._application, None
        return application is None or application.close() is None

    def _stage(self, job: StageJob) -> None:
        with_sql = job.dataframe_transform is not None
        if self._with_sql != with_sql:
            self.close()
        if self._application is not None:
            try:
                self._application.stage(job)
                return
            except ApplicationEndedError:
                log.warning(
                    "The Spark application ended after the batch before, and batch %d starts another", job.batch_id
                )
                self._end()
        self._with_sql = with_sql
        hook = self._make_hook()
        home, properties = spark_home(hook.resolved["spark_binary"]), {**_spark_defaults(), **self._conf}
        self._application = SparkApplication(
            lambda package, path: self._make_hook(py_files=package, application_args=[path]),
            submit_environment() | java_options(job, home, properties),
            self._secrets,
            is_local=_is_local(hook.resolved["master"]),
        )
        if self._is_cancelled:
            self._application.kill()
        self._application.stage(job)

    def _make_hook(self, **arguments: Any) -> SparkHook:
        hook = SparkHook(conn_id=self._conn_id, name=self.name, **arguments)
        hook.set_properties({**_default_properties(hook.resolved["master"]), **self._conf})
        return hook


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


def _default_properties(master: str) -> dict[str, str]:
    """Return the Spark properties that this package sets."""
    properties = {
        # The Python of this process has this package and the transform.
        "spark.pyspark.driver.python": sys.executable,
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "WARN",
        "spark.redaction.regex": REDACTION,
    }
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
