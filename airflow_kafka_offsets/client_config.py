"""What a connection may set of librdkafka's configuration."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow_kafka_offsets.exceptions import ConfigurationError

log = logging.getLogger(__name__)

# Keys that make librdkafka load code, or run a command, named by whoever may edit a connection.
REFUSED_KEYS = ("plugin.library.paths", "ssl.engine.location", "sasl.kerberos.kinit.cmd")


def check_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Take a librdkafka configuration from a connection, and refuse what must not come from one.

    :raises ConfigurationError: no bootstrap.servers, a key that makes the client load code, or a value that is no text
        or number
    """
    refused = sorted(key for key in config if key in REFUSED_KEYS)
    if refused:
        raise ConfigurationError(
            f"The Kafka configuration sets {', '.join(refused)}, which makes the client load or run code named by a "
            "connection; remove it from the connection's extra"
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
    if str(config.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        log.warning("TLS certificates of the Kafka brokers are not verified: the connection turns it off")
    return dict(config)
