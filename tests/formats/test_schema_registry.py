"""What a schema registry is asked, how often, and what its answers mean."""

from __future__ import annotations

import base64
import json
import logging
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_offsets.exceptions import REGISTRY, ConfigurationError, RegistryUnavailableError
from airflow_kafka_offsets.formats import schema_registry
from airflow_kafka_offsets.formats.schema_registry import NotFoundError, SchemaRegistry, context_of, without_context
from tests.support.certificates import Authority
from tests.support.registry import FakeRegistry, fake_registry


@pytest.fixture
def server() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


@pytest.fixture
def registry(server: FakeRegistry) -> Iterator[SchemaRegistry]:
    registry = SchemaRegistry(server.config)
    yield registry
    registry.close()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_registry, "_PAUSE_SECONDS", 0.0)


def test_a_version_is_asked_for_once(server: FakeRegistry, registry: SchemaRegistry) -> None:
    server.register("orders-value", '"string"')

    found = [registry.version("orders-value", 1) for _ in range(3)]

    assert set(found) == {(1, ("AVRO", '"string"', ()))}
    assert server.requests == ["/subjects/orders-value/versions/1"]


def test_the_versions_of_a_subject_have_ids(server: FakeRegistry, registry: SchemaRegistry) -> None:
    server.register("a/b c", '"string"', number=17)
    server.register("a/b c", '"long"', number=19)

    assert registry.versions("a/b c") == [1, 2]
    assert registry.version("a/b c", 2) == (19, ("AVRO", '"long"', ()))
    assert server.requests == ["/subjects/a%2Fb%20c/versions", "/subjects/a%2Fb%20c/versions/2"]


def test_references_come_before_their_schema(server: FakeRegistry, registry: SchemaRegistry) -> None:
    server.register("money", '"first"')
    server.register("line", '"second"', [{"name": "money", "subject": "money", "version": 1}])
    references = [{"name": name, "subject": name, "version": 1} for name in ("line", "money")]
    number = server.register("orders-value", '"third"', references)

    references_found = registry.by_id(number).references
    assert [(found.name, found.text) for found in references_found] == [("money", '"first"'), ("line", '"second"')]


@pytest.mark.parametrize(
    ("subject", "context", "name"),
    [
        ("orders-value", "", "orders-value"),
        (":.eu:orders-value", ":.eu:", "orders-value"),
        (":.eu::odd:", ":.eu:", ":odd:"),
        (":.:orders-value", "", "orders-value"),
        (":eu:orders-value", "", ":eu:orders-value"),
        ("of:.eu:orders", "", "of:.eu:orders"),
    ],
)
def test_a_subject_may_be_qualified_with_a_context(subject: str, context: str, name: str) -> None:
    assert (context_of(subject), without_context(subject)) == (context, name)


def test_ids_and_references_are_those_of_the_context(server: FakeRegistry) -> None:
    eu = server.contexts[":.eu:"] = FakeRegistry()
    for where, text in ((server, '"int"'), (eu, '"long"')):
        where.register("money", text)
        where.register("orders-value", '"string"', [{"name": "money", "subject": "money", "version": 1}])
    eu.register("lines-value", '"string"', [{"name": "money", "subject": ":.:money", "version": 1}])

    with closing(SchemaRegistry(server.config, ":.eu:")) as registry:
        assert registry.by_id(1).text == '"long"'
        assert registry.versions_of(2) == [("orders-value", 1)]
        assert [found.text for found in registry.by_id(2).references] == ['"long"']
        assert [found.text for found in registry.by_id(3).references] == ['"int"']
        assert [found.text for found in registry.version(":.eu:orders-value", 1)[1].references] == ['"long"']
        with pytest.raises(NotFoundError):
            registry.by_id(4)
    with closing(SchemaRegistry(server.config)) as registry:
        assert registry.by_id(1).text == '"int"'
        assert [found.text for found in registry.by_id(2).references] == ['"int"']


def test_unknown_schema_is_not_found(registry: SchemaRegistry) -> None:
    with pytest.raises(NotFoundError):
        registry.by_id(99)
    with pytest.raises(NotFoundError):
        registry.versions("nothing")


def test_a_server_that_fails_is_asked_again(server: FakeRegistry, registry: SchemaRegistry) -> None:
    number = server.register("orders-value", '"string"')
    server.answers += [500, 429, 503]

    assert registry.by_id(number).text == '"string"'
    assert len(server.requests) == 4


def test_a_server_that_goes_on_failing_is_an_outage(server: FakeRegistry, registry: SchemaRegistry) -> None:
    server.answers += [503] * 4

    with pytest.raises(RegistryUnavailableError, match="in 4 attempts: it answers with status 503") as raised:
        registry.by_id(1)
    assert raised.value.retriable
    assert registry.host in str(raised.value)


def test_a_server_that_is_not_there_is_an_outage() -> None:
    with fake_registry() as server:
        url = server.url
    with pytest.raises(RegistryUnavailableError, match="ConnectError"):
        SchemaRegistry({"url": url}).by_id(1)


def test_an_answer_of_something_else_is_no_unknown_schema(server: FakeRegistry) -> None:
    registry = SchemaRegistry({"url": f"{server.url}/elsewhere/"})
    with pytest.raises(ConfigurationError, match="is not a schema registry: /schemas/ids/1 has status 404") as raised:
        registry.by_id(1)
    assert raised.value.about == (REGISTRY,)
    registry.close()


def test_an_answer_of_more_values_than_a_registry_has_is_not_read(server: FakeRegistry) -> None:
    server.subjects["s"] = [1] * 60_000
    server.schemas[1] = {"schema": '{,["\\' * 100_000}
    with closing(SchemaRegistry(server.config)) as registry:
        assert len(registry.versions("s")) == 60_000
        assert len(registry.by_id(1).text) == 500_000
        for value in ("[]", "{}", "1"):
            server.schemas[1]["more"] = [json.loads(value)] * 150_000
            with pytest.raises(ConfigurationError, match="is not a schema registry"):
                registry.by_id(1)


def test_a_redirection_sends_no_credentials_to_a_stranger(server: FakeRegistry) -> None:
    class Redirects(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"{server.url}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server.register("orders-value", '"string"')
    with ThreadingHTTPServer(("127.0.0.1", 0), Redirects) as redirecting:
        threading.Thread(target=redirecting.serve_forever).start()
        url = f"http://127.0.0.1:{redirecting.server_address[1]}"
        registry = SchemaRegistry({"url": url, "bearer.auth.token": "t0ken"})
        with pytest.raises(ConfigurationError, match="status 302"):
            registry.by_id(1)
        registry.close()
        redirecting.shutdown()

    assert server.requests == []


@pytest.mark.parametrize(
    ("config", "header"),
    [
        ({"basic.auth.user.info": "ada:5ec:ret"}, f"Basic {base64.b64encode(b'ada:5ec:ret').decode()}"),
        ({"bearer.auth.token": "t0ken"}, "Bearer t0ken"),
    ],
)
def test_credentials_are_sent_and_not_shown(server: FakeRegistry, config: dict[str, Any], header: str) -> None:
    number = server.register("orders-value", '"string"')
    server.authorization = header
    registry = SchemaRegistry(server.config | config)
    assert registry.by_id(number).text == '"string"'
    registry.close()

    server.authorization = "another"
    refused = SchemaRegistry(server.config | config)
    with pytest.raises(ConfigurationError, match="refuses /schemas/ids/1 with status 401") as raised:
        refused.by_id(number)
    refused.close()
    assert not any(secret in str(raised.value) for secret in ("5ec", "t0ken"))


def test_tls_with_an_own_authority_and_a_client_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(authority.certificate))
    tls.load_cert_chain(*authority.sign("server"))
    tls.verify_mode = ssl.CERT_REQUIRED
    certificate, key = map(str, authority.sign("client", b"5ecret"))
    with fake_registry(tls) as server:
        server.register("orders-value", '"string"')
        whole = server.config | {
            "ssl.ca.location": str(authority.certificate),
            "ssl.certificate.location": certificate,
            "ssl.key.location": key,
            "ssl.key.password": "5ecret",
        }
        registry = SchemaRegistry(whole)
        assert registry.by_id(1).text == '"string"'
        registry.close()

        without_authority = SchemaRegistry({name: value for name, value in whole.items() if name != "ssl.ca.location"})
        with pytest.raises(RegistryUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            without_authority.by_id(1)
        without_authority.close()
        anonymous = SchemaRegistry(server.config | {"ssl.ca.location": str(authority.certificate)})
        with pytest.raises(RegistryUnavailableError):
            anonymous.by_id(1)
        anonymous.close()


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({}, "The URL of a schema registry begins with http"),
        ({"url": "ftp://registry"}, "begins with http"),
        ({"url": "http://ada:5ecret@registry"}, "must not hold credentials"),
        ({"url": "http://registry", "verify": False}, "has no property verify; known are url, basic.auth.user.info"),
        ({"url": "https://registry", "ssl.ca.location": "/nowhere.pem"}, "cannot be loaded: FileNotFoundError"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(config: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match) as raised:
        SchemaRegistry(config).by_id(1)
    assert "5ecret" not in str(raised.value)


def test_credentials_in_plain_text_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    secret = {"bearer.auth.token": "t0ken"}
    with caplog.at_level(logging.WARNING):
        SchemaRegistry(secret | {"url": "http://localhost:8081"})
        SchemaRegistry(secret | {"url": "https://registry"})
        SchemaRegistry({"url": "http://registry"})
        assert caplog.messages == []
        SchemaRegistry(secret | {"url": "http://registry"})
    assert caplog.messages == [
        "The credentials for the schema registry cross the network to registry in plain text: use https"
    ]
