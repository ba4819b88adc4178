"""A server of S3, moto's, with multipart uploads and conditional writes. Its objects are in its memory."""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from devstack.process import ServerProcess, free_port, listens
from devstack.server import Server

_START_TIMEOUT = 60.0


class S3Server(Server):
    """A server that takes any keys. A stop or kill forgets its buckets."""

    key = "devstack"
    secret = "devstack-secret"  # takes any
    region = "us-east-1"

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="s3-"))
        self.port = free_port()
        command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = ServerProcess("s3", command, log=self.directory / "s3.log", scratch=self.directory)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def connection(self) -> dict[str, Any]:
        """The fields of an Airflow connection to it."""
        return {
            "conn_type": "aws",
            "login": self.key,
            "password": self.secret,
            "extra": {"endpoint_url": self.url, "region_name": self.region},
        }

    def start(self) -> Self:
        self.process.start()
        self.process.wait_until(lambda: listens(self.port), _START_TIMEOUT, "the server of S3")
        return self

    def client(self) -> Any:
        """Return a client of boto3."""
        import boto3

        keys = {"aws_access_key_id": self.key, "aws_secret_access_key": self.secret}
        return boto3.client("s3", endpoint_url=self.url, region_name=self.region, **keys)

    def create_bucket(self, name: str) -> str:
        """Create a bucket, and return its URI."""
        self.client().create_bucket(Bucket=name)
        return f"s3://{name}"

    def objects(self, bucket: str) -> Mapping[str, int]:
        """Return the objects of a bucket by their keys, with their sizes."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return {found["Key"]: found["Size"] for page in pages for found in page.get("Contents", ())}
