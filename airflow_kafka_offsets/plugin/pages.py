"""The table of groups: all that the user may see, or those of a DAG; and the static files."""

# No annotations of the future: as text, FastAPI of Airflow 3.1 could not read those of a class.

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.plugin.access import READS_DAG, Caller, CallerDep, not_found
from airflow_kafka_offsets.plugin.group_rows import STATES, GroupRow, Level
from airflow_kafka_offsets.plugin.readings import Readings, SourceLook
from airflow_kafka_offsets.plugin.rendering import STATIC, page, static_file
from airflow_kafka_offsets.plugin.sources import Source

router = APIRouter()

# How long an answer waits in all: for the names of state tables, and then for what is in them.
_SOURCES_SECONDS, _GROUPS_SECONDS = 0.2, 0.3

_ROWS = 50
"""The most rows of a page: it is sent at each refresh."""

_CHOICES = 100
"""The most DAGs that the filter suggests."""

_NEVER = datetime.max.replace(tzinfo=UTC)


def readings_of(request: Request) -> Readings:
    """Return what the pages of the app read."""
    readings: Readings = request.app.state.readings
    return readings


ReadingsDep = Annotated[Readings, Depends(readings_of)]


def _measure(name: str) -> Callable[[GroupRow], Any]:
    def key(row: GroupRow) -> Any:
        value = getattr(row.report, name) if row.report is not None and row.lag is not None else None
        return (value is None, -value if value is not None and name != "headroom_time" else value or timedelta(0))

    return key


_SORTS: Mapping[str, Callable[[GroupRow], Any]] = {
    "": lambda row: (),
    "group": lambda row: row.group.group_id,
    "lag": _measure("lag"),
    "delay": _measure("delay"),
    "headroom": _measure("headroom_time"),
    "oldest": lambda row: (row.group.last.committed_at if row.group.last is not None else None) or _NEVER,
    "letters": lambda row: -row.group.dead_letters,
}
"""What the table can be sorted by; the first is what needs attention most. Rows that are equal stay in this order."""


class View:
    """Which groups a page shows, as its address says.

    :param q: words that a row has
    :param db: a database, as it is shown
    :param dag: a DAG that loads the group
    :param state: one of `STATES`, or `attention`
    """

    def __init__(
        self,
        q: Annotated[str, Query(max_length=250)] = "",
        db: Annotated[str, Query(max_length=800)] = "",
        dag: Annotated[str, Query(max_length=250)] = "",
        state: Annotated[str, Query(max_length=20)] = "",
        sort: Annotated[str, Query(max_length=20)] = "",
        number: Annotated[int, Query(ge=1, le=100_000, alias="page")] = 1,
    ) -> None:
        self.q, self.db, self.dag, self.state = q, db, dag.strip(), state
        self.sort = sort if sort in _SORTS else ""
        self.number = number

    def query(self, **changed: Any) -> str:
        """Return the query of this view with changes; the page begins with the first rows, unless it is changed."""
        values = {"q": self.q, "db": self.db, "dag": self.dag, "state": self.state, "sort": self.sort} | changed
        return "?" + urlencode({name: value for name, value in values.items() if value})

    def has(self, row: GroupRow, dag_ids: Sequence[str]) -> bool:
        """Return whether the view has a row, whatever its state."""
        text = " ".join((row.group.group_id, str(row.source), *dag_ids, *row.reasons)).lower()
        return (
            all(word in text for word in self.q.lower().split())
            and self.db in ("", str(row.source))
            and (not self.dag or self.dag in dag_ids)
        )

    def has_state(self, row: GroupRow) -> bool:
        """Return whether the view has rows of a state."""
        return row.needs_attention if self.state == "attention" else self.state in ("", row.state)


ViewDep = Annotated[View, Depends()]


class SourceCard(NamedTuple):
    """State tables beside the table of groups.

    :param problems: why something of them is not known
    :param summaries: the same without details: cards with equal ones are shown as one
    :param answers: whether their database does
    :param ages: seconds since they, and the lag of each cluster of Kafka, were read; None before that
    :param is_empty: whether they do not exist yet
    """

    source: Source
    groups: int
    problems: Sequence[str]
    summaries: Sequence[str]
    answers: bool
    age: float | None
    ages: Mapping[str, float | None]
    is_empty: bool


class Listed(NamedTuple):
    """A group that the user may see.

    :param dag_ids: the DAGs that load it, of those that the user may read
    """

    row: GroupRow
    dag_ids: Sequence[str]


@dataclass(eq=False)
class Overview:
    """What the table of groups shows.

    :param groups: all that the user may see
    :param now: the time of each database
    :param problem: why it is empty
    :param is_first: whether something is being read for the first time
    """

    view: View
    groups: Sequence[Listed] = ()
    cards: Sequence[SourceCard] = ()
    now: dict[Source, datetime | None] = field(default_factory=dict)
    problem: str | None = None
    is_first: bool = False

    @cached_property
    def found(self) -> list[GroupRow]:
        """Return the rows that match the view, whatever their state."""
        return [row for row, dag_ids in self.groups if self.view.has(row, dag_ids)]

    @cached_property
    def states(self) -> Mapping[str, int]:
        """Return how many of the rows that match have each state, in the order of the table: the urgent first."""
        counts = Counter(row.state for row in self.found)
        return {
            state: counts[state] for state in sorted(counts, key=lambda each: (self.level(each), STATES.index(each)))
        }

    def level(self, state: str) -> Level:
        """Return the level of the most urgent of the rows that match and have a state."""
        return min(row.level for row in self.found if row.state == state)

    @cached_property
    def matching(self) -> list[GroupRow]:
        """Return the rows that match the view, sorted."""
        rows = sorted(filter(self.view.has_state, self.found), key=lambda row: row.order)
        return sorted(rows, key=_SORTS[self.view.sort])

    @property
    def number(self) -> int:
        """Return the number of the page; one that is too large is that of the last page."""
        return min(self.view.number, max(0, len(self.matching) - 1) // _ROWS + 1)

    @property
    def before(self) -> int:
        """Return how many rows are before the page."""
        return (self.number - 1) * _ROWS

    @property
    def rows(self) -> list[GroupRow]:
        """Return the rows of the page."""
        return self.matching[self.before : self.before + _ROWS]

    @cached_property
    def lags(self) -> list[int]:
        """Return the lags that are known, of the rows that match whatever their state."""
        return [row.lag for row in self.found if row.lag is not None]

    @property
    def has_unknown(self) -> bool:
        """Return whether there are groups whose lag is not known, and not only those without positions."""
        return any(row.lag is None and row.group.partitions for row in self.found)

    @property
    def lag(self) -> int | None:
        """Return the sum of the lags; None where none is known."""
        return sum(self.lags) if self.lags else None

    @property
    def attention(self) -> int:
        """Return how many of the rows that match need attention."""
        return sum(row.needs_attention for row in self.found)

    @property
    def failed(self) -> int:
        """Return how many databases do not answer, whose groups are not known, or not anew."""
        return sum(not card.answers for card in self.cards)

    @property
    def dags(self) -> list[str]:
        """Return DAGs for the filter to suggest."""
        return sorted({dag_id for _, dag_ids in self.groups for dag_id in dag_ids})[:_CHOICES]


@router.get("/")
def groups_page(request: Request, caller: CallerDep, readings: ReadingsDep, view: ViewDep) -> HTMLResponse:
    """Return the page of all groups."""
    return _page(request, caller, readings, view, None)


@router.get("/dags/{dag_id}", dependencies=[READS_DAG])
def dag_page(request: Request, dag_id: str, caller: CallerDep, readings: ReadingsDep, view: ViewDep) -> HTMLResponse:
    """Return the page of the groups of a DAG."""
    return _page(request, caller, readings, view, dag_id)


def _page(request: Request, caller: Caller, readings: Readings, view: View, dag_id: str | None) -> HTMLResponse:
    found = overview(readings, caller, view, dag_id)
    return page(request, "groups.html", overview=found, caller=caller, dag_id=dag_id, view=view, all_states=STATES)


@router.get("/static/{name}")
def static(name: str) -> Response:
    """Return a static file. It needs the login, as all routes do."""
    if name not in STATIC:
        raise not_found("There is no such file")
    # The URL has the version of the package.
    headers = {"Cache-Control": "private, max-age=86400"}
    return Response(static_file(name), media_type=STATIC[name], headers=headers)


def overview(readings: Readings, caller: Caller, view: View, dag_id: str | None = None) -> Overview:
    """Return the groups that the user may see, of all DAGs or of one."""
    deadline = time.monotonic() + _SOURCES_SECONDS
    try:
        sources = readings.sources(deadline)
    except ConfigurationError as error:
        return Overview(view, problem=str(error))
    seen = {source: discovery for source, discovery in sources.items() if caller.sees_source(source, discovery)}
    loading = readings.loading(deadline)
    looks = readings.look(seen, _GROUPS_SECONDS, caller.shares_team)
    groups: list[Listed] = []
    cards: list[SourceCard] = []
    for look in looks:
        loaded_by = [(row, loading.naming(look.source, row.group)) for row in look.rows()]
        mine = [
            Listed(row, sorted(dag_ids & caller.readable_dags))
            for row, dag_ids in loaded_by
            if caller.sees_group(look.source, dag_ids) and (dag_id is None or dag_id in dag_ids)
        ]
        groups += mine
        card = _card(look, [row for row, _ in mine], caller)
        if mine or (_is_news(look, card, dag_id) and caller.knows_source(look.source, look.discovery)):
            cards.append(card)
    now = {look.source: look.stored.value.now for look in looks if look.stored.value is not None}
    is_first = not readings.has_dags or any(look.is_first and look.problem is None for look in looks)
    return Overview(view, groups, cards, now, is_first=is_first)


def _is_news(look: SourceLook, card: SourceCard, dag_id: str | None) -> bool:
    """Return whether a page shows state tables without groups that the user may see: those of its DAG, if it has one,
    that the configuration names, or that are not known.
    """
    is_of_page = dag_id is None or dag_id in look.discovery.dag_ids
    return is_of_page and bool(look.discovery.is_configured or card.problems or card.age is None)


def _card(look: SourceLook, rows: Sequence[GroupRow], caller: Caller) -> SourceCard:
    problems: list[str] = []
    age, failure = look.stored.age, look.problem
    if failure is not None:
        as_of = f". Its groups are shown as they were {age:.0f} s ago" if rows and age else ""
        problems.append(caller.text(failure) + as_of)
    of_lags = dict.fromkeys(row.lag_problem for row in rows if row.lag_problem is not None)
    summaries = [*problems, *dict.fromkeys(problem.summary for problem in of_lags)]
    problems += dict.fromkeys(map(caller.text, of_lags))
    used = {row.kafka for row in rows}
    ages = {conn_id: lags.age for conn_id, lags in look.lags.items() if conn_id in used and lags.error is None}
    is_empty = look.stored.value is not None and look.stored.value.groups is None
    return SourceCard(look.source, len(rows), problems, summaries, failure is None, age, ages, is_empty)
