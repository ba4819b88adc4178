"""Connections that cannot work: wrong logins, certificates and protocols are configuration errors, within seconds."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import ConfigurationError, KafkaUnavailableError, ReadError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.config import mismatch
from airflow_kafka_offsets.kafka.consumer import consumer_config
from airflow_kafka_offsets.kafka.errors import refused_connection
from airflow_kafka_offsets.kafka.reader import read
from devstack.certificates import Authority
from devstack.process import free_port
from devstack.secured_kafka import MTLS, SASL, SecuredKafka

pytestmark = pytest.mark.server

# A request is retried for half a minute, a reader waits two. What no retry mends must take a fraction of it.
SECONDS = 60.0

# Long enough to learn why nobody answers, also where the machine stops for a while.
OUTAGE_SECONDS = 5.0

Config = dict[str, Any]


def at(kafka: SecuredKafka, listener: str) -> Config:
    return {"bootstrap.servers": f"127.0.0.1:{kafka.ports[listener]}"}


def tls(kafka: SecuredKafka) -> Config:
    return {"security.protocol": "SSL", "ssl.ca.pem": kafka.authority.certificate}


def loader(kafka: SecuredKafka, **others: str) -> Config:
    return kafka.sasl("loader", "loader-secret") | {key.replace("_", "."): value for key, value in others.items()}


def of_another_authority(kafka: SecuredKafka) -> Config:
    certificate = Authority().issue("loader")
    return kafka.mtls("loader") | {"ssl.certificate.pem": certificate.certificate, "ssl.key.pem": certificate.key}


REFUSED: dict[str, tuple[Callable[[SecuredKafka], Config], str]] = {
    "a wrong password": (
        lambda kafka: kafka.sasl("loader", "wrong"),
        r"Authentication failed .*SCRAM-SHA-512\. It is the login of user 'loader': correct .*sasl\.password",
    ),
    "a wrong password, PLAIN": (
        lambda kafka: kafka.sasl("plain", "wrong", "PLAIN"),
        "Invalid username or password.*user 'plain'",
    ),
    "an unknown user": (lambda kafka: kafka.sasl("nobody", "loader-secret"), "Authentication failed.*user 'nobody'"),
    "an unsupported mechanism": (
        lambda kafka: kafka.sasl("loader", "loader-secret", "SCRAM-SHA-256"),
        "Unsupported SASL mechanism: broker's supported mechanisms: SCRAM-SHA-512,PLAIN.*correct sasl.mechanism",
    ),
    "plain text to TLS": (
        lambda kafka: at(kafka, SASL),
        r"speaks sasl_ssl, and the connection says security\.protocol=plaintext",
    ),
    "plain text to TLS with certificates": (
        lambda kafka: at(kafka, MTLS),
        r"speaks ssl, and the connection says security\.protocol=plaintext",
    ),
    "a login in plain text to TLS": (
        lambda kafka: loader(kafka, security_protocol="SASL_PLAINTEXT"),
        "speaks sasl_ssl, and the connection says security.protocol=sasl_plaintext",
    ),
    "TLS to plain text": (
        lambda kafka: tls(kafka) | {"bootstrap.servers": kafka.bootstrap_servers},
        "speaks plaintext, and the connection says security.protocol=ssl",
    ),
    "TLS without a login": (
        lambda kafka: at(kafka, SASL) | tls(kafka),
        "speaks sasl_ssl, and the connection says security.protocol=ssl",
    ),
    "no certificate": (
        lambda kafka: at(kafka, MTLS) | tls(kafka),
        r"asks for a certificate of the client: set ssl\.certificate\.location and ssl\.key\.location",
    ),
    "a certificate of another authority": (of_another_authority, "does not accept the client's certificate"),
    "a broker of another authority": (
        lambda kafka: kafka.mtls("loader") | {"ssl.ca.pem": Authority().certificate},
        "certificate verify failed: broker certificate could not be verified, verify that ssl.ca.location",
    ),
}


def is_refused(request: Callable[[], object], message: str) -> None:
    started = time.monotonic()
    with pytest.raises(ConfigurationError, match=message) as raised:
        request()
    assert time.monotonic() - started < SECONDS
    assert "in state" not in str(raised.value)
    assert not raised.value.retriable


@pytest.mark.parametrize("case", REFUSED)
def test_a_connection_that_cannot_work_is_refused_within_seconds(secured_kafka: SecuredKafka, case: str) -> None:
    config, message = REFUSED[case]
    is_refused(Cluster(config(secured_kafka), timeout=10 * SECONDS).cluster_id, message)


@pytest.mark.parametrize("case", ["a wrong password", "no certificate", "a broker of another authority"])
def test_executors_say_the_same(secured_kafka: SecuredKafka, case: str) -> None:
    config, message = REFUSED[case]
    slice_ = Slice(0, "orders", 0, 0, 10)
    settings = consumer_config(config(secured_kafka), "g", "read_committed")
    is_refused(lambda: list(read(slice_, settings, idle_timeout=10 * SECONDS)), message)


@pytest.mark.parametrize(
    "config",
    [
        loader,
        lambda kafka: kafka.sasl("plain", "plain-secret", "PLAIN"),
        lambda kafka: kafka.mtls("loader"),
        lambda kafka: {"bootstrap.servers": kafka.bootstrap_servers},
        # Who is not let in for another reason is not told to change the protocol.
        lambda kafka: loader(kafka) | at(kafka, MTLS),
        lambda kafka: {"bootstrap.servers": f"127.0.0.1:{free_port()}"},
    ],
    ids=["scram", "plain", "mtls", "plaintext", "login without a certificate", "nobody listens"],
)
def test_matching_protocol_gives_no_hint(secured_kafka: SecuredKafka, config: Callable[[SecuredKafka], Config]) -> None:
    assert mismatch(config(secured_kafka)) is None


def test_the_connections_that_work(secured_kafka: SecuredKafka) -> None:
    configs = (
        loader(secured_kafka),
        secured_kafka.sasl("plain", "plain-secret", "PLAIN"),
        secured_kafka.mtls("loader"),
    )
    assert len({Cluster(config).cluster_id() for config in configs}) == 1


def test_a_broker_that_is_not_there_is_no_wrong_configuration(secured_kafka: SecuredKafka) -> None:
    config = loader(secured_kafka) | {"bootstrap.servers": f"127.0.0.1:{free_port()}"}
    with pytest.raises(KafkaUnavailableError, match="Connection refused"):
        Cluster(config, timeout=OUTAGE_SECONDS).cluster_id()


@pytest.fixture
def with_token() -> Config:
    """The configuration of a client that gets its tokens from a server that is down."""
    return {
        "bootstrap.servers": f"127.0.0.1:{free_port()}",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "loader",
        "sasl.oauthbearer.client.secret": "loader-secret",
        "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{free_port()}/token",
    }


def test_a_server_of_tokens_that_is_down_is_no_wrong_configuration(with_token: Config) -> None:
    with pytest.raises(KafkaUnavailableError, match="Failed to acquire SASL OAUTHBEARER token") as raised:
        Cluster(with_token, timeout=OUTAGE_SECONDS).cluster_id()
    assert raised.value.retriable


def test_executors_wait_for_a_server_of_tokens(with_token: Config) -> None:
    config = consumer_config(with_token, "g", "read_committed")
    with pytest.raises(ReadError, match="Failed to acquire SASL OAUTHBEARER token") as raised:
        list(read(Slice(0, "orders", 0, 0, 10), config, idle_timeout=OUTAGE_SECONDS))
    assert raised.value.retriable


@pytest.mark.parametrize(
    ("mechanism", "text", "settings"),
    [
        ("OAUTHBEARER", "SASL OAUTHBEARER authentication failed (principal=loader): invalid_token", "oauthbearer"),
        ("OAUTHBEARER", "Unsupported SASL mechanism: broker's supported mechanisms: PLAIN", "oauthbearer"),
        ("OAUTHBEARER", "Failed to acquire SASL OAUTHBEARER token: HTTP error 503: Service Unavailable", None),
        ("GSSAPI", "SASL authentication error: Authentication failed due to invalid credentials", "kerberos"),
        ("GSSAPI", "Failed to initialize SASL authentication: No Kerberos credentials available", None),
        (None, "Failed to initialize SASL authentication: No Kerberos credentials available", None),
        ("PLAIN", "Failed to initialize SASL authentication: nothing", "username"),
    ],
)
def test_only_the_answer_of_a_broker_is_final(mechanism: str | None, text: str, settings: str | None) -> None:
    config = {"bootstrap.servers": "kafka:9092"} | ({} if mechanism is None else {"sasl.mechanism": mechanism})
    refused = refused_connection(config, KafkaError(KafkaError._AUTHENTICATION, text))
    if settings is None:
        assert refused is None
    else:
        assert re.search(f"correct sasl.mechanism, sasl.{settings}", str(refused))
