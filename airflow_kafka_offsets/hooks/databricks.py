"""Launch the Spark application as a run of a Databricks job, through the hook of its provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.service_run import ServiceLauncher, Submission


class DatabricksLauncher(ServiceLauncher):
    """Runs jobs in a run of Databricks. Its options are fields of a request to `jobs/runs/submit`, or of its task.

    There is no `existing_cluster_id`: the SparkContext of a cluster that others use would keep the package when its
    file is gone.
    """

    title = "Databricks"
    extra = "databricks"
    hook = "airflow.providers.databricks.hooks.databricks:DatabricksHook"
    required = ("new_cluster",)
    optional = ("libraries", "timeout_seconds", "access_control_list")

    def service(self) -> Databricks:
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
        }
        if (libraries := options.pop("libraries", None)) is not None:
            task["libraries"] = libraries
        cluster = options.pop("new_cluster")
        task["new_cluster"] = {**cluster, "spark_conf": {**submission.properties, **cluster.get("spark_conf", {})}}
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
