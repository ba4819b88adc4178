"""Stand-ins for services that run Spark: Databricks' jobs and EMR Serverless. They answer the requests that their
clients send, and start a local Spark for each job that is submitted. `devstack.dataproc` has another, `devstack.livy`
the real Livy.
"""

import abc
import enum
import http.server
import json
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

from devstack.java import java_home
from devstack.paths import pyspark_home
from devstack.process import ServerProcess
from devstack.server import Stack

SERVICE_EXTRAS = ("livy", "databricks", "emr", "dataproc")
"""The extras of this package for services: their many packages are installed for `make services` alone."""

_POLL_SECONDS = 0.05


class State(enum.Enum):
    """The state of a job, which each service has another name for."""

    PENDING = enum.auto()
    RUNNING = enum.auto()
    SUCCEEDED = enum.auto()
    FAILED = enum.auto()
    CANCELLED = enum.auto()


_DATABRICKS_STATES = {
    State.PENDING: {"life_cycle_state": "PENDING"},
    State.RUNNING: {"life_cycle_state": "RUNNING"},
    State.SUCCEEDED: {"life_cycle_state": "TERMINATED", "result_state": "SUCCESS"},
    State.FAILED: {"life_cycle_state": "TERMINATED", "result_state": "FAILED", "state_message": "Workload failed"},
    State.CANCELLED: {"life_cycle_state": "TERMINATED", "result_state": "CANCELED", "state_message": "Cancelled"},
}

_EMR_STATES = {
    State.PENDING: "SCHEDULED",
    State.RUNNING: "RUNNING",
    State.SUCCEEDED: "SUCCESS",
    State.FAILED: "FAILED",
    State.CANCELLED: "CANCELLED",
}


class Run:
    """A job that was submitted. Its driver has a directory of its own, and nothing of our environment but PATH and
    Python.
    """

    def __init__(self, directory: Path, command: Sequence[str]) -> None:
        directory.mkdir()
        self._is_cancelled = self._was_pending = False
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "JAVA_HOME": str(java_home()),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(directory),
            "PYSPARK_PYTHON": sys.executable,
        }
        self.process = ServerProcess(
            "spark-submit", command, log=directory.with_suffix(".log"), env=environment, scratch=directory
        )
        self.process.start()

    @property
    def state(self) -> State:
        """The state; the first answer is always PENDING."""
        if not self._was_pending:
            self._was_pending = True
            return State.PENDING
        if self._is_cancelled:
            return State.CANCELLED
        status = self.process.exit_status
        return State.RUNNING if status is None else State.FAILED if status else State.SUCCEEDED

    @property
    def reason(self) -> str:
        """Why it failed."""
        return self.process.log_tail(1).rpartition("\n")[2]

    def cancel(self) -> None:
        if self.process.running:
            self._is_cancelled = True
            self.process.kill()


class SparkService(Stack):
    """A service that starts a local Spark for each job.

    :ivar requests: each request as it came, without its headers
    """

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="devstack-spark-service-"))
        self.requests: list[str] = []
        self.runs: list[Run] = []

    @property
    @abc.abstractmethod
    def connection(self) -> dict[str, Any]:
        """An Airflow connection to it."""

    def begin(
        self,
        application: str,
        arguments: Sequence[str],
        properties: Mapping[str, str],
        py_files: str | None = None,
    ) -> int:
        """Start a job.

        :param py_files: for `--py-files`
        :return: its number
        """
        options = [part for name, value in properties.items() for part in ("--conf", f"{name}={value}")]
        options += ["--py-files", py_files] if py_files is not None else []
        submit = [
            str(pyspark_home() / "bin" / "spark-submit"),
            "--master",
            "local[2]",
            "--conf",
            "spark.ui.enabled=false",
        ]
        number = len(self.runs)
        command = [*submit, *options, application, *arguments]
        self.runs.append(Run(self.directory / f"run-{number}", command))
        return number

    def running(self) -> int:
        """Return how many jobs run."""
        return sum(run.process.running for run in self.runs)

    def kill(self) -> None:
        for run in self.runs:
            run.process.kill()


class HttpSparkService(SparkService):
    """A service with an HTTP interface, on a free port of this machine.

    :param authorization: how the header of requests begins
    """

    def __init__(self, authorization: str) -> None:
        super().__init__()
        service, lock = self, threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                url = urlsplit(self.path)
                service.requests.append(f"{self.command} {self.path} {body}")
                status, answer = 403, {"message": "Forbidden"}
                if self.headers.get("Authorization", "").startswith(authorization):
                    try:
                        with lock:
                            parameters = dict(parse_qsl(url.query)) | json.loads(body or "{}")
                            answer = service.answer(self.command, url.path.strip("/").split("/"), parameters)
                        status = 200
                    except (LookupError, ValueError) as error:
                        status, answer = 404, {"message": f"not found: {error}"}
                text = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_DELETE = _answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_SECONDS,), daemon=True)

    @abc.abstractmethod
    def answer(self, method: str, path: list[str], parameters: dict[str, Any]) -> dict[str, Any]:
        """Answer a request.

        :param parameters: of query and body
        :raises LookupError: there is no such thing
        """

    def start(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        super().close()


class DatabricksService(HttpSparkService):
    """The runs of Databricks' jobs (https://docs.databricks.com/api/workspace/jobs/submit). Its clusters take no
    `--py-files`.
    """

    TOKEN = "dapi-5f0c"

    # The number of a run's task is another than the run's.
    _TASK = 1000

    def __init__(self) -> None:
        super().__init__(f"Bearer {self.TOKEN}")

    @property
    def connection(self) -> dict[str, Any]:
        # With HTTPS in place of HTTP, as it is everywhere else.
        address = {"host": "127.0.0.1", "port": self.port, "schema": "http"}
        return {"conn_type": "databricks", "password": self.TOKEN, **address}

    def answer(self, method: str, path: list[str], parameters: dict[str, Any]) -> dict[str, Any]:
        match method, path[3:]:
            case "POST", ["runs", "submit"]:
                (task,) = parameters["tasks"]
                python, cluster = task["spark_python_task"], task["new_cluster"]
                assert cluster.keys() >= {"spark_version", "node_type_id"}
                return {"run_id": self.begin(python["python_file"], python["parameters"], cluster["spark_conf"])}
            case "GET", ["runs", "get"]:
                number = int(parameters["run_id"])
                state = _DATABRICKS_STATES[self.runs[number].state]
                return {"run_id": number, "state": state, "tasks": [{"run_id": number + self._TASK, "state": state}]}
            case "GET", ["runs", "get-output"]:
                return {"error": self.runs[int(parameters["run_id"]) - self._TASK].reason}
            case "POST", ["runs", "cancel"]:
                self.runs[int(parameters["run_id"])].cancel()
                return {}
        raise LookupError(path)


class EmrServerlessService(HttpSparkService):
    """The job runs of EMR Serverless (https://docs.aws.amazon.com/emr-serverless/latest/APIReference). Moto has them,
    and they never end there.
    """

    KEY = "AKIA0000EXAMPLE"

    def __init__(self) -> None:
        super().__init__(f"AWS4-HMAC-SHA256 Credential={self.KEY}/")

    @property
    def connection(self) -> dict[str, Any]:
        extra = {"region_name": "eu-central-1", "endpoint_url": f"http://127.0.0.1:{self.port}"}
        return {"conn_type": "aws", "login": self.KEY, "password": "aws-5ecret", "extra": extra}

    def answer(self, method: str, path: list[str], parameters: dict[str, Any]) -> dict[str, Any]:
        match method, path:
            case "POST", ["applications", application, "jobruns"]:
                job, (settings,) = (
                    parameters["jobDriver"]["sparkSubmit"],
                    parameters["configurationOverrides"]["applicationConfiguration"],
                )
                option, py_files = shlex.split(job["sparkSubmitParameters"])
                assert (option, settings["classification"]) == ("--py-files", "spark-defaults")
                number = self.begin(job["entryPoint"], job["entryPointArguments"], settings["properties"], py_files)
                return {"applicationId": application, "jobRunId": self._id(number), "arn": "arn:aws:emr-serverless"}
            case "GET", ["applications", application, "jobruns", run_id]:
                run = self.runs[int(run_id)]
                names = ("arn", "createdBy", "executionRole", "releaseLabel")
                state = {"applicationId": application, "jobRunId": run_id, "createdAt": 0, "updatedAt": 0}
                state |= {name: name for name in names} | {"state": _EMR_STATES[run.state]}
                state |= {"jobDriver": {"sparkSubmit": {"entryPoint": ""}}}
                return {"jobRun": state | {"stateDetails": run.reason if state["state"] == "FAILED" else ""}}
            case "DELETE", ["applications", application, "jobruns", run_id]:
                self.runs[int(run_id)].cancel()
                return {"applicationId": application, "jobRunId": run_id}
        raise LookupError(path)

    @staticmethod
    def _id(number: int) -> str:
        return f"{number:016d}"
