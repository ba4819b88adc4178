"""A schema registry for every day: a small HTTP server with the requests that the package makes.

The real one, Apicurio's, is in the long tests: tests/formats/test_real_registry.py.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

Reference = Mapping[str, Any]


@dataclass
class FakeRegistry:
    """What is registered, and what was asked for.

    :param answers: statuses with which the next requests are answered, whatever they ask for
    :param forbidden: the ids of schemas that this user may not read
    :param late: the ids of schemas that the versions of subjects do not have yet
    :param authorization: the header that a request must have; None for any
    :param contexts: each has ids and subjects of its own, by names such as `:.eu:`
    """

    url: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    authorization: str | None = None
    late: set[int] = field(default_factory=set)
    forbidden: set[int] = field(default_factory=set)
    contexts: dict[str, FakeRegistry] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, str]:
        return {"url": self.url}

    def register(
        self,
        subject: str,
        schema: Any,
        references: Sequence[Reference] = (),
        kind: str = "AVRO",
        number: int | None = None,
    ) -> int:
        """Register a schema as the next version of a subject, and return its id."""
        number = number if number is not None else len(self.schemas) + 1
        text = schema if isinstance(schema, str) else json.dumps(schema)
        self.schemas[number] = {"schema": text} | ({"references": list(references)} if references else {})
        if kind != "AVRO":
            self.schemas[number]["schemaType"] = kind
        self.subjects.setdefault(subject, []).append(number)
        return number

    def answer(self, path: str, authorization: str | None) -> tuple[int, Any]:
        self.requests.append(path)
        if self.answers:
            return self.answers.pop(0), {"error_code": 50001, "message": "as the test wants it"}
        if self.authorization is not None and authorization != self.authorization:
            return 401, {"error_code": 401, "message": "Unauthorized"}
        routes: dict[str, Callable[..., tuple[int, Any]]] = {
            r"/schemas/ids/(\d+)": self._by_id,
            r"/schemas/ids/(\d+)/versions": self._versions_of,
            r"/subjects/([^/]+)/versions": self._versions,
            r"/subjects/([^/]+)/versions/(\d+)": self._version,
        }
        url = urlsplit(path)
        # As Confluent's and Redpanda's do: of an id, the parameter says in which context it is.
        named = unquote(url.path.removeprefix("/subjects/"))
        qualified = re.match(r":[^:]+:", parse_qs(url.query).get("subject", [named])[0])
        if qualified is not None:
            within = self if qualified[0] == ":.:" else self.contexts.get(qualified[0], FakeRegistry())
            return within.answer(path.replace(quote(qualified[0], safe=""), ""), authorization)
        for route, respond in routes.items():
            if found := re.fullmatch(route, url.path):
                return respond(*found.groups())
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _by_id(self, number: str) -> tuple[int, Any]:
        if int(number) in self.forbidden:
            return 403, {"error_code": 40301, "message": "User is denied operation Read on Subject: payroll-value"}
        found = self.schemas.get(int(number))
        return (200, found) if found is not None else (404, {"error_code": 40403, "message": "Schema not found"})

    def _versions_of(self, number: str) -> tuple[int, Any]:
        versions = ((name, enumerate(numbers, 1)) for name, numbers in self.subjects.items())
        return 200, [
            {"subject": name, "version": version}
            for name, numbers in versions
            for version, found in numbers
            if found == int(number)
        ]

    def _versions(self, subject: str) -> tuple[int, Any]:
        numbers = self.subjects.get(unquote(subject), [])
        found = [version for version, number in enumerate(numbers, 1) if number not in self.late]
        return (200, found) if found else (404, {"error_code": 40401, "message": "not found"})

    def _version(self, subject: str, version: str) -> tuple[int, Any]:
        numbers = self.subjects.get(unquote(subject), [])
        if not 1 <= int(version) <= len(numbers):
            return 404, {"error_code": 40402, "message": "Version not found"}
        number = numbers[int(version) - 1]
        return 200, {"subject": subject, "version": int(version), "id": number, **self.schemas[number]}


@contextmanager
def fake_registry(tls: ssl.SSLContext | None = None) -> Iterator[FakeRegistry]:
    """Run a registry for the duration of the block.

    :param tls: with the server's certificate
    """
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Otherwise the answer to each request but the first waits for an acknowledgement.
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            status, body = registry.answer(self.path, self.headers.get("Authorization"))
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Be silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    registry.url = f"http{'s' if tls is not None else ''}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def post_schema(url: str, subject: str, schema: Any, **more: Any) -> int:
    """Register a schema in a real registry as the next version of a subject, and return its id."""
    body = json.dumps({"schema": schema if isinstance(schema, str) else json.dumps(schema), **more}).encode()
    request = urllib.request.Request(
        f"{url}/subjects/{subject}/versions", body, {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        number: int = json.load(response)["id"]
    return number
