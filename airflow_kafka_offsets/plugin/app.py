"""The FastAPI app of the pages. To add pages, write a module with a `router`, and add it to `ROUTERS`.

Every route needs Airflow's login, whatever its module: the dependency is the app's. There is no way to create the app
without it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from airflow.sdk import conf
from fastapi import FastAPI, HTTPException, Request, Response

from airflow_kafka_offsets.hooks.connections import kafka_cluster, kafka_config, open_database
from airflow_kafka_offsets.plugin import group_pages, pages, rewind_pages, verify_pages
from airflow_kafka_offsets.plugin.access import LOGIN
from airflow_kafka_offsets.plugin.readings import Connections, Readings
from airflow_kafka_offsets.plugin.rendering import HEADERS
from airflow_kafka_offsets.plugin.serialized_dags import SerializedDags
from airflow_kafka_offsets.plugin.sources import Discovery, Source, configured
from airflow_kafka_offsets.plugin.verifications import Verifications

ROUTERS = (pages.router, group_pages.router, rewind_pages.router, verify_pages.router)

# Less than a page is refreshed after.
_KAFKA_TIMEOUT_SECONDS = 8.0


def create_app(readings: Readings | None = None) -> FastAPI:
    """Return the app.

    :param readings: what the pages read; by default what connections and Airflow's metadata database name
    """
    # The API is no one's but the pages'.
    app = FastAPI(title="Kafka offsets", openapi_url=None, docs_url=None, redoc_url=None, dependencies=[LOGIN])
    app.state.readings = readings if readings is not None else _readings()
    app.state.verifications = Verifications(app.state.readings)
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
    connections = Connections(
        open_database, lambda conn_id: kafka_cluster(conn_id, timeout=_KAFKA_TIMEOUT_SECONDS), kafka_config
    )
    return Readings(connections, configured_sources, SerializedDags().registered)


def configured_sources() -> dict[Source, Discovery]:
    """Return the state tables that `[kafka_offsets] conn_ids` names."""
    return configured(conf.get("kafka_offsets", "conn_ids", fallback="") or "")
