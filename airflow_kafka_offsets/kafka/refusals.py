"""What a cluster refuses, and what would change that: a login, a certificate, or a request for which an ACL is missing.

No retry helps. What passes is in `kafka.admin` and `kafka.read_errors`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import KafkaError

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import ConfigurationError

DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
"""No ACL allows the request."""

# The credentials are wrong, the broker does not know the mechanism, or its certificate is not trusted.
_REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})

# A broker that refuses the client's certificate says so in an alert of TLS. The client's code for it is that of every
# broken connection: only OpenSSL's text tells them apart.
_ALERT = re.compile(r"alert [a-z ]*(certificate|unknown ca|access denied|handshake failure|protocol version)")

# When, and how often: what makes the same cause look like another one.
_TIMES = re.compile(r" \((?:after \d+ms in state \w+)?(?:, )?(?:\d+ identical error\(s\) suppressed)?\)$")

_MOST_REASONS = 3


def reasons(errors: Iterable[KafkaError]) -> str:
    """Return why requests failed: the first different causes, each once; empty where there is none."""
    return first_few(dict.fromkeys(_TIMES.sub("", error.str()) for error in errors), between="; ", most=_MOST_REASONS)


def refused_connection(config: Mapping[str, Any], error: KafkaError) -> ConfigurationError | None:
    """Return the error for a connection that the broker, or the client, refuses; None if the error may pass."""
    is_alert = _ALERT.search(error.str()) is not None
    if error.code() not in _REFUSED and not is_alert:
        return None
    advice = ""
    if is_alert and not _has_certificate(config):
        advice = (
            ". The listener asks for a certificate of the client: set ssl.certificate.location and ssl.key.location"
        )
    elif is_alert:
        advice = (
            ". The broker does not accept the client's certificate: let an authority sign it that the broker trusts, "
            "and look whether it has expired"
        )
    elif error.code() == KafkaError._AUTHENTICATION:
        advice = f". It is the login of {_user(config)}: correct sasl.mechanism, sasl.username and sasl.password"
    return ConfigurationError(
        f"Kafka at {config['bootstrap.servers']} refuses the connection: {reasons([error])}{advice}"
    )


def denied(config: Mapping[str, Any], failed: str, operation: str, resources: Iterable[str]) -> ConfigurationError:
    """Return the error for a request that no ACL allows.

    :param failed: what did not succeed, as a sentence
    :param operation: of the ACL
    :param resources: of the ACL, such as "topic 'orders'"
    """
    return ConfigurationError(
        f"{failed}: {_user(config)} needs the ACL {operation} on {first_few(resources)}; add it, for example with "
        "kafka-acls --add"
    )


def _user(config: Mapping[str, Any]) -> str:
    """Return whom a cluster takes the client for, as far as the configuration says so."""
    if name := config.get("sasl.username"):
        return f"user {name!r}"
    return "the user of the client's certificate" if _has_certificate(config) else "this user"


def _has_certificate(config: Mapping[str, Any]) -> bool:
    return any(key.startswith(("ssl.certificate.", "ssl.keystore.")) for key in config)
