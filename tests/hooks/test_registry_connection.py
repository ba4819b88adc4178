"""What an Airflow connection says of a schema registry."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.connections import registry_config


def config_of(monkeypatch: pytest.MonkeyPatch, **connection: Any) -> dict[str, Any]:
    monkeypatch.setenv("AIRFLOW_CONN_REGISTRY", json.dumps({"conn_type": "http"} | connection))
    return registry_config("registry")


@pytest.mark.parametrize(
    ("connection", "url"),
    [
        ({"host": "registry", "port": 8081}, "http://registry:8081"),
        ({"host": "registry", "schema": "https"}, "https://registry"),
        ({"host": "https://registry/apis/ccompat/v7", "port": 8443}, "https://registry:8443/apis/ccompat/v7"),
        ({"host": "https://registry:8443/apis"}, "https://registry:8443/apis"),
    ],
)
def test_the_address(monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], url: str) -> None:
    assert config_of(monkeypatch, **connection) == {"url": url}


def test_login_and_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    found = config_of(
        monkeypatch,
        host="https://registry",
        login="ada",
        password="5ecret",
        extra=json.dumps({"ssl.ca.location": "/etc/ca.pem"}),
    )
    assert found == {
        "url": "https://registry",
        "basic.auth.user.info": "ada:5ecret",
        "ssl.ca.location": "/etc/ca.pem",
    }


@pytest.mark.parametrize(
    ("connection", "match"),
    [
        (
            {"conn_type": "kafka"},
            "'registry' is of type 'kafka'; the connection of a schema registry has type 'http' or 'generic'",
        ),
        ({}, "Connection 'registry': The URL of a schema registry begins with http"),
        ({"host": "http://u:fi[x@h"}, "'registry': its host is no URL of a schema registry"),
        ({"host": "r", "schema": "apis"}, "'registry': The URL of a schema registry begins with http"),
        ({"host": "r", "extra": '{"headers": "x"}'}, "'registry': A schema registry has no property headers"),
    ],
)
def test_registry_connections_that_cannot_be_used_are_refused(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], match: str
) -> None:
    with pytest.raises(ConfigurationError, match=match):
        config_of(monkeypatch, **connection)
