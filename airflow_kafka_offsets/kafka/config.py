"""The librdkafka configuration of a connection: which properties it may set, whether its `security.protocol` is that of
the listener, and where the client logs.

What a consumer also needs is in `kafka.consumer`.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
import struct
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from airflow_kafka_offsets.core.addresses import address, is_this_machine, plain_http_host
from airflow_kafka_offsets.core.warn import warn_once
from airflow_kafka_offsets.exceptions import ConfigurationError

log = logging.getLogger(__name__)

# librdkafka reports a failing connection again and again on stderr; its reason reaches the user once, in our error.
client_log = logging.getLogger(f"{__name__}.librdkafka")

client_log.addHandler(logging.NullHandler())

client_log.propagate = False

# The properties of librdkafka 2.16 (its CONFIGURATION.md) that a connection may set. A new property is refused until it
# is reviewed: a user who may edit connections must not be able to load a library, to run a command, or to send a file
# of the worker to a URL.
_HARMLESS = """
bootstrap.servers client.id client.rack client.dns.lookup broker.address.family broker.address.ttl
broker.version.fallback api.version.request api.version.request.timeout.ms api.version.fallback.ms
allow.auto.create.topics enable.metrics.push

security.protocol enable.ssl.certificate.verification ssl.endpoint.identification.algorithm ssl.cipher.suites
ssl.curves.list ssl.sigalgs.list ssl.providers ssl.ca.location ssl.ca.pem ssl.ca.certificate.stores ssl.crl.location
ssl.certificate.location ssl.certificate.pem ssl.key.location ssl.key.pem ssl.key.password ssl.keystore.location
ssl.keystore.password https.ca.location https.ca.pem

sasl.mechanism sasl.mechanisms sasl.username sasl.password sasl.kerberos.service.name sasl.kerberos.principal
sasl.kerberos.keytab sasl.kerberos.min.time.before.relogin sasl.oauthbearer.method sasl.oauthbearer.config
sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.scope sasl.oauthbearer.extensions
sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.sub.claim.name sasl.oauthbearer.grant.type
enable.sasl.oauthbearer.unsecure.jwt

socket.timeout.ms socket.blocking.max.ms socket.send.buffer.bytes socket.receive.buffer.bytes socket.keepalive.enable
socket.nagle.disable socket.max.fails socket.connection.setup.timeout.ms connections.max.idle.ms reconnect.backoff.ms
reconnect.backoff.max.ms reconnect.backoff.jitter.ms retry.backoff.ms retry.backoff.max.ms retries
message.send.max.retries request.timeout.ms max.in.flight max.in.flight.requests.per.connection message.max.bytes
message.copy.max.bytes receive.message.max.bytes metadata.max.age.ms metadata.recovery.strategy
metadata.recovery.rebootstrap.trigger.ms topic.metadata.refresh.interval.ms topic.metadata.refresh.fast.interval.ms
topic.metadata.refresh.fast.cnt topic.metadata.refresh.sparse topic.metadata.propagation.max.ms

fetch.wait.max.ms fetch.queue.backoff.ms fetch.message.max.bytes max.partition.fetch.bytes fetch.max.bytes
fetch.min.bytes fetch.error.backoff.ms queued.min.messages queued.max.messages.kbytes check.crcs session.timeout.ms
heartbeat.interval.ms max.poll.interval.ms coordinator.query.interval.ms

group.id group.instance.id group.protocol group.protocol.type group.remote.assignor partition.assignment.strategy
enable.auto.commit auto.commit.enable auto.commit.interval.ms enable.auto.offset.store offset.store.method
auto.offset.reset enable.partition.eof isolation.level

acks request.required.acks compression.codec compression.type compression.level linger.ms batch.size batch.num.messages
enable.idempotence delivery.timeout.ms message.timeout.ms transactional.id transaction.timeout.ms partitioner
queue.buffering.max.messages queue.buffering.max.kbytes queue.buffering.max.ms queue.buffering.backpressure.threshold
delivery.report.only.error sticky.partitioning.linger.ms

debug log_level log.connection.close log.thread.name statistics.interval.ms enable.random.seed topic.blacklist
"""

_ALLOWED = frozenset(_HARMLESS.split())

_CODE = "it makes the client load or run code, and is not allowed"

_FILES = "it makes the client read a file and send its content, and is not allowed"

_REFUSED = {
    "metadata.broker.list": "it is another name of bootstrap.servers, and the client takes either: set that one alone",
    "plugin.library.paths": _CODE,
    "ssl.engine.location": _CODE,
    "ssl.engine.id": _CODE,
    "sasl.kerberos.kinit.cmd": f"{_CODE}; run kinit beside the workers, and leave out sasl.kerberos.keytab",
    "sasl.oauthbearer.assertion.": f"{_FILES}; use a client id and secret",
    "sasl.oauthbearer.metadata.authentication.type": (
        "it makes the client send the identity of the machine to the brokers, and is not allowed; use a client id "
        "and secret"
    ),
}
"""Reasons for keys that users may miss; a key that ends with a dot is the prefix of several."""

# OpenSSL's own providers; any other name is that of a library to load.
_PROVIDER = r"\s*(base|default|fips|legacy)\s*"

# The client puts it into a command line of kinit, which a shell runs. An argument that begins with a hyphen is an
# option there.
_KINIT_ARGUMENT = re.compile(r"(?!-)[\w./@+=:,%~-]*", re.ASCII)

_SAFE_VALUES = {
    "ssl.providers": re.compile(rf"{_PROVIDER}(,{_PROVIDER})*"),
    "sasl.kerberos.principal": _KINIT_ARGUMENT,
    "sasl.kerberos.keytab": _KINIT_ARGUMENT,
}
"""The values that make the client neither load nor run code, for the keys of which others do."""


def check_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the librdkafka configuration of a connection.

    :raises ConfigurationError: it has no bootstrap.servers, a property that a connection may not set, or a value that
        is neither text nor a number
    """
    _refuse_harmful(config)
    data = {key for key, value in config.items() if isinstance(value, (str, int, float, bool))}
    if callbacks := sorted(key for key in config if key not in data or key.endswith("_cb") or key == "on_commit"):
        raise ConfigurationError(
            f"The Kafka configuration sets {', '.join(callbacks)}: callbacks, and values that are neither text nor "
            "numbers, cannot be sent to Spark. For OAUTHBEARER use librdkafka's own 'sasl.oauthbearer.method=oidc'."
        )
    if unknown := sorted(config.keys() - _ALLOWED):
        why = [f"{key} ({_why_refused(key)})" for key in unknown]
        raise ConfigurationError(
            f"The Kafka configuration sets {', '.join(why)}; correct or remove it in the connection's extra"
        )
    if not config.get("bootstrap.servers"):
        raise ConfigurationError("The Kafka configuration has no 'bootstrap.servers'; add it to the connection's extra")
    return dict(config)


def _refuse_harmful(config: Mapping[str, Any]) -> None:
    # The client reads up to the NUL: it would take another key or value than the one checked here.
    if cut := sorted(key for key, value in config.items() if "\0" in key or "\0" in str(value)):
        raise ConfigurationError(
            f"The Kafka configuration has a NUL character in {', '.join(map(repr, cut))}; remove it"
        )
    safe = [(key, value) for key, value in _SAFE_VALUES.items() if key in config]
    if harmful := sorted(key for key, value in safe if not value.fullmatch(str(config[key]))):
        raise ConfigurationError(
            f"The Kafka configuration sets {', '.join(harmful)} to a value that makes the client load or run code; "
            "remove it from the connection's extra (ssl.providers may name only base, default, fips, legacy; a "
            "principal or a keytab may not contain spaces or characters that a shell interprets)"
        )


def weaknesses(config: Mapping[str, Any]) -> list[str]:
    """Return what makes a connection that is allowed less safe than it could be, as sentences."""
    found = []
    if str(config.get("enable.ssl.certificate.verification", "true")).lower() in ("false", "f", "0"):
        found.append("TLS certificates of the Kafka brokers are not verified: the connection turns it off")
    elif str(config.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        found.append(
            "The host names in the TLS certificates of the Kafka brokers are not verified: any server with a "
            "certificate of the same authority is accepted as a broker; remove "
            "ssl.endpoint.identification.algorithm=none"
        )
    protocol = str(config.get("security.protocol", "plaintext")).lower()
    servers = str(config.get("bootstrap.servers", "")).split(",")
    away = [server.strip() for server in servers if not is_this_machine(address(server)[0])]
    if away and protocol in ("plaintext", "sasl_plaintext"):
        crosses = "the user's name and password cross" if protocol == "sasl_plaintext" else "records cross"
        found.append(
            f"security.protocol={protocol}: {crosses} the network to {', '.join(away)} in plain text; use "
            f"{'sasl_ssl' if protocol == 'sasl_plaintext' else 'ssl or sasl_ssl'}"
        )
    if host := plain_http_host(str(config.get("sasl.oauthbearer.token.endpoint.url", ""))):
        found.append(
            f"sasl.oauthbearer.token.endpoint.url: the client's secret crosses the network to {host} in plain text; "
            "use https"
        )
    return found


def warn_of_weaknesses(config: Mapping[str, Any]) -> None:
    """Log the weaknesses of a connection, each once a process: sensors ask for it again and again."""
    for weakness in weaknesses(config):
        warn_once(log, weakness)


def _why_refused(key: str) -> str:
    for refused, why in _REFUSED.items():
        if key == refused or (refused.endswith(".") and key.startswith(refused)):
            return why
    like = get_close_matches(key, _ALLOWED, 1)
    known = "it is none of the properties of librdkafka that a connection may set"
    return f"{known}; did you mean {like[0]}?" if like else known


_SECONDS = 1.0

# SaslHandshake (https://kafka.apache.org/protocol#The_Messages_SaslHandshake), version 1, correlation id 7, no client
# id, and the empty name of a mechanism. Every listener answers it, before any login: one that has logins with the
# mechanisms that it knows.
_REQUEST = struct.pack(">ihhihh", 12, 17, 1, 7, -1, 0)

_ANSWER = struct.Struct(">iih")

_UNSUPPORTED_MECHANISM = 33


def mismatch(config: Mapping[str, Any]) -> ConfigurationError | None:
    """Return the error for a cluster whose first listener that answers speaks another protocol than the configuration
    says.

    Nothing of the configuration is sent but the request for what the listener speaks.
    """
    said = str(config.get("security.protocol", "plaintext")).lower()
    for server in str(config["bootstrap.servers"]).split(","):
        host, port = address(server)
        spoken = _spoken(host, port)
        if spoken is None:
            continue
        if said == spoken or (spoken == "ssl" and said == "sasl_ssl"):
            return None
        return ConfigurationError(
            f"Kafka at {server.strip()} speaks {spoken}, and the connection says security.protocol={said}: correct it, "
            "or name the port of another listener"
        )
    return None


def _spoken(host: str, port: int) -> str | None:
    """Return the security protocol of a listener, None if it is not known. A listener that asks for a certificate is
    "ssl".
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Nothing is entrusted to the listener.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as connection:
            has_logins = _has_logins(connection)
        if has_logins is not None:
            return "sasl_plaintext" if has_logins else "plaintext"
        with (
            socket.create_connection((host, port), timeout=_SECONDS) as connection,
            context.wrap_socket(connection, server_hostname=host) as encrypted,
        ):
            return "sasl_ssl" if _has_logins(encrypted) else "ssl"
    except OSError:
        return None


def _has_logins(connection: socket.socket) -> bool | None:
    """Return whether a listener asks for a login; None if it does not speak Kafka over this connection."""
    try:
        connection.sendall(_REQUEST)
        answer = connection.makefile("rb").read(_ANSWER.size)
    except OSError:
        return None
    if len(answer) < _ANSWER.size:
        return None
    _, correlation, error = _ANSWER.unpack(answer)
    return bool(error == _UNSUPPORTED_MECHANISM) if correlation == 7 else None
