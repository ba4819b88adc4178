"""A broker whose clients log in with a password."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from devstack.kafka import CLIENT, CONTROLLER, KafkaNode, new_cluster_id, voter
from devstack.process import free_port

_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class SaslKafka(KafkaNode):
    """A broker with a listener in plain text, with which tests set up, and one for a user with a password (PLAIN)."""

    def __init__(self, user: str, password: str) -> None:
        ports = {CLIENT: free_port(), CONTROLLER: free_port()}
        self._sasl_port, self._user, self._password = free_port(), user, password
        listeners = {name: f"{name}://127.0.0.1:{port}" for name, port in (ports | {"SASL": self._sasl_port}).items()}
        config = {
            "listeners": ",".join(listeners.values()),
            "advertised.listeners": f"{listeners[CLIENT]},{listeners['SASL']}",
            "listener.security.protocol.map": f"{CLIENT}:PLAINTEXT,{CONTROLLER}:PLAINTEXT,SASL:SASL_PLAINTEXT",
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f'{_LOGIN} required user_{user}="{password}";',
        }
        super().__init__(
            1,
            cluster_id=new_cluster_id(),
            voters=voter(1, ports[CONTROLLER]),
            listeners=ports,
            directory=Path(tempfile.mkdtemp(prefix="devstack-kafka-")),
            heap="512m",
            config=config,
        )

    def client_config(self, password: str | None = None) -> dict[str, Any]:
        """The configuration of a client that logs in, by default with the password of the user."""
        return {
            "bootstrap.servers": f"127.0.0.1:{self._sasl_port}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": self._user,
            "sasl.password": password or self._password,
        }
