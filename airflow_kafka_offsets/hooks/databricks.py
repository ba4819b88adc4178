"""Launch the Spark application as a run of a Databricks job, through the hook of its provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.service_run import ServiceLauncher, Submission

_CLUSTERS = ("new_cluster", "existing_cluster_id")


class DatabricksLauncher(ServiceLauncher):
    """Runs jobs in a run of Databricks. Its options are fields of a request to `jobs/runs/submit`, or of its task: one
    of `new_cluster` and `existing_cluster_id`, and others.
    """

    title = "Databricks"
    extra = "databricks"
    hook = "airflow.providers.databricks.hooks.databricks:DatabricksHook"
    optional = (*_CLUSTERS, "libraries", "timeout_seconds", "access_control_list")

    def service(self) -> Databricks:
        if len(self._options.keys() & set(_CLUSTERS)) != 1:
            raise ConfigurationError(
                f"Connection {self._conn_id!r} leads to Databricks: set either new_cluster or existing_cluster_id in "
                "Spark.options"
            )
        if "existing_cluster_id" in self._options and self._conf:
            raise ConfigurationError(
                "Spark.conf cannot be set in a running cluster, that of Spark.options['existing_cluster_id']: set the "
                "properties where the cluster is made, or use new_cluster"
            )
        if self._secrets:
            # The application could only set them before Spark starts.
            raise ConfigurationError(
                f"Spark.conf[{next(iter(self._secrets))!r}] holds a secret, and Databricks starts Spark before the "
                "application that would get it: name it in the spark_conf of new_cluster (docs/clusters.md)"
            )
        return Databricks(self._make_hook(databricks_conn_id=self._conn_id), self._options)


class Databricks:
    """Runs of Databricks, of one task each.

    :param hook: a DatabricksHook
    :param options: see `DatabricksLauncher`
    """

    def __init__(self, hook: Any, options: Mapping[str, Any]) -> None:
        self._hook, self._options = hook, options

    def submit(self, submission: Submission) -> str:
        options = dict(self._options)
        task: dict[str, Any] = {
            "task_key": "load",
            # A cluster has no --py-files: the application adds them itself.
            "spark_python_task": {
                "python_file": submission.application,
                "parameters": [*submission.arguments, *submission.py_files],
            },
            **{name: options.pop(name) for name in (*_CLUSTERS, "libraries") if name in options},
        }
        if (cluster := task.get("new_cluster")) is not None:
            conf = {**submission.properties, **cluster.get("spark_conf", {})}
            task["new_cluster"] = {**cluster, "spark_conf": conf}
        return str(self._hook.submit_run({"run_name": submission.name, "tasks": [task], **options}))

    def state(self, run_id: str) -> str | None:
        run = self._hook.get_run_state(int(run_id))
        if not run.is_terminal:
            return None
        if run.is_successful:
            return ""
        tasks = self._hook.get_run(int(run_id))["tasks"]
        errors = [self._hook.get_run_output(task["run_id"]).get("error") for task in tasks]
        return ": ".join(filter(None, [run.result_state or run.life_cycle_state, run.state_message, *errors]))

    def cancel(self, run_id: str) -> None:
        self._hook.cancel_run(int(run_id))
