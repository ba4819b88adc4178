"""The FastAPI app of the pages, and what it reads in Airflow. To add pages, write a module with a `router`, and add it
to `ROUTERS`.

Every route needs Airflow's login, whatever its module: the dependency is the app's. There is no way to create the app
without it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from uuid import UUID

import sqlalchemy as sa
from airflow.configuration import conf
from airflow.models.serialized_dag import SerializedDagModel  # noqa: TID251 - the page runs in the API server
from airflow.utils.session import create_session  # noqa: TID251
from fastapi import FastAPI, HTTPException, Request, Response

from airflow_kafka_offsets.hooks.connections import kafka_cluster, kafka_config, open_ledger
from airflow_kafka_offsets.plugin import group_pages, pages, rewinds, verifications
from airflow_kafka_offsets.plugin.access import LOGIN
from airflow_kafka_offsets.plugin.readings import Readings
from airflow_kafka_offsets.plugin.rendering import HEADERS
from airflow_kafka_offsets.plugin.sources import Discovery, RegisteredTask, Source, configured, of_serialized_dag

ROUTERS = (pages.router, group_pages.router, rewinds.router, verifications.router)

# Less than a page is refreshed after.
_KAFKA_TIMEOUT_SECONDS = 8.0


def create_app(readings: Readings | None = None) -> FastAPI:
    """Return the app.

    :param readings: what the pages read; by default what connections and Airflow's metadata database name
    """
    # The API is no one's but the pages'.
    app = FastAPI(title="Kafka offsets", openapi_url=None, docs_url=None, redoc_url=None, dependencies=[LOGIN])
    app.state.readings = readings if readings is not None else _readings()
    app.state.verifications = verifications.Verifications(app.state.readings)
    for router in ROUTERS:
        app.include_router(router)

    @app.middleware("http")
    async def add_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        response = await call_next(request)
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    @app.exception_handler(HTTPException)
    def refuse(request: Request, error: HTTPException) -> Response:
        return Response(str(error.detail), error.status_code, error.headers, "text/plain; charset=utf-8")

    return app


def _readings() -> Readings:
    cluster = partial(kafka_cluster, timeout=_KAFKA_TIMEOUT_SECONDS)
    return Readings(open_ledger, cluster, kafka_config, configured_sources, SerializedDags().registered)


def configured_sources() -> dict[Source, Discovery]:
    """Return the state tables that `[kafka_offsets] conn_ids` names."""
    return configured(conf.get("kafka_offsets", "conn_ids", fallback="") or "")


class SerializedDags:
    """What the tasks of all DAGs name, as Airflow's metadata database has them. Those that changed are read again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], list[RegisteredTask]] = {}

    def registered(self) -> dict[str, list[RegisteredTask]]:
        """Return what the tasks of each DAG name; DAGs without tasks of this package are left out."""
        model = SerializedDagModel
        with create_session() as session:
            rows = sa.select(model.dag_id, model.id, model.dag_hash).order_by(model.created_at)
            latest: dict[str, tuple[UUID, str]] = {
                dag_id: (number, dag_hash) for dag_id, number, dag_hash in session.execute(rows)
            }
            known = {}
            for dag_id, (number, dag_hash) in latest.items():
                key = dag_id, dag_hash
                if key in self._known:
                    known[key] = self._known[key]
                    continue
                row = session.get(model, number)
                known[key] = of_serialized_dag((row.data if row is not None else None) or {})
                session.expunge_all()
        self._known = known
        return {dag_id: tasks for (dag_id, _), tasks in known.items() if tasks}
