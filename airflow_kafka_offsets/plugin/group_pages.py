"""The pages of one group: its partitions, its batches, plots of its history, and its dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from airflow.sdk import conf
from fastapi import APIRouter, Depends, HTTPException, Query, Request, status
from fastapi.responses import HTMLResponse, JSONResponse
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.history import REWIND_KINDS
from airflow_kafka_offsets.core.text import MAX_INT64, count
from airflow_kafka_offsets.dead_letters.page import letters_page
from airflow_kafka_offsets.lag.measure import group_states
from airflow_kafka_offsets.lag.report import LagReport, PartitionLag
from airflow_kafka_offsets.ledger import overview
from airflow_kafka_offsets.ledger.group_summaries import GroupSummary, HistoryPoint, group_summaries, history_points
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.plugin.access import Caller, CallerDep, not_found
from airflow_kafka_offsets.plugin.forms import issue
from airflow_kafka_offsets.plugin.group_rows import GroupRow, group_row, partition_share
from airflow_kafka_offsets.plugin.group_targets import GroupTarget, group_target
from airflow_kafka_offsets.plugin.pages import ReadingsDep
from airflow_kafka_offsets.plugin.problems import problem
from airflow_kafka_offsets.plugin.readings import Readings
from airflow_kafka_offsets.plugin.rendering import page
from airflow_kafka_offsets.plugin.sources import Source

router = APIRouter()

T = TypeVar("T")

_SECONDS = 5.0
"""How long a page of a group waits for its database."""

_SOURCES_SECONDS, _LAG_SECONDS = 1.0, 0.6
_BATCHES, _PARTS, _LETTERS, _POINTS = 50, 500, 20, 200
"""The most batches, ranges or partitions, dead letters, and points of plots, of a page."""


@dataclass(frozen=True, slots=True)
class NamedGroup:
    """A group as URLs name it: its state tables and its name."""

    source: Source
    group_id: str


def _named(
    conn_id: Annotated[str, Query(max_length=250)],
    group: Annotated[str, Query(max_length=250)],
    schema: Annotated[str | None, Query(max_length=250)] = None,
    prefix: Annotated[str, Query(max_length=250)] = "",
) -> NamedGroup:
    return NamedGroup(Source(conn_id, schema or None, prefix), group)


NamedGroupDep = Annotated[NamedGroup, Depends(_named)]


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """A group that the user may see.

    :param now: the database's time
    :param more: what was read beside it
    """

    now: datetime
    summary: GroupSummary
    more: T


def rewinds_are_on() -> bool:
    """Return whether the deployment wants rewinds in the web interface."""
    return bool(conf.getboolean("kafka_offsets", "rewind_in_web_interface", fallback=True))


def find_group(
    readings: Readings, caller: Caller, named: NamedGroup, read: Callable[[Connection, Tables], T]
) -> Found[T]:
    """Read a group, and return it if the user may see it.

    :param read: reads more in the same connection
    :raises HTTPException: 404 for a group that does not exist or that the user may not see, 503 without an answer of
        the database
    """
    missing = not_found(f"There is no group {named.group_id!r} in {named.source}, or you may not see it")
    origin = readings.sources(time.monotonic() + _SOURCES_SECONDS).get(named.source)
    # An URL must not have the server open any connection.
    if origin is None or not caller.sees_source(named.source, origin.dag_ids, is_configured=origin.is_configured):
        raise missing

    def work(conn: Connection, tables: Tables) -> Found[T] | None:
        now, summaries = group_summaries(conn, tables, [named.group_id])
        # The user is asked about before anything else is read.
        if not summaries or not caller.sees_group(named.source, summaries[0]):
            return None
        return Found(now, summaries[0], read(conn, tables))

    try:
        found = readings.run(named.source, work, _SECONDS)
    except HTTPException:
        raise
    except Exception as error:
        what = caller.text(problem(error, named.source.conn_id))
        raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, what) from error
    if found is None:
        raise missing
    return found


@router.get("/group")
def group_page(request: Request, caller: CallerDep, readings: ReadingsDep, named: NamedGroupDep) -> HTMLResponse:
    """Return the page of a group."""
    return page(request, "group.html", **_group(readings, caller, named))


@router.get("/group/now")
def group_now(request: Request, caller: CallerDep, readings: ReadingsDep, named: NamedGroupDep) -> HTMLResponse:
    """Return what of the page changes, with which it refreshes itself."""
    return page(request, "group_now.html", **_group(readings, caller, named))


@router.get("/group/history")
def group_history(caller: CallerDep, readings: ReadingsDep, named: NamedGroupDep) -> JSONResponse:
    """Return the points of the plots: loads in the order of their batches, and the instants of gaps and rewinds."""
    found = find_group(
        readings, caller, named, lambda conn, tables: history_points(conn, tables, named.group_id, _POINTS)
    )
    loads = [point for point in found.more if point.kind not in REWIND_KINDS]
    marks: list[dict[str, Any]] = [
        {"at": point.committed_at.timestamp(), "kind": point.kind, "text": f"{point.kind} {point.batch_id}"}
        for point in found.more
        if point.kind in REWIND_KINDS
    ] + [
        {
            "at": point.committed_at.timestamp(),
            "kind": "gap",
            "text": f"gap: {count(point.skipped, 'offset')}",
        }
        for point in loads
        if point.skipped
    ]
    # The plots write the texts from left to right, where there is room.
    marks.sort(key=lambda mark: mark["at"])
    return JSONResponse({"points": [_plotted(point) for point in loads], "marks": marks})


def _plotted(point: HistoryPoint) -> dict[str, Any]:
    committed = point.committed_at
    staged = point.staged_at
    delay = (committed - point.newest_record).total_seconds() if point.newest_record is not None else None
    return {
        "at": committed.timestamp(),
        "batch": point.batch_id,
        "records": point.records,
        "rows": point.rows,
        "dead_letters": point.dead_letters,
        "stage": (staged - point.planned_at).total_seconds() if staged is not None else None,
        "commit": (committed - staged).total_seconds() if staged is not None else None,
        "delay": max(0.0, delay) if delay is not None else None,
    }


@router.get("/batch")
def batch_page(
    request: Request,
    caller: CallerDep,
    readings: ReadingsDep,
    named: NamedGroupDep,
    batch: Annotated[int, Query(ge=1, le=MAX_INT64)],
) -> HTMLResponse:
    """Return the page of a batch: what it did to partitions."""

    def read(conn: Connection, tables: Tables) -> tuple[overview.Row | None, list[overview.Row]]:
        found = overview.batch(conn, tables, named.group_id, batch)
        return found, overview.batch_parts(conn, tables, named.group_id, batch) if found is not None else []

    found = find_group(readings, caller, named, read)
    row, parts = found.more
    if row is None:
        raise not_found(f"Group {named.group_id!r} has no batch {batch}")
    by_part = {
        name: [part for part in parts if part["part"] == name] for name in ("range", "gap", "replaced", "schema")
    }
    return page(
        request,
        "batch.html",
        named=named,
        now=found.now,
        batch=row,
        parts={name: some[:_PARTS] for name, some in by_part.items()},
        left_out={name: max(0, len(some) - _PARTS) for name, some in by_part.items()},
        can_rewind=caller.edits_group(named.source, found.summary) and rewinds_are_on(),
        rewind_kinds=REWIND_KINDS,
    )


@router.get("/letters")
def letters(
    request: Request,
    caller: CallerDep,
    readings: ReadingsDep,
    named: NamedGroupDep,
    batch: Annotated[int | None, Query(ge=1, le=MAX_INT64)] = None,
    page_number: Annotated[int, Query(ge=1, le=100_000, alias="page")] = 1,
) -> HTMLResponse:
    """Return a page of dead letters, of the group or of one batch."""

    def read(conn: Connection, tables: Tables) -> Any:
        return letters_page(
            conn,
            tables,
            named.group_id,
            batch_id=batch,
            offset=(page_number - 1) * _LETTERS,
            limit=_LETTERS + 1,
        )

    found = find_group(readings, caller, named, read)
    if not caller.sees_records(named.source, found.summary):
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            "Dead letters hold records: they need read access to the XComs of the group's DAG",
        )
    return page(
        request,
        "letters.html",
        named=named,
        batch=batch,
        letters=found.more[:_LETTERS],
        first=(page_number - 1) * _LETTERS + 1,
        number=page_number,
        is_last=len(found.more) <= _LETTERS,
    )


def _group(readings: Readings, caller: Caller, named: NamedGroup) -> dict[str, Any]:
    """Return the values of the templates of a group."""

    def read(conn: Connection, tables: Tables) -> tuple[list[PartitionLag], list[overview.Row], GroupTarget]:
        committed = group_states(conn, tables, [named.group_id])[named.group_id].committed()
        stored = [PartitionLag(*tp, position=each.position.offset) for tp, each in sorted(committed.items())]
        target = group_target(conn, tables, named.source, named.group_id, readings.dags(0.0))
        return stored, overview.batches(conn, tables, named.group_id, _BATCHES + 1), target

    found = find_group(readings, caller, named, read)
    stored, batches, target = found.more
    origin = readings.sources(time.monotonic())[named.source]
    (look,) = readings.look({named.source: origin}, _LAG_SECONDS)
    lags = look.lags.value
    report = lags.reports.get(named.group_id) if lags is not None else None
    lag_problem = lags.problems.get(named.group_id) if lags is not None else None
    row = group_row(named.source, found.summary, report, lag_problem)
    partitions = worst_first(report) if report is not None else stored
    edits = caller.edits_group(named.source, found.summary)
    return {
        "named": named,
        "now": found.now,
        "row": row,
        "lag_note": caller.text(lag_problem) if lag_problem is not None else None,
        "lag_age": look.lags.age,
        "partitions": [(partition, partition_share(partition)) for partition in partitions[:_PARTS]],
        "partitions_left_out": max(0, len(partitions) - _PARTS),
        "batches": batches[:_BATCHES],
        "has_more_batches": len(batches) > _BATCHES,
        "totals": _totals(row),
        "sees_records": caller.sees_records(named.source, found.summary),
        "can_rewind": edits and rewinds_are_on(),
        "can_verify": target.can_verify,
        "ticket": issue("verify", caller, named.source, named.group_id) if edits and target.can_verify else None,
    }


def worst_first(report: LagReport) -> list[PartitionLag]:
    """Return partitions with those first that have an error, lost records or the largest lag."""
    return sorted(
        report.partitions,
        key=lambda each: (each.error is None, -(each.lost or 0), -(each.lag or 0), each.topic_partition),
    )


def _totals(row: GroupRow) -> Mapping[str, Any] | None:
    report = row.report
    if report is None:
        return None
    return {name: getattr(report, name) for name in ("lag", "lost", "delay", "headroom", "headroom_time")}
