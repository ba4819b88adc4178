"""The FastAPI app of the pages, and what it reads in Airflow. To add pages, write a module with a `router`, and add it
to `ROUTERS`.

Every route needs Airflow's login, whatever its module: the dependency is the app's. There is no way to create the app
without it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from uuid import UUID

import sqlalchemy as sa
from airflow.configuration import conf
from airflow.models.dag import DagModel  # noqa: TID251 - the page runs in the API server
from airflow.models.dagrun import DagRun  # noqa: TID251
from airflow.models.serialized_dag import SerializedDagModel  # noqa: TID251
from airflow.utils.session import create_session  # noqa: TID251
from fastapi import FastAPI, Request, Response, status
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException

from airflow_kafka_offsets.hooks.connections import kafka_cluster, kafka_config, open_ledger
from airflow_kafka_offsets.plugin import group_pages, pages, rewinds, verifications
from airflow_kafka_offsets.plugin.access import LOGIN
from airflow_kafka_offsets.plugin.readings import Readings
from airflow_kafka_offsets.plugin.rendering import HEADERS, error_page
from airflow_kafka_offsets.plugin.sources import (
    Discovery,
    RegisteredTask,
    Schedule,
    Source,
    configured,
    of_serialized_dag,
)

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

    @app.exception_handler(StarletteHTTPException)
    def refuse(request: Request, error: StarletteHTTPException) -> Response:
        return error_page(request, error.status_code, str(error.detail), error.headers)

    @app.exception_handler(RequestValidationError)
    def refuse_values(request: Request, error: RequestValidationError) -> Response:
        names = ", ".join(dict.fromkeys(str(each["loc"][-1]) for each in error.errors()))
        text = f"The address of this page has no value for {names}, or one that cannot be used"
        return error_page(request, status.HTTP_422_UNPROCESSABLE_CONTENT, text, None)

    return app


def _readings() -> Readings:
    cluster = partial(kafka_cluster, timeout=_KAFKA_TIMEOUT_SECONDS)
    return Readings(open_ledger, cluster, kafka_config, configured_sources, SerializedDags().registered, schedules_of)


def configured_sources() -> dict[Source, Discovery]:
    """Return the state tables that `[kafka_offsets] conn_ids` names."""
    return configured(conf.get("kafka_offsets", "conn_ids", fallback="") or "")


def schedules_of(dag_ids: Iterable[str]) -> dict[str, Schedule]:
    """Return the schedules of DAGs, as Airflow's scheduler has stored them."""
    wanted = sorted(dag_ids)
    last = (
        sa.select(DagRun.dag_id, sa.func.max(DagRun.run_after).label("run_after"))
        .where(DagRun.dag_id.in_(wanted), DagRun.run_type == "scheduled")
        .group_by(DagRun.dag_id)
        .subquery()
    )
    columns = (DagModel.timetable_summary, DagModel.is_paused, DagModel.next_dagrun_create_after, last.c.run_after)
    query = sa.select(DagModel.dag_id, *columns).outerjoin(last, last.c.dag_id == DagModel.dag_id)
    with create_session() as session:
        rows = session.execute(query.where(DagModel.dag_id.in_(wanted))).all()
    return {
        dag_id: Schedule(
            dag_id,
            text if text != "None" else None,
            next_run - last if last and next_run and next_run > last else None,
            paused,
        )
        for dag_id, text, paused, next_run, last in rows
    }


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
