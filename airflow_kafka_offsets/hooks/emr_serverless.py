"""Launch the Spark application as a job run of EMR Serverless, through the hook of Amazon's provider."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.hooks.service_run import ServiceLauncher, Submission

_DEFAULTS = "spark-defaults"


class EmrServerlessLauncher(ServiceLauncher):
    """Runs jobs in a job run of EMR Serverless. Its options are parameters of `StartJobRun`, with Python's names."""

    title = "EMR Serverless"
    extra = "emr"
    hook = "airflow.providers.amazon.aws.hooks.emr:EmrServerlessHook"
    required = ("application_id", "execution_role_arn")
    optional = ("configuration_overrides", "tags", "execution_timeout_minutes")

    def service(self) -> EmrServerless:
        return EmrServerless(self._make_hook(aws_conn_id=self._conn_id), self._options)


class EmrServerless:
    """Job runs of an application of EMR Serverless.

    :param hook: an EmrServerlessHook
    :param options: parameters of `StartJobRun`
    """

    def __init__(self, hook: Any, options: Mapping[str, Any]) -> None:
        self._client = hook.conn
        self._request = {re.sub("_(.)", lambda match: match[1].upper(), name): value for name, value in options.items()}

    def submit(self, submission: Submission) -> str:
        job = {
            "entryPoint": submission.application,
            "entryPointArguments": list(submission.arguments),
            "sparkSubmitParameters": shlex.join(["--py-files", ",".join(submission.py_files)]),
        }
        overrides = dict(self._request.get("configurationOverrides", {}))
        # There may be one of a name. Here, properties need no quotes.
        given = {entry["classification"]: entry for entry in overrides.get("applicationConfiguration", ())}
        defaults = given.pop(_DEFAULTS, {"classification": _DEFAULTS})
        properties = {**submission.properties, **defaults.get("properties", {})}
        overrides["applicationConfiguration"] = [*given.values(), {**defaults, "properties": properties}]
        request = {**self._request, "configurationOverrides": overrides}
        response = self._client.start_job_run(name=submission.name, jobDriver={"sparkSubmit": job}, **request)
        return str(response["jobRunId"])

    def state(self, run_id: str) -> str | None:
        run = self._client.get_job_run(**self._run(run_id))["jobRun"]
        if run["state"] not in ("SUCCESS", "FAILED", "CANCELLED"):
            return None
        return "" if run["state"] == "SUCCESS" else f"{run['state']}: {run['stateDetails']}"

    def cancel(self, run_id: str) -> None:
        self._client.cancel_job_run(**self._run(run_id))

    def _run(self, run_id: str) -> dict[str, str]:
        return {"applicationId": self._request["applicationId"], "jobRunId": run_id}
