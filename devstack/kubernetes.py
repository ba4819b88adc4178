"""A stand-in for Kubernetes: an API server that keeps objects in memory, and starts the containers of Spark's pods as
processes of this machine, as the entry point of Spark's image does. There is no node, network, image or right.
"""

from __future__ import annotations

import http.server
import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from devstack.java import java_home
from devstack.paths import pyspark_home
from devstack.process import ServerProcess
from devstack.server import Stack

NAMESPACE = "loads"

_OBJECTS = f"/api/v1/namespaces/{NAMESPACE}/"
_CONF = "/opt/spark/conf"
_POLL_SECONDS = 0.2

Object = dict[str, Any]


class Pod:
    """The process of a pod. It has a directory of its own, and nothing of our environment but PATH.

    :param files: of its configuration
    """

    def __init__(self, directory: Path, spec: Object, files: dict[str, str]) -> None:
        directory.mkdir()
        (container,) = spec["containers"]
        # What is taken from a field is the address of the pod.
        given = {
            each["name"]: "127.0.0.1" if "valueFrom" in each else each.get("value", "") for each in container["env"]
        }
        for name, text in files.items():
            (directory / name).write_text(text)
        self.env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(pyspark_home()),
            **given,
            "SPARK_LOCAL_DIRS": str(directory),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(directory),
            "PYSPARK_PYTHON": sys.executable,
        }
        role, *arguments = (argument.replace(_CONF, str(directory)) for argument in container["args"])
        command = self._driver(arguments) if role == "driver" else self._executor()
        self.process = ServerProcess(
            f"pod {directory.name}", command, log=directory.with_suffix(".log"), env=self.env, scratch=directory
        )
        self.process.start()

    def _driver(self, arguments: list[str]) -> list[str]:
        submit = [str(pyspark_home() / "bin" / "spark-submit"), "--deploy-mode", "client"]
        # Nobody resolves the name of its service.
        address = [f"spark.driver.{name}=127.0.0.1" for name in ("host", "bindAddress")]
        return [*submit, *(part for value in address for part in ("--conf", value)), *arguments]

    def _executor(self) -> list[str]:
        options = [value for name, value in sorted(self.env.items()) if name.startswith("SPARK_JAVA_OPT_")]
        backend = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
        java = [str(java_home() / "bin" / "java"), *options, f"-Xmx{self.env['SPARK_EXECUTOR_MEMORY']}"]
        arguments = {
            "driver-url": "SPARK_DRIVER_URL",
            "executor-id": "SPARK_EXECUTOR_ID",
            "cores": "SPARK_EXECUTOR_CORES",
            "app-id": "SPARK_APPLICATION_ID",
            "hostname": "SPARK_EXECUTOR_POD_IP",
            "resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
            "podName": "SPARK_EXECUTOR_POD_NAME",
        }
        named = [part for name, variable in arguments.items() for part in (f"--{name}", self.env[variable])]
        return [*java, "-cp", f"{self.env['SPARK_CONF_DIR']}:{pyspark_home()}/jars/*", backend, *named]

    @property
    def status(self) -> Object:
        """The status of the pod, as Kubernetes says it."""
        code = self.process.exit_status
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        ended = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
        state = {"running": {}} if code is None else ended
        container = {"name": "spark", "ready": code is None, "restartCount": 0, "state": state}
        return {"phase": phase, "podIP": "127.0.0.1", "containerStatuses": [container]}


class KubernetesStandIn(Stack):
    """An API server on a free port of 127.0.0.1, without TLS.

    :ivar requests: method, path and body of each request that changed something
    """

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="devstack-kubernetes-"))
        self.uploads = self.directory / "uploads"
        self.uploads.mkdir()
        self.requests: list[tuple[str, str, str]] = []
        self.pods: dict[str, Pod] = {}
        self._objects: dict[str, Object] = {}
        self._lock = threading.RLock()
        self._version = 0
        stand_in = self

        class Handler(_Handler):
            api = stand_in

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def master(self) -> str:
        """The master of Spark."""
        return f"k8s://http://127.0.0.1:{self._server.server_port}"

    @property
    def properties(self) -> dict[str, str]:
        """The properties of Spark for applications on it."""
        return {
            "spark.kubernetes.container.image": "spark",
            "spark.kubernetes.file.upload.path": self.uploads.as_uri(),
            "spark.kubernetes.namespace": NAMESPACE,
            "spark.kubernetes.driver.master": self.master.removeprefix("k8s://"),
            "spark.pyspark.python": sys.executable,
            "spark.executor.instances": "1",
            "spark.executor.memory": "512m",
            "spark.ui.enabled": "false",
        }

    @property
    def kube_config(self) -> Path:
        """The value of KUBECONFIG for other clients."""
        cluster = {"name": "stand-in", "cluster": {"server": self.master.removeprefix("k8s://")}}
        context = {"name": "stand-in", "context": {"cluster": "stand-in", "user": "stand-in", "namespace": NAMESPACE}}
        user = {"name": "stand-in", "user": {}}
        config = {"apiVersion": "v1", "kind": "Config", "current-context": "stand-in"}
        path = self.directory / "config"
        path.write_text(json.dumps({**config, "clusters": [cluster], "contexts": [context], "users": [user]}))
        return path

    def running(self) -> list[str]:
        """Return the names of the pods that run."""
        return [name for name, pod in list(self.pods.items()) if pod.process.running]

    def start(self) -> Self:
        self._thread.start()
        return self

    def kill(self) -> None:
        for pod in self.pods.values():
            pod.process.kill()
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()

    def apply(self, path: str, body: Object) -> Object:
        """Create or replace an object; a new pod is started."""
        with self._lock:
            self._version += 1
            metadata = {"uid": f"uid-{self._version}", "namespace": NAMESPACE, **body["metadata"]}
            metadata |= {"resourceVersion": str(self._version), "creationTimestamp": "2026-01-01T00:00:00Z"}
            self._objects[path] = {**body, "metadata": metadata}
            return self._objects[path]

    def begin(self, path: str) -> None:
        """Start the pods whose configuration has come."""
        with self._lock:
            for name in [path.rpartition("/")[2]] if "/pods/" in path else list(self._waiting()):
                body = self._objects[f"{_OBJECTS}pods/{name}"]
                files: dict[str, str] = {}
                for volume in body["spec"].get("volumes", []):
                    if "configMap" in volume:
                        found = self._objects.get(f"{_OBJECTS}configmaps/{volume['configMap']['name']}")
                        if found is None:
                            break
                        files |= found.get("data") or {}
                else:
                    self.pods[name] = Pod(self.directory / name, body["spec"], files)

    def _waiting(self) -> list[str]:
        names = [path.rpartition("/")[2] for path in self._objects if path.startswith(f"{_OBJECTS}pods/")]
        return [name for name in names if name not in self.pods]

    def get(self, path: str) -> Object | None:
        """Return an object."""
        with self._lock:
            found = self._objects.get(path)
            pod = self.pods.get(path.rpartition("/")[2])
            if found is None or pod is None:
                return found
            return {**found, "status": pod.status}

    def listed(self, path: str, selector: str) -> list[Object]:
        """Return the objects of a kind that have labels, or a name."""
        wanted = dict(part.split("=", 1) for part in selector.split(",") if "=" in part)
        with self._lock:
            found = [self.get(name) for name in self._objects if name.startswith(f"{path}/")]
        return [
            each
            for each in found
            if each is not None
            and wanted.items()
            <= {**each["metadata"].get("labels", {}), "metadata.name": each["metadata"]["name"]}.items()
        ]

    def delete(self, path: str) -> bool:
        """Delete an object, and kill the process of a pod."""
        with self._lock:
            found = self._objects.pop(path, None)
            pod = self.pods.get(path.rpartition("/")[2]) if "/pods/" in path else None
        if pod is not None:
            pod.process.kill()
        return found is not None


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: KubernetesStandIn

    def do_POST(self) -> None:
        self._apply(named=False)

    def do_PATCH(self) -> None:
        self._apply(named=True)

    def _apply(self, *, named: bool) -> None:
        body = json.loads(text := self._body())
        path = urlsplit(self.path).path
        path = path if named else f"{path}/{body['metadata']['name']}"
        self.api.requests.append((self.command, path, text))
        is_new = self.api.get(path) is None
        answer = self.api.apply(path, body)
        if is_new and ("/pods/" in path or "/configmaps/" in path):
            self.api.begin(path)
        self._answer(200 if named else 201, answer)

    def do_DELETE(self) -> None:
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        self.api.requests.append((self.command, self.path, self._body()))
        if selector := query.get("labelSelector"):
            for each in self.api.listed(path, selector[0]):
                self.api.delete(f"{path}/{each['metadata']['name']}")
        else:
            self.api.delete(path)
        self._answer(200, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})

    def do_GET(self) -> None:
        path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if path.removeprefix(_OBJECTS).count("/"):
            found = self.api.get(path)
            missing = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 404}
            self._answer(200 if found else 404, found or missing)
            return
        selector = ",".join(value for name in ("labelSelector", "fieldSelector") for value in query.get(name, []))
        if "watch" in query:
            self._watch(path, selector)
            return
        kind = {"pods": "PodList", "configmaps": "ConfigMapList", "services": "ServiceList"}.get(
            path.rpartition("/")[2]
        )
        items = self.api.listed(path, selector)
        self._answer(
            200, {"kind": kind or "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}
        )

    def _watch(self, path: str, selector: str) -> None:
        if self.headers.get("Upgrade"):
            # The client then asks without a web socket.
            self._answer(503, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 503})
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        known: dict[str, Object] = {}
        try:
            while True:
                found = {each["metadata"]["name"]: each for each in self.api.listed(path, selector)}
                for name in found.keys() | known.keys():
                    if found.get(name) == known.get(name):
                        continue
                    kind = "DELETED" if name not in found else "MODIFIED" if name in known else "ADDED"
                    line = json.dumps({"type": kind, "object": found.get(name) or known[name]}).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
                    self.wfile.flush()
                known = found
                threading.Event().wait(_POLL_SECONDS)
        except OSError:
            self.close_connection = True

    def _body(self) -> str:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()

    def _answer(self, status: int, body: Object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass
