"""The table of groups: all that the user may see, or those of a DAG; and the static files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import HTMLResponse

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.plugin.access import READS_DAG, Caller, CallerDep, not_found
from airflow_kafka_offsets.plugin.group_rows import GroupRow, Level
from airflow_kafka_offsets.plugin.readings import Readings, SourceLook
from airflow_kafka_offsets.plugin.rendering import STATIC, page, static_file
from airflow_kafka_offsets.plugin.sources import LoadingDags, Source

router = APIRouter()

# How long an answer waits in all: for the names of state tables, and then for what is in them.
_SOURCES_SECONDS, _GROUPS_SECONDS = 0.2, 0.3


def readings_of(request: Request) -> Readings:
    """Return what the pages of the app read."""
    readings: Readings = request.app.state.readings
    return readings


ReadingsDep = Annotated[Readings, Depends(readings_of)]


class SourceCard(NamedTuple):
    """State tables above the table of groups.

    :param problems: why something of them is not known
    :param age: seconds since they were read; None before that
    :param is_empty: whether they do not exist yet
    """

    source: Source
    groups: int
    problems: Sequence[str]
    age: float | None
    is_empty: bool


@dataclass(frozen=True, slots=True)
class Overview:
    """What the table of groups shows.

    :param now: the time of each database
    :param problem: why it is empty
    :param is_first: whether something is being read for the first time
    """

    rows: Sequence[GroupRow] = ()
    cards: Sequence[SourceCard] = ()
    now: dict[Source, datetime | None] = field(default_factory=dict)
    problem: str | None = None
    is_first: bool = False

    @property
    def lag(self) -> int:
        return sum(row.report.lag or 0 for row in self.rows if row.report is not None)

    def at_least(self, level: Level) -> int:
        """Return how many groups have a level that is as urgent or more."""
        return sum(row.level <= level for row in self.rows)


@router.get("/")
def groups_page(request: Request, caller: CallerDep, readings: ReadingsDep) -> HTMLResponse:
    """Return the page of all groups."""
    return page(request, "groups.html", overview=overview(readings, caller), caller=caller, dag_id=None)


@router.get("/dags/{dag_id}", dependencies=[READS_DAG])
def dag_page(request: Request, dag_id: str, caller: CallerDep, readings: ReadingsDep) -> HTMLResponse:
    """Return the page of the groups of a DAG."""
    return page(request, "groups.html", overview=overview(readings, caller, dag_id), caller=caller, dag_id=dag_id)


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Return a static file. It needs the login, as all routes do."""
    if name not in STATIC:
        raise not_found("There is no such file")
    # The URL has the version of the package.
    headers = {"Cache-Control": "private, max-age=86400"}
    return Response(static_file(name), media_type=STATIC[name], headers=headers)


def overview(readings: Readings, caller: Caller, dag_id: str | None = None) -> Overview:
    """Return the groups that the user may see, of all DAGs or of one."""
    deadline = time.monotonic() + _SOURCES_SECONDS
    try:
        sources = readings.sources(deadline)
    except ConfigurationError as error:
        return Overview(problem=str(error))
    seen = {source: discovery for source, discovery in sources.items() if caller.sees_source(source, discovery)}
    loading = LoadingDags(readings.dags(deadline))
    looks = readings.look(seen, _GROUPS_SECONDS)
    rows: list[GroupRow] = []
    cards: list[SourceCard] = []
    for look in looks:
        loaded_by = [(row, loading.of(look.source, row.group)) for row in look.rows()]
        mine = [
            row
            for row, dag_ids in loaded_by
            if caller.sees_group(look.source, dag_ids) and (dag_id is None or dag_id in dag_ids)
        ]
        rows += mine
        card = _card(look, mine, caller)
        is_news = look.discovery.is_configured or card.problems
        if mine or (is_news and caller.knows_source(look.source, look.discovery)):
            cards.append(card)
    now = {look.source: look.stored.value.now for look in looks if look.stored.value is not None}
    is_first = not readings.has_dags or any(look.is_first and look.problem is None for look in looks)
    return Overview(sorted(rows, key=lambda row: row.order), cards, now, is_first=is_first)


def _card(look: SourceLook, rows: Sequence[GroupRow], caller: Caller) -> SourceCard:
    problems = []
    if look.problem is not None:
        problems.append(caller.text(look.problem))
    elif look.stored.value is None:
        problems.append(f"The database of connection {look.source.conn_id!r} has not answered yet")
    problems += dict.fromkeys(caller.text(row.lag_problem) for row in rows if row.lag_problem is not None)
    is_empty = look.stored.value is not None and look.stored.value.groups is None
    return SourceCard(look.source, len(rows), problems, look.stored.age, is_empty)
