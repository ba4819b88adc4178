"""The pages of one group: its partitions, its batches, plots of its history, and its dead letters."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query, status
from fastapi.responses import HTMLResponse, JSONResponse
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.history import DELETE, OUTPUT_KINDS, RENAME, RENAMED, REWIND_KINDS
from airflow_kafka_offsets.core.text import MAX_INT64, count
from airflow_kafka_offsets.dead_letters.selection import dead_letters_page
from airflow_kafka_offsets.hooks.links import rewinds_are_on
from airflow_kafka_offsets.lag.measure import group_states
from airflow_kafka_offsets.lag.report import LagReport, PartitionLag
from airflow_kafka_offsets.ledger import overview
from airflow_kafka_offsets.ledger.group_changes import name_since
from airflow_kafka_offsets.ledger.overview import HistoryPoint, history_points
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.plugin.access import Caller, not_found
from airflow_kafka_offsets.plugin.group_request import GroupRequestDep
from airflow_kafka_offsets.plugin.group_rows import GroupRow, partition_share
from airflow_kafka_offsets.plugin.group_targets import GroupTarget, dead_letter_commands
from airflow_kafka_offsets.plugin.problems import Problem
from airflow_kafka_offsets.plugin.rendering import zone_name
from airflow_kafka_offsets.plugin.rewinds import undo_refusal
from airflow_kafka_offsets.rewinding.history import last_rewind

router = APIRouter()

_LAG_SECONDS = 0.6
_BATCHES, _PARTS, _DEAD_LETTERS, _POINTS, _ERRORS = 50, 500, 20, 200, 5
"""The most batches, ranges or partitions, dead letters, points of plots, and errors, of a page."""


@router.get("/group")
def group_page(request: GroupRequestDep) -> HTMLResponse:
    """Return the page of a group, with which it also refreshes itself."""

    def read(
        conn: Connection, tables: Tables
    ) -> tuple[list[PartitionLag], list[overview.Row], GroupTarget, str | None]:
        committed = group_states(conn, tables, [request.group_id])[request.group_id].committed()
        stored = [PartitionLag(*tp, position=each.position.offset) for tp, each in sorted(committed.items())]
        batches = overview.batches(conn, tables, request.group_id, _BATCHES + 1)
        is_renamed = bool(batches) and batches[0]["kind"] == RENAMED
        name = name_since(conn, tables, request.group_id, batches[0]["batch_id"]) if is_renamed else None
        return stored, batches, request.target(conn, tables), name

    stored, batches, target, name = request.find(read)
    discovery = request.readings.sources(time.monotonic())[request.source]
    (look,) = request.readings.look({request.source: discovery}, _LAG_SECONDS, request.caller.shares_team)
    caller, row = request.caller, look.row(request.summary)
    partitions = worst_first(row.report) if row.report is not None else stored
    load = next((batch for batch in batches if batch["kind"] == "load"), None)
    gone = next((batch for batch in batches[:1] if batch["kind"] in (DELETE, RENAMED)), None)
    return request.page(
        "group.html",
        row=row,
        late=caller.text(look.problem) if look.problem is not None else None,
        lag_note=caller.text(row.lag_problem) if row.lag_problem is not None else None,
        errors=list(dict.fromkeys(caller.text(error) for error in row.errors))[:_ERRORS],
        headroom_note=_headroom_note(row, caller),
        target=target.name,
        gone=gone,
        name_since=name,
        schedules=[each for each in row.schedules if each.dag_id in caller.readable_dags],
        zone=zone_name(),
        transform=load["transform"] if load is not None else None,
        partitions=[(partition, partition_share(partition)) for partition in partitions[:_PARTS]],
        all_partitions=len(partitions),
        batches=batches[:_BATCHES],
        has_more_batches=len(batches) > _BATCHES,
        sees_records=request.sees_records,
        can_rewind=request.edits and rewinds_are_on(),
        can_verify=target.can_verify,
        ticket=request.issue("verify") if request.edits and target.can_verify else None,
    )


def _headroom_note(row: GroupRow, caller: Caller) -> str | None:
    """Return why the headroom of unread records is not known, which may name hosts and users; None where it is."""
    report = row.report
    if report is None or row.is_loaded or report.headroom_time is not None or report.unknown_headroom is None:
        return None
    return caller.text(Problem("Headroom is unknown", report.unknown_headroom, row.kafka))


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

    def read(conn: Connection, tables: Tables) -> tuple[overview.Row | None, list[overview.Row], bool]:
        found = overview.batch(conn, tables, request.group_id, batch)
        if found is None:
            return None, [], False
        found["compacted"] = overview.compacted_with(conn, tables, request.group_id, batch)
        latest = last_rewind(conn, tables, request.group_id)
        can_undo = latest is not None and latest.batch_id == batch
        can_undo = can_undo and undo_refusal(conn, tables, request.group_id) is None
        return found, overview.batch_parts(conn, tables, request.group_id, batch, with_texts=False), can_undo

    row, parts, can_undo = request.find(read)
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
        can_undo=can_undo,
        has_output=row["kind"] in OUTPUT_KINDS,
        has_positions=row["kind"] not in (DELETE, RENAME, RENAMED) and (row["compacted"] or (batch,))[0] == batch,
        result=_rewind_result(row["kind"], by_part) if row["kind"] in REWIND_KINDS else None,
    )


def _rewind_result(kind: str, parts: dict[str, list[overview.Row]]) -> str:
    """Return what a rewind did, and what follows, in words."""
    moves = [(move["start_offset"], move["end_offset"]) for move in parts["range"]]
    again = sum(max(0, start - end) for start, end in moves)
    skipped = sum(gap["end_offset"] - gap["start_offset"] for gap in parts["gap"])
    removed = [sum(each[name] or 0 for each in parts["replaced"]) for name in ("rows", "dead_letters")]
    done = "removed, and the contents of the dead letters" if kind == DELETE else "moved"
    said = [f"{count(len(moves), 'position')} {done}"]
    if parts["replaced"]:
        said.append(f"{count(removed[0], 'row')} and {count(removed[1], 'dead letter')} deleted")
    if again:
        said.append(f"the next load reads {count(again, 'offset')} again")
    if skipped:
        said.append(f"{count(skipped, 'offset')} skipped")
    return ", ".join(said)


@router.get("/dead-letters")
def dead_letters(
    request: GroupRequestDep,
    batch: Annotated[int | None, Query(ge=1, le=MAX_INT64)] = None,
    page_number: Annotated[int, Query(ge=1, le=100_000, alias="page")] = 1,
) -> HTMLResponse:
    """Return a page of dead letters, of the group or of one batch."""
    first = (page_number - 1) * _DEAD_LETTERS

    def read(conn: Connection, tables: Tables) -> Any:
        found = dead_letters_page(conn, tables, request.group_id, batch_id=batch, offset=first, limit=_DEAD_LETTERS + 1)
        return found, request.target(conn, tables)

    found, target = request.find(read)
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
        commands=dead_letter_commands(request.source, request.group_id, target, batch),
    )


def worst_first(report: LagReport) -> list[PartitionLag]:
    """Return partitions with those first that have an error, lost records or the largest lag."""
    return sorted(
        report.partitions,
        key=lambda each: (each.error is None, -(each.lost or 0), -(each.lag or 0), each.topic_partition),
    )
