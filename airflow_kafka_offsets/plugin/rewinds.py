"""The pages that move positions: a form with every scenario, a preview with what it costs, and its execution. Only the
last changes anything.

Whoever edits a DAG of the group may use them. `[kafka_offsets] rewind_in_web_interface` turns them off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from typing import Annotated, Any, NamedTuple, TypeVar, get_args

from fastapi import APIRouter, Depends, HTTPException, Query, Response, status
from sqlalchemy.engine import Connection
from starlette.datastructures import FormData

from airflow_kafka_offsets import exceptions as errors
from airflow_kafka_offsets.core.offsets import Scope, parse_scope
from airflow_kafka_offsets.core.options import IsolationLevel
from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import KAFKA, ConfigurationError, KafkaOffsetsError
from airflow_kafka_offsets.hooks.links import rewinds_are_on
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.overview import group_summaries
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.plugin.background import TooSlowError
from airflow_kafka_offsets.plugin.group_request import FROM_THIS_SITE, FormDep, GroupRequest, GroupRequestDep, field
from airflow_kafka_offsets.plugin.group_targets import WITHOUT_VALUE, GroupTarget, replace_command
from airflow_kafka_offsets.plugin.problems import Problem, ProblemError, original, problem
from airflow_kafka_offsets.plugin.rendering import time_zone
from airflow_kafka_offsets.plugin.sources import tables_of
from airflow_kafka_offsets.rewinding.execution import RewindResult, check_removal, execute_rewind
from airflow_kafka_offsets.rewinding.history import state_before_last_rewind
from airflow_kafka_offsets.rewinding.preview import RewindPreview
from airflow_kafka_offsets.rewinding.previewing import preview_rewind
from airflow_kafka_offsets.rewinding.scenarios import SCENARIOS, Scenario
from airflow_kafka_offsets.sinks.fan_out import of_tables
from airflow_kafka_offsets.sinks.sink import DatabaseTable

T = TypeVar("T")

log = logging.getLogger(__name__)

ISOLATION_LEVELS = get_args(IsolationLevel)

_PREVIEW_SECONDS, _EXECUTE_SECONDS = 60.0, 120.0

_SLOW_PREVIEW = "The preview takes too long: Kafka or the database does not answer. Nothing was done; try again."
_SLOW_REWIND = (
    "The rewind is still running. Look at the history of the group: the rewind will be there as a whole, or not at all."
)
_PARTITIONS = 500
"""The most partitions that a preview shows; all are executed."""

_OFFERED = (
    ("to-datetime", "To an instant: the first record at or after it", None),
    ("to-batch", "To the state before a batch", "42"),
    ("undo", "Undo the last rewind, or the last undo", None),
    ("by-duration", "Back by a duration: the first record of that time", "P1DT12H"),
    ("shift-by", "By a number of offsets; a negative number goes back", "-1000"),
    ("to-earliest", "To the beginning of the topics", None),
    ("to-latest", "To the end of the topics: what is unread is never loaded", None),
    ("to-offset", "To an offset", "0"),
    ("to-group", "To the positions of another group", "orders"),
    ("import", "To what a consumer group in Kafka has committed", "orders-app"),
    ("from-file", "To the offsets of a CSV text", "topic,partition,offset"),
    ("to-current", "To the current positions: none moves, but rows can be deleted", None),
)
"""The scenarios in the order of the form: the name, what it means, and an example of its value."""

_FIRST = 3
"""How many scenarios the form begins with; the others are folded."""

assert {name for name, _, _ in _OFFERED} == {*SCENARIOS}


def zoned(text: str) -> str:
    """Return an instant with a zone: of one without, as a date picker has it, that is Airflow's. Other texts are
    returned as they are, for the message that refuses them.
    """
    try:
        value = datetime.fromisoformat(text)
        zone = time_zone()
        if value.tzinfo is None:
            return (value.astimezone() if zone is None else value.replace(tzinfo=zone)).isoformat()
    except (ValueError, OverflowError):
        pass
    return text


@dataclass(frozen=True, slots=True)
class RewindForm:
    """What the form of a rewind asks for, as it was typed.

    :param kafka_conn_id: empty is the connection that leads to the cluster of the group
    """

    scenario: str = ""
    value: str = ""
    scope: str = ""
    kafka_conn_id: str = ""
    isolation_level: str = ISOLATION_LEVELS[0]
    replace: bool = False
    abandon: bool = False
    new_cluster: bool = False

    def parsed(self, group_id: str) -> tuple[Scenario, Scope]:
        """Return the scenario and the scope.

        :raises ConfigurationError: they are none
        """
        if self.scenario not in SCENARIOS:
            raise ConfigurationError("Choose where the positions move to")
        if self.isolation_level not in ISOLATION_LEVELS:
            raise ConfigurationError(f"The isolation level is one of {', '.join(ISOLATION_LEVELS)}")
        if not self.value and self.scenario not in WITHOUT_VALUE:
            raise ConfigurationError("Fill in the value: what the positions move to")
        value = zoned(self.value) if self.scenario == "to-datetime" else self.value
        return Scenario.of(self.scenario, value or None, group_id=group_id), parse_scope(self.scope.split())

    @property
    def local(self) -> str:
        """Return the instant for the date picker, in Airflow's time zone; empty where the value is none."""
        try:
            value = datetime.fromisoformat(zoned(self.value))
            return value.astimezone(time_zone()).replace(tzinfo=None).isoformat(timespec="seconds")
        except (ValueError, OverflowError):
            return ""


@dataclass(frozen=True, slots=True)
class RewindEstimate:
    """A preview, and what it costs.

    :param target: of the group
    :param kafka_conn_id: the connection that was used
    :param rows: how many rows are removed; None where none are to be
    :param warning: what becomes of dead letters that were erased
    :param tables: from which they are removed
    """

    preview: RewindPreview
    target: GroupTarget
    kafka_conn_id: str
    rows: int | None = None
    dead_letters: int | None = None
    warning: str | None = None
    tables: tuple[DatabaseTable, ...] = ()

    @property
    def is_nothing(self) -> bool:
        """Return whether there is nothing to execute."""
        return not self.preview.moves(replace=bool(self.tables))

    @property
    def leaves_rows(self) -> bool:
        """Return whether rows of offsets that will be read again stay in the target."""
        return bool(not self.target.tables and self.preview.offsets_reread and not self.preview.moves_cluster)


class _Refused(NamedTuple):
    """Why nothing was done.

    :param text: what the user may know
    """

    status: int
    text: str


def _switched_on() -> None:
    if not rewinds_are_on():
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            "Rewinds in the web interface are turned off: [kafka_offsets] rewind_in_web_interface",
        )


router = APIRouter(dependencies=[Depends(_switched_on)])


@router.get("/rewind")
def rewind_form(
    request: GroupRequestDep,
    scenario: Annotated[str, Query(max_length=20)] = "",
    value: Annotated[str, Query(max_length=250)] = "",
) -> Response:
    """Return the form of a rewind."""
    return _form_page(request, *_find(request), RewindForm(scenario, value))


@router.post("/rewind/preview", dependencies=[FROM_THIS_SITE])
def preview_page(request: GroupRequestDep, sent: FormDep) -> Response:
    """Return what a rewind would do, or the form again with what is wrong. Nothing is changed."""
    target, undo = _find(request)
    form = _form(sent)
    request.redeem(sent, "preview")
    estimate = _attempt(request, lambda ledger: _estimate(ledger, request, form), _PREVIEW_SECONDS, _SLOW_PREVIEW)
    if isinstance(estimate, _Refused):
        return _form_page(request, target, undo, form, *estimate)
    preview = estimate.preview
    partitions = [each for each in preview.partitions if each.changes or each.note or each.offsets_reread]
    content = {
        "preview": preview.as_dict(),
        "tables": [table._asdict() for table in estimate.tables],
        "abandon": form.abandon,
    }
    return request.page(
        "rewind_preview.html",
        estimate=estimate,
        preview=preview,
        titles={name: meaning for name, meaning, _ in _OFFERED},
        command=replace_command(request.source, request.group_id, estimate, form) if estimate.leaves_rows else None,
        partitions=partitions[:_PARTITIONS],
        left_out=max(0, len(partitions) - _PARTITIONS),
        unchanged=len(preview.partitions) - len(partitions),
        form=form,
        blocked=preview.open_batch is not None and not form.abandon,
        ticket=request.issue("execute", content),
    )


@router.post("/rewind/execute", dependencies=[FROM_THIS_SITE])
def execute(request: GroupRequestDep, sent: FormDep) -> Response:
    """Execute a preview, as it was shown or not at all, and lead to its row in the history."""
    _find(request)
    number, content = request.redeem(sent, "execute")
    reason, who = field(sent, "reason"), str(request.caller.user.get_name())
    if not reason:
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "A rewind needs a reason. Nothing was changed")
    result = _attempt(
        request, lambda ledger: _execute(ledger, content, number, who, reason), _EXECUTE_SECONDS, _SLOW_REWIND
    )
    if isinstance(result, _Refused):
        return request.page("rewind_refused.html", result.status, text=result.text)
    log.info("%s has rewound group %r of %s: %s", who, request.group_id, request.source, result)
    if result.batch_id is None:
        return request.redirect("group")
    return request.redirect("batch", batch=result.batch_id)


def _find(request: GroupRequest) -> tuple[GroupTarget, str | None]:
    """Read the group, which the user may edit, and return its target, and why its last rewind cannot be undone.

    :raises HTTPException: 404 where the user may not see it, 403 where they may not edit it
    """

    def read(conn: Connection, tables: Tables) -> tuple[GroupTarget, str | None]:
        target = request.target(conn, tables)
        return target, undo_refusal(conn, tables, request.group_id)

    found = request.find(read)
    request.check_edits("Who moves the positions of a group")
    return found


def undo_refusal(conn: Connection, tables: Tables, group_id: str) -> str | None:
    """Return why the last rewind of a group cannot be undone; None if it can."""
    try:
        state_before_last_rewind(Ledger(conn.engine, tables), group_id, {})
    except KafkaOffsetsError as error:
        return str(error)
    return None


def _form(sent: FormData) -> RewindForm:
    scenario = field(sent, "scenario")
    return RewindForm(
        scenario,
        field(sent, f"value-{scenario}"),
        field(sent, "scope"),
        field(sent, "kafka_conn_id"),
        field(sent, "isolation_level") or ISOLATION_LEVELS[0],
        replace=bool(field(sent, "replace")),
        abandon=bool(field(sent, "abandon")),
        new_cluster=bool(field(sent, "new_cluster")),
    )


def _form_page(
    request: GroupRequest,
    target: GroupTarget,
    undo: str | None,
    form: RewindForm,
    status_code: int = status.HTTP_200_OK,
    refused: str = "",
) -> Response:
    return request.page(
        "rewind.html",
        status_code,
        group=request.summary,
        target=target,
        impossible={
            name: reason
            for name, reason in (
                ("undo", undo),
                ("to-batch", None if request.summary.last_commit is not None else "No batch was committed yet"),
            )
            if reason is not None
        },
        offered=_OFFERED,
        first=_FIRST,
        zone=datetime.now(time_zone()).tzname(),
        form=form,
        kafka_conn_ids=_kafka_conn_ids(request),
        isolation_levels=ISOLATION_LEVELS,
        refused=refused,
        ticket=request.issue("preview"),
    )


def _attempt(request: GroupRequest, do: Callable[[Ledger], T], seconds: float, slow: str) -> T | _Refused:
    """Return what longer work with the state tables returns, or why it was refused.

    :param slow: what to say if it takes longer
    """
    try:
        return request.readings.run(request.source, do, seconds, is_long=True)
    except ProblemError as error:
        return _Refused(error.status, request.caller.text(error.problem))
    except TooSlowError:
        return _Refused(status.HTTP_504_GATEWAY_TIMEOUT, slow)
    except Exception as error:
        return _refusal(error, request)


def _refusal(error: Exception, request: GroupRequest) -> _Refused:
    match error:
        case errors.CommitUnknownError():
            what = (
                "It is unknown whether the positions were moved. Look at the history of the group: the rewind is "
                "there as a whole, or not at all"
            )
        case errors.DatabaseUnavailableError():
            what = "The database could not do it. Nothing was changed"
        case ConfigurationError() | errors.PlanningError() | errors.UnknownTopicError() | errors.LedgerError() if (
            original(error) is error
        ):
            # Their texts have groups, topics and offsets. Those with hosts are a ProblemError.
            return _Refused(status.HTTP_409_CONFLICT, str(error))
        case _:
            what = ""
    conn_id = request.source.conn_id
    known = Problem(what, shortened(str(error)), conn_id) if what else problem(original(error), conn_id)
    return _Refused(status.HTTP_503_SERVICE_UNAVAILABLE, request.caller.text(known))


def _estimate(ledger: Ledger, request: GroupRequest, form: RewindForm) -> RewindEstimate:
    """Return the preview of what a form asks for. Nothing is written.

    :raises KafkaOffsetsError: see `preview_rewind`
    """
    scenario, scope = form.parsed(request.group_id)
    if scenario.name == "to-group":
        _check_other_group(ledger, request, str(scenario.value))
    kafka_conn_id = _kafka_conn_id(request, form)
    with _problems_of(kafka_conn_id):
        kafka_config = request.readings.kafka_config(kafka_conn_id)
    with _problems_of(kafka_conn_id, only_with_hosts=True):
        preview = preview_rewind(
            request.group_id,
            scenario,
            engine=ledger.engine,
            kafka_config=kafka_config,
            tables=ledger.tables,
            scope=scope,
            isolation_level=form.isolation_level,
            new_cluster=form.new_cluster,
            may_name=cache(partial(_sees_group, ledger, request)),
        )
    with ledger.connect() as conn:
        target = request.target(conn, ledger.tables)
        if not form.replace:
            return RewindEstimate(preview, target, kafka_conn_id)
    preview.refuse_replace()
    if not target.tables:
        raise ConfigurationError(
            f"{target.unknown}: its rows cannot be removed here. Rewind with KafkaRewindOperator(replace=…), or with "
            "'kafka-offsets rewind --replace --dag-id … --task-id …'"
        )
    removal = check_removal(preview, of_tables(target.tables), ledger=ledger)
    return RewindEstimate(
        preview, target, kafka_conn_id, removal.rows, removal.dead_letters, removal.warning, target.tables
    )


@contextmanager
def _problems_of(kafka_conn_id: str, *, only_with_hosts: bool = False) -> Iterator[None]:
    """Report what fails in a block as a problem of a connection of Kafka, whose readers may see what it is.

    :param only_with_hosts: whether other errors are raised as they are
    :raises ProblemError: the block raises
    """
    try:
        yield
    except Exception as error:
        if only_with_hosts and KAFKA not in getattr(error, "about", ()):
            raise
        may_pass = getattr(error, "retriable", False)
        code = status.HTTP_503_SERVICE_UNAVAILABLE if may_pass else status.HTTP_409_CONFLICT
        raise ProblemError(problem(error, kafka_conn_id), code) from error


def _execute(ledger: Ledger, content: Mapping[str, Any], number: str, who: str, reason: str) -> RewindResult:
    """Execute the preview that a ticket holds.

    :param content: see `preview_page`
    :param number: of the ticket: a form that is sent twice is executed once
    :raises KafkaOffsetsError: see `execute_rewind`
    """
    preview = RewindPreview.from_dict(content["preview"])
    tables = tables_of(content["tables"])
    return execute_rewind(
        preview,
        engine=ledger.engine,
        tables=ledger.tables,
        run=TaskRun(f"web interface:{number}"),
        who=who,
        reason=reason,
        abandon=preview.open_batch if content["abandon"] else None,
        replace=of_tables(tables) if tables else None,
    )


def _sees_group(ledger: Ledger, request: GroupRequest, group_id: str) -> bool:
    """Return whether the user may see another group of the state tables, which is there."""
    with ledger.connect() as conn:
        _, groups = group_summaries(conn, ledger.tables, [group_id])
    return bool(groups) and request.sees(groups[0])


def _check_other_group(ledger: Ledger, request: GroupRequest, group_id: str) -> None:
    """Raise if the user may not see the group whose positions are copied, as if there were none."""
    if not _sees_group(ledger, request, group_id):
        raise errors.NoPositionError(f"There is no group {group_id!r} in {request.source}, or you may not see it")


def _kafka_conn_ids(request: GroupRequest) -> list[str]:
    """Return the connections of Kafka that the group may be loaded through, and that the user may use."""
    caller, known = request.caller, request.readings.sources(0.0)[request.source].kafka_conn_ids
    named = [
        (task.kafka_conn_id, dag_id in caller.readable_dags)
        for dag_id, tasks in request.readings.dags(0.0).items()
        for task in tasks
        if task.source == request.source
    ]
    # Other DAGs may have the same state tables.
    of_others = {conn_id for conn_id, _ in named} - {conn_id for conn_id, is_readable in named if is_readable}
    return sorted(
        conn_id
        for conn_id in known
        if caller.shares_team(conn_id) and (conn_id not in of_others or caller.reads_connection(conn_id))
    )


def _kafka_conn_id(request: GroupRequest, form: RewindForm) -> str:
    """Return the connection that the form names, or the one that leads to the group's cluster."""
    allowed = _kafka_conn_ids(request)
    if form.kafka_conn_id:
        if form.kafka_conn_id not in allowed:
            raise ConfigurationError(f"The group is not loaded through connection {form.kafka_conn_id!r}")
        return form.kafka_conn_id
    if len(allowed) == 1:
        return allowed[0]
    for conn_id in allowed:
        try:
            if request.readings.cluster(conn_id).cluster_id() == request.summary.cluster_id:
                return conn_id
        except Exception:  # noqa: S112
            # Another one may lead there; the message below names those that do not.
            continue
    raise ConfigurationError(
        f"No connection leads to the Kafka cluster of the group ({', '.join(allowed) or 'none is yours to use'}): "
        "choose one"
    )
