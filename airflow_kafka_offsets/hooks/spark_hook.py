"""The official provider's hook for `spark-submit`, and the only place that uses its internals: it has no public way to
them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.spark_log import CollapsedLog

log = logging.getLogger(__name__)


class SparkHook(SparkSubmitHook):
    """Runs spark-submit.

    :param folded: logs what it prints
    :raises ConfigurationError: the connection leads to Kubernetes, whose provider is missing
    """

    def __init__(self, folded: CollapsedLog | None = None, **arguments: Any) -> None:
        try:
            super().__init__(**arguments)
        except (NameError, RuntimeError) as error:
            if "kube" not in str(error):
                raise
            raise ConfigurationError(
                "A connection to k8s://… needs Airflow's provider of Kubernetes: install "
                "apache-airflow-providers-cncf-kubernetes on the worker"
            ) from error
        self.folded = folded or CollapsedLog(log)
        self._is_killed = False

    @property
    def resolved(self) -> Mapping[str, Any]:
        """The connection as the hook understands it: `master`, `deploy_mode`, `spark_binary`."""
        resolved: Mapping[str, Any] = self._connection
        return resolved

    def set_properties(self, properties: Mapping[str, Any]) -> None:
        """Set Spark's properties. The constructor takes them too, but they depend on the master that it resolves."""
        self._conf = dict(properties)

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run spark-submit, and log what it prints as `CollapsedLog` does."""
        # The command line is long, and the first of Spark's lines.
        self.folded.fold()
        try:
            return super().submit(application, **kwargs)
        finally:
            self.folded.close()

    def on_kill(self) -> None:
        """Stop spark-submit, also if it is only about to be started."""
        self._is_killed = True
        try:
            super().on_kill()
        except FileNotFoundError as error:
            # Without YARN's own program nobody else ends the application: the driver ends itself (`spark.mailbox`).
            log.info("%s is not installed: the driver of the application ends by itself", error.filename)

    def _process_spark_submit_log(self, itr: Iterator[Any]) -> None:
        # From here on there is a process.
        if self._is_killed:
            self.on_kill()
        super()._process_spark_submit_log(self.folded.others(itr))

    def close(self) -> None:
        """Wait until spark-submit has exited, and close its pipe, which the hook leaves to the garbage collector."""
        if self._submit_sp is not None:
            self._submit_sp.wait()
            self._submit_sp.stdout.close()


class SubmitRun:
    """A run of the application by spark-submit.

    :param application: its path
    :param environment: of spark-submit
    """

    def __init__(self, hook: SparkHook, application: str, environment: Mapping[str, str]) -> None:
        self._hook, self._application, self._environment = hook, application, environment

    def run(self) -> None:
        """Run spark-submit, and wait until it has ended."""
        try:
            with self._hook.folded.apart():
                # What a library prints need not be UTF-8.
                self._hook.submit(self._application, env=self._environment, errors="replace")
        except Exception:
            # Where nobody reads what it prints any more, it would wait for that.
            self._hook.on_kill()
            raise
        finally:
            self._hook.close()

    def kill(self) -> None:
        """Stop spark-submit."""
        self._hook.on_kill()
