"""Launch the Spark application as a batch of Livy, through the hook of its provider."""

from __future__ import annotations

import json
import logging
import re
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from airflow_kafka_offsets.core.addresses import is_this_machine
from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.escaping import printable
from airflow_kafka_offsets.hooks.service_run import ServiceLauncher, Submission

log = logging.getLogger(__name__)

# Lines that say why something ended, of Python and of Java.
_RAISED = re.compile(r"[\w.]*(Error|Exception)\b")

# Of Spark's log.
_LINES = 1_000

_ENDED = ("success", "error", "dead", "killed")


class LivyLauncher(ServiceLauncher):
    """Runs jobs in a batch of Livy. Its options are arguments of `LivyHook.post_batch`."""

    title = "Livy"
    extra = "livy"
    hook = "airflow.providers.apache.livy.hooks.livy:LivyHook"
    optional = (
        *("driver_memory", "driver_cores", "executor_memory", "executor_cores", "num_executors"),
        *("queue", "proxy_user", "jars", "files", "archives"),
    )

    def service(self) -> Livy:
        return Livy(self._make_hook(livy_conn_id=self._conn_id), self._options)

    def weakness(self) -> str | None:
        hook = self._make_hook(livy_conn_id=self._conn_id)
        hook.get_conn()
        url = urlsplit(hook.base_url)
        if url.scheme == "https" or is_this_machine(url.hostname):
            return None
        return (
            f"The traffic with Livy at {url.netloc} is unprotected, including the password and the token of the "
            f"mailbox: set the host of connection {self._conn_id!r} to https://…"
        )


class Livy:
    """Batches of Livy.

    :param hook: a LivyHook
    :param options: arguments of its `post_batch`
    """

    def __init__(self, hook: Any, options: dict[str, Any]) -> None:
        self._hook, self._options = hook, options

    def submit(self, submission: Submission) -> str:
        body = self._hook.build_post_batch_body(
            # Livy refuses a second batch of the same name.
            name=f"{submission.name}-{uuid4().hex[:8]}",
            file=submission.application,
            py_files=list(submission.py_files),
            args=list(submission.arguments),
            # Livy refuses empty values.
            conf={name: value for name, value in submission.properties.items() if value},
            **self._options,
        )
        # `post_batch` would log the token among the arguments.
        headers = self._hook.extra_headers
        response = self._hook.run_method("/batches", "POST", data=json.dumps(body), headers=headers)
        if not response.ok:
            raise RuntimeError(f"status {response.status_code}: {response.text}")
        return str(int(response.json()["id"]))

    def state(self, run_id: str) -> str | None:
        # The hook's enumeration of states lacks one that Livy has.
        batch = self._hook.get_batch(run_id)
        if batch["state"] not in _ENDED:
            return None
        if batch["state"] == "success":
            return ""
        # From the end. The hook itself logs as many lines as the answers say that there are, and as they are.
        for line in self._hook.get_batch_logs(run_id, -1, _LINES).get("log", ()):
            log.info("%s", printable(line))
        # The last lines of spark-submit.
        lines = [line.strip() for line in batch.get("log", ())]
        raised = [line for line in lines if _RAISED.match(line)]
        return f"{batch['state']}: {shortened(' '.join((raised or lines)[-1:]))}"

    def cancel(self, run_id: str) -> None:
        self._hook.delete_batch(run_id)
