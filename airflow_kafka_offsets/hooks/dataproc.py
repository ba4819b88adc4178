"""Launch the Spark application as a batch of Dataproc, through the hook of Google's provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from airflow_kafka_offsets.hooks.service_run import ServiceLauncher, Submission

_PLACE = ("region", "project_id")


class DataprocLauncher(ServiceLauncher):
    """Runs jobs in a batch of Dataproc. Its options are the region, the project, and fields of a batch."""

    title = "Dataproc"
    extra = "dataproc"
    hook = "airflow.providers.google.cloud.hooks.dataproc:DataprocHook"
    required = ("region",)
    optional = ("project_id", "environment_config", "runtime_config", "labels")

    def service(self) -> Dataproc:
        return Dataproc(self._make_hook(gcp_conn_id=self._conn_id), self._options)


class Dataproc:
    """Batches of a project in a region.

    :param hook: a DataprocHook
    :param options: the region, the project unless it is that of the connection, and fields of a batch
    """

    def __init__(self, hook: Any, options: Mapping[str, Any]) -> None:
        self._hook = hook
        self._batch = {name: value for name, value in options.items() if name not in _PLACE}
        self._place = {"region": options["region"], "project_id": options.get("project_id") or hook.project_id}

    def submit(self, submission: Submission) -> str:
        job = {
            "main_python_file_uri": submission.application,
            "python_file_uris": list(submission.py_files),
            "args": list(submission.arguments),
        }
        runtime = dict(self._batch.get("runtime_config", {}))
        runtime["properties"] = {**submission.properties, **runtime.get("properties", {})}
        batch = {**self._batch, "pyspark_batch": job, "runtime_config": runtime}
        # The name of the application may have characters that an id has not.
        batch_id = f"kafka-offsets-{uuid4().hex}"
        self._hook.create_batch(batch=batch, batch_id=batch_id, **self._place)
        return batch_id

    def state(self, run_id: str) -> str | None:
        batch = self._hook.get_batch(batch_id=run_id, **self._place)
        if batch.state.name not in ("SUCCEEDED", "FAILED", "CANCELLED"):
            return None
        return "" if batch.state.name == "SUCCEEDED" else f"{batch.state.name}: {batch.state_message}"

    def cancel(self, run_id: str) -> None:
        batch = self._hook.get_batch(batch_id=run_id, **self._place)
        self._hook.get_operations_client(self._place["region"]).cancel_operation(batch.operation)
