"""What a connection may set of librdkafka's configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.kafka import config
from airflow_kafka_offsets.kafka.config import check_config

SERVERS = {"bootstrap.servers": "broker:9092"}


@pytest.mark.parametrize(
    "config",
    [
        {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "me", "sasl.password": "s"},
        {
            "security.protocol": "SSL",
            "ssl.ca.location": "/ca",
            "ssl.certificate.location": "/c",
            "ssl.key.location": "/k",
        },
        {
            "ssl.keystore.location": "/store",
            "ssl.keystore.password": "s",
            "ssl.endpoint.identification.algorithm": "none",
        },
        {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "s",
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.extensions": "logicalCluster=lkc-1",
            "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
        },
        {
            "socket.timeout.ms": 1000,
            "client.id": "a",
            "client.rack": "b",
            "broker.address.family": "v4",
            "debug": "fetch",
        },
        {"group.id": "of-another-tool", "enable.auto.commit": False, "auto.offset.reset": "earliest", "retries": 3},
    ],
)
def test_properties_that_users_need_are_accepted(config: dict[str, Any]) -> None:
    assert check_config(SERVERS | config) == SERVERS | config


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("metadata.broker.list", "set that one alone"),
        ("plugin.library.paths", "load or run code, and is not allowed"),
        ("ssl.engine.location", "load or run code, and is not allowed"),
        ("ssl.engine.id", "load or run code, and is not allowed"),
        ("sasl.kerberos.kinit.cmd", "run kinit beside the workers"),
        (
            "sasl.oauthbearer.assertion.file",
            "read a file and send its content, and is not allowed; use a client id",
        ),
        ("sasl.oauthbearer.assertion.private.key.file", "read a file"),
        ("sasl.oauthbearer.assertion.private.key.pem", "use a client id and secret"),
        ("sasl.oauthbearer.assertion.jwt.template.file", "read a file"),
        ("sasl.oauthbearer.metadata.authentication.type", "send the identity of the machine"),
        ("offset.store.path", "none of the properties of librdkafka that a connection may set"),
        ("interceptors", "none of the properties"),
        ("Plugin.Library.Paths", "none of the properties"),
        ("from.the.future", "none of the properties"),
    ],
)
def test_harmful_and_unknown_properties_are_refused(key: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"sets {re.escape(key)} \(.*{why}") as raised:
        check_config(SERVERS | {key: "/etc/shadow"})
    assert "/etc/shadow" not in str(raised.value)


@contextmanager
def suppress_other_errors(key: str) -> Iterator[None]:
    try:
        yield
    except (KafkaException, ValueError, TypeError) as error:
        if "No such configuration property" in str(error):
            pytest.fail(f"librdkafka has no {key}")


@pytest.mark.parametrize("key", sorted(config._ALLOWED))
def test_a_property_that_passes_is_one_of_librdkafka(key: str) -> None:
    """A misspelled one would never be of use. Where the client takes the value, it knows the property, too."""
    client = Producer if key in ("partitioner", "transactional.id") else Consumer
    with suppress_other_errors(key):
        client({"group.id": "group", key: "\x01"})
