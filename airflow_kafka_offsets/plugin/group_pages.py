"""The pages of one group: its partitions, its batches, plots of its history, and its dead letters."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, status
from fastapi.responses import HTMLResponse, JSONResponse
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.history import REWIND_KINDS
from airflow_kafka_offsets.core.text import MAX_INT64, count
from airflow_kafka_offsets.dead_letters.selection import dead_letters_page
from airflow_kafka_offsets.hooks.links import rewinds_are_on
from airflow_kafka_offsets.lag.measure import group_states
from airflow_kafka_offsets.lag.report import LagReport, PartitionLag
from airflow_kafka_offsets.ledger import overview
from airflow_kafka_offsets.ledger.overview import HistoryPoint, history_points
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.plugin.access import not_found
from airflow_kafka_offsets.plugin.group_request import GroupRequestDep
from airflow_kafka_offsets.plugin.group_rows import partition_share
from airflow_kafka_offsets.plugin.group_targets import GroupTarget

router = APIRouter()

_LAG_SECONDS = 0.6
_BATCHES, _PARTS, _DEAD_LETTERS, _POINTS = 50, 500, 20, 200
"""The most batches, ranges or partitions, dead letters, and points of plots, of a page."""


@router.get("/group")
def group_page(request: GroupRequestDep) -> HTMLResponse:
    """Return the page of a group, with which it also refreshes itself."""

    def read(conn: Connection, tables: Tables) -> tuple[list[PartitionLag], list[overview.Row], GroupTarget]:
        committed = group_states(conn, tables, [request.group_id])[request.group_id].committed()
        stored = [PartitionLag(*tp, position=each.position.offset) for tp, each in sorted(committed.items())]
        return stored, overview.batches(conn, tables, request.group_id, _BATCHES + 1), request.target(conn, tables)

    stored, batches, target = request.find(read)
    discovery = request.readings.sources(time.monotonic())[request.source]
    (look,) = request.readings.look({request.source: discovery}, _LAG_SECONDS)
    row = look.row(request.summary)
    partitions = worst_first(row.report) if row.report is not None else stored
    return request.page(
        "group.html",
        row=row,
        lag_note=request.caller.text(row.lag_problem) if row.lag_problem is not None else None,
        lag_age=look.lags.age,
        partitions=[(partition, partition_share(partition)) for partition in partitions[:_PARTS]],
        all_partitions=len(partitions),
        batches=batches[:_BATCHES],
        has_more_batches=len(batches) > _BATCHES,
        sees_records=request.sees_records,
        can_rewind=request.edits and rewinds_are_on(),
        can_verify=target.can_verify,
        ticket=request.issue("verify") if request.edits and target.can_verify else None,
    )


@router.get("/group/history")
def group_history(request: GroupRequestDep) -> JSONResponse:
    """Return the points of the plots: loads in the order of their batches, and the instants of gaps and rewinds."""
    points = request.find(lambda conn, tables: history_points(conn, tables, request.group_id, _POINTS))
    loads = [point for point in points if point.kind not in REWIND_KINDS]
    # The plots write the texts from left to right, where there is room.
    marks = sorted(filter(None, map(_mark, points)), key=lambda mark: mark["at"])
    return JSONResponse({"points": [_plotted(point) for point in loads], "marks": marks})


def _mark(point: HistoryPoint) -> dict[str, Any] | None:
    if point.kind in REWIND_KINDS:
        kind, text = point.kind, f"{point.kind} {point.batch_id}"
    elif point.skipped:
        kind, text = "gap", f"gap: {count(point.skipped, 'offset')}"
    else:
        return None
    return {"at": point.committed_at.timestamp(), "kind": kind, "text": text}


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
def batch_page(request: GroupRequestDep, batch: Annotated[int, Query(ge=1, le=MAX_INT64)]) -> HTMLResponse:
    """Return the page of a batch: what it did to partitions."""

    def read(conn: Connection, tables: Tables) -> tuple[overview.Row | None, list[overview.Row]]:
        found = overview.batch(conn, tables, request.group_id, batch)
        return found, overview.batch_parts(conn, tables, request.group_id, batch) if found is not None else []

    row, parts = request.find(read)
    if row is None:
        raise not_found(f"Group {request.group_id!r} has no batch {batch}")
    by_part = {
        name: [part for part in parts if part["part"] == name] for name in ("range", "gap", "replaced", "schema")
    }
    return request.page(
        "batch.html",
        batch=row,
        parts=by_part,
        most=_PARTS,
        can_rewind=request.edits and rewinds_are_on(),
        rewind_kinds=REWIND_KINDS,
    )


@router.get("/dead-letters")
def dead_letters(
    request: GroupRequestDep,
    batch: Annotated[int | None, Query(ge=1, le=MAX_INT64)] = None,
    page_number: Annotated[int, Query(ge=1, le=100_000, alias="page")] = 1,
) -> HTMLResponse:
    """Return a page of dead letters, of the group or of one batch."""
    first = (page_number - 1) * _DEAD_LETTERS

    def read(conn: Connection, tables: Tables) -> Any:
        return dead_letters_page(conn, tables, request.group_id, batch_id=batch, offset=first, limit=_DEAD_LETTERS + 1)

    found = request.find(read)
    if not request.sees_records:
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            "Dead letters hold records: they need read access to the XComs of the group's DAG",
        )
    return request.page(
        "dead_letters.html",
        batch=batch,
        dead_letters=found[:_DEAD_LETTERS],
        first=first + 1,
        number=page_number,
        is_last=len(found) <= _DEAD_LETTERS,
    )


def worst_first(report: LagReport) -> list[PartitionLag]:
    """Return partitions with those first that have an error, lost records or the largest lag."""
    return sorted(
        report.partitions,
        key=lambda each: (each.error is None, -(each.lost or 0), -(each.lag or 0), each.topic_partition),
    )
