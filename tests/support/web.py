"""The pages as a browser asks for them: the app below its prefix, users with roles, and connections of one test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.plugin.readings import Readings
from airflow_kafka_offsets.plugin.sources import Discovery, Registered, Source
from tests.support.clients import Kafka

if TYPE_CHECKING:
    # FastAPI's client of tests has it, or httpx before.
    import httpx2

ROLES = {"viewer": "VIEWER", "editor": "USER", "operator": "OP"}
"""Roles of Airflow's simple auth manager: who reads DAGs, who edits them, who reads connections, too."""

PREFIX = "/kafka-offsets"


def simple_user(role: str, **user: Any) -> Any:
    """Return a user of Airflow's simple auth manager with one of `ROLES`."""
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    return SimpleAuthManagerUser(username=role, role=ROLES[role], **user)


class Web:
    """The app, and its answers for users.

    :param readings: what it reads
    :param users: returns a user with one of `ROLES`, of the auth manager that Airflow's configuration names
    """

    def __init__(self, readings: Readings, users: Callable[..., Any] = simple_user) -> None:
        # Airflow's API server is imported with the first app.
        from airflow.api_fastapi.app import create_auth_manager

        from airflow_kafka_offsets.plugin.app import create_app

        self.readings, self.user = readings, users
        self.app = create_app(readings)
        self.auth_manager: Any = create_auth_manager()
        self._outer = FastAPI()
        self._outer.mount(PREFIX, self.app)

    def serve_below(self, path: str) -> None:
        """Serve everything below a path, as Airflow does with a path in `[api] base_url`."""
        self._outer.root_path = path

    def client(self, role: str | None = None, **user: Any) -> TestClient:
        """Return a client that has logged in; without a role, one that has not."""
        client = TestClient(self._outer, raise_server_exceptions=True)
        if role is not None:
            client.cookies["_token"] = self.auth_manager.generate_jwt(self.user(role, **user))
        return client

    def get(self, path: str, role: str | None = "operator", **query: Any) -> httpx2.Response:
        return self.client(role).get(f"{PREFIX}{path}?{urlencode(query)}")

    def post(self, path: str, role: str | None, query: dict[str, Any], **form: str) -> httpx2.Response:
        """Send a form as a browser does that shows a page of this site."""
        return self.client(role).post(
            f"{PREFIX}{path}?{urlencode(query)}",
            data=form,
            headers={"Sec-Fetch-Site": "same-origin", "Content-Type": "application/x-www-form-urlencoded"},
            follow_redirects=False,
        )


def ticket_of(page: httpx2.Response) -> str:
    """Return the ticket of the only form of a page."""
    (ticket,) = re.findall(r'name="ticket" value="([^"]+)"', page.text)
    return str(ticket)


def readings(
    engines: Mapping[str, Engine],
    kafka: Kafka | None = None,
    registered: Callable[[], Registered] = dict,
    **options: Any,
) -> Readings:
    """Return readings of databases by the ids of their connections, which the configuration names; Kafka is
    `kafka_default`.
    """

    @contextmanager
    def ledger(conn_id: str, schema: str | None, prefix: str) -> Iterator[Ledger]:
        yield Ledger(engines[conn_id], Tables.of(schema, prefix))

    def cluster(conn_id: str) -> Cluster:
        assert kafka is not None
        assert conn_id == "kafka_default"
        return Cluster({"bootstrap.servers": kafka.bootstrap_servers}, timeout=5)

    def config(conn_id: str) -> dict[str, str]:
        assert kafka is not None
        assert conn_id == "kafka_default"
        return {"bootstrap.servers": kafka.bootstrap_servers}

    configured = {Source(conn_id): Discovery(is_configured=True) for conn_id in engines}
    return Readings(ledger, cluster, config, lambda: configured, registered, **options)


def of_group(group: str, conn_id: str = "warehouse", **more: Any) -> dict[str, Any]:
    """Return the query that names a group."""
    return {"conn_id": conn_id, "group": group, **more}
