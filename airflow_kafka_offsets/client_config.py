"""What a connection may set of librdkafka's configuration."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.exceptions import ConfigurationError

log = logging.getLogger(__name__)

# Keys that make librdkafka load code, or run a command, named by whoever may edit a connection.
REFUSED_KEYS = ("plugin.library.paths", "ssl.engine.location", "sasl.kerberos.kinit.cmd")
# OpenSSL's own; any other name is that of a library to load.
_PROVIDERS = {"default", "base", "legacy", "fips"}
# The client puts them into the command line of kinit, which a shell reads. What begins with a hyphen is an option there.
_KINIT_ARGUMENTS = ("sasl.kerberos.principal", "sasl.kerberos.keytab")
_KINIT_ARGUMENT = re.compile(r"(?!-)[\w./@+=:,%~-]*", re.ASCII)


def check_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Take a librdkafka configuration from a connection, and refuse what must not come from one.

    :raises ConfigurationError: no bootstrap.servers, a setting that makes the client load code, or a value that is no
        text or number
    """
    refused = sorted(key for key, value in config.items() if _runs_code(key, value))
    if refused:
        raise ConfigurationError(
            f"The Kafka configuration sets {', '.join(refused)}, which makes the client load or run code named by a "
            "connection; remove it from the connection's extra (ssl.providers may name only "
            f"{', '.join(sorted(_PROVIDERS))}; a principal or a keytab may not hold spaces, nor what means something to a shell)"
        )
    # The client reads up to the NUL, and would know it as another key or value than the one that was looked at.
    cut = sorted(key for key, value in config.items() if "\0" in key or "\0" in str(value))
    if cut:
        raise ConfigurationError(
            f"The Kafka configuration has a NUL character in {', '.join(map(repr, cut))}; remove it"
        )
    callbacks = sorted(
        key
        for key, value in config.items()
        if key.endswith("_cb") or key == "on_commit" or not isinstance(value, (str, int, float, bool))
    )
    if callbacks:
        raise ConfigurationError(
            f"The Kafka configuration sets {', '.join(callbacks)}: callbacks, and values that are neither text nor a number, "
            "cannot travel to Spark. For OAUTHBEARER use librdkafka's own 'sasl.oauthbearer.method=oidc'."
        )
    if not config.get("bootstrap.servers"):
        raise ConfigurationError("The Kafka configuration has no 'bootstrap.servers'; add it to the connection's extra")
    if str(config.get("enable.ssl.certificate.verification", "true")).lower() in ("false", "f", "0"):
        log.warning("TLS certificates of the Kafka brokers are not verified: the connection turns it off")
    return dict(config)


def _runs_code(key: str, value: Any) -> bool:
    if key == "ssl.providers":
        return not {name.strip() for name in str(value).split(",")} <= _PROVIDERS
    if key in _KINIT_ARGUMENTS:
        return not _KINIT_ARGUMENT.fullmatch(str(value))
    return key in REFUSED_KEYS
