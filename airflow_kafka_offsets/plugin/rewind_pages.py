"""The pages that move positions: a form with every scenario, a preview with what it costs, and its execution. Only the
last changes anything.

Whoever edits a DAG of the group may use them. `[kafka_offsets] rewind_in_web_interface` turns them off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, HTTPException, Query, Response, status
from sqlalchemy.exc import SQLAlchemyError
from starlette.datastructures import FormData

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import (
    CommitUnknownError,
    ConfigurationError,
    DatabaseUnavailableError,
    KafkaOffsetsError,
    KafkaUnavailableError,
    LedgerError,
    PlanningError,
    UnknownTopicError,
)
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.plugin import rewind_work as work
from airflow_kafka_offsets.plugin.background import TooSlowError
from airflow_kafka_offsets.plugin.forms import FROM_THIS_SITE, FormDep, field
from airflow_kafka_offsets.plugin.group_request import Found, GroupRequest, GroupRequestDep, rewinds_are_on
from airflow_kafka_offsets.plugin.problems import Problem, problem
from airflow_kafka_offsets.plugin.shell_commands import replace_command
from airflow_kafka_offsets.rewinding.scenarios import SCENARIOS

T = TypeVar("T")

log = logging.getLogger(__name__)

_PREVIEW_SECONDS, _EXECUTE_SECONDS = 60.0, 120.0
_PARTITIONS = 500
"""The most partitions that a preview shows; all are executed."""

_OFFERED = (
    ("to-earliest", "the beginning offsets", None),
    ("to-latest", "the end offsets", None),
    ("to-datetime", "the first record at or after an instant", "2026-11-17T08:00:00Z"),
    ("by-duration", "the first record of the last", "P1DT12H"),
    ("shift-by", "so many offsets further; negative: back", "-1000"),
    ("to-offset", "an offset", "0"),
    ("to-batch", "the state before batch", "42"),
    ("undo", "where they were before the last rewind", None),
    ("to-group", "the positions of another group", "orders"),
    ("import", "what a consumer group in Kafka has committed", "orders-app"),
    ("from-file", "the offsets of a CSV text", "topic,partition,offset"),
    ("to-current", "where they are", None),
)
"""The scenarios in the order of the form: the name, what it means, and an example of its value."""

assert {name for name, _, _ in _OFFERED} == {*SCENARIOS}

_READABLE = (ConfigurationError, PlanningError, UnknownTopicError, LedgerError)
"""Errors whose texts have groups, topics and offsets, and no hosts, but for those of outages."""

_OUTAGES = (CommitUnknownError, DatabaseUnavailableError, KafkaUnavailableError)


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
    return _form_page(request, _found(request), work.RewindForm(scenario, value))


@router.post("/rewind/preview", dependencies=[FROM_THIS_SITE])
def preview_page(request: GroupRequestDep, sent: FormDep) -> Response:
    """Return what a rewind would do, or the form again with what is wrong. Nothing is changed."""
    found, form = _found(request), _form(sent)
    request.redeem(sent, "preview")
    estimate = _attempt(request, lambda ledger: work.estimate(ledger, request, found.summary, form), _PREVIEW_SECONDS)
    if isinstance(estimate, _Refused):
        return _form_page(request, found, form, estimate)
    preview = estimate.preview
    partitions = [each for each in preview.partitions if each.changes or each.note or each.offsets_reread]
    return request.page(
        "rewind_preview.html",
        estimate=estimate,
        preview=preview,
        command=replace_command(request.source, request.group_id, estimate, form) if estimate.leaves_rows else None,
        partitions=partitions[:_PARTITIONS],
        left_out=max(0, len(partitions) - _PARTITIONS),
        unchanged=len(preview.partitions) - len(partitions),
        form=form,
        blocked=preview.open_batch is not None and not form.abandon,
        ticket=request.issue("execute", work.ticket_content(estimate, form)),
    )


@router.post("/rewind/execute", dependencies=[FROM_THIS_SITE])
def execute(request: GroupRequestDep, sent: FormDep) -> Response:
    """Execute a preview, as it was shown or not at all, and lead to its row in the history."""
    _found(request)
    number, content = request.redeem(sent, "execute")
    reason, who = field(sent, "reason"), str(request.caller.user.get_name())
    if not reason:
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "A rewind needs a reason. Nothing was changed")
    result = _attempt(request, lambda ledger: work.execute(ledger, content, number, who, reason), _EXECUTE_SECONDS)
    if isinstance(result, _Refused):
        return request.page("rewind_refused.html", result.status, text=result.text)
    log.info("%s has rewound group %r of %s: %s", who, request.group_id, request.source, result)
    if result.batch_id is None:
        return request.redirect("group")
    return request.redirect("batch", batch=result.batch_id)


@dataclass(frozen=True, slots=True)
class _Refused:
    """Why nothing was done.

    :param text: what the user may know
    """

    status: int
    text: str


def _attempt(request: GroupRequest, do: Callable[[Ledger], T], seconds: float) -> T | _Refused:
    """Return what longer work with the state tables returns, or why it was refused."""
    try:
        return request.readings.run_long(request.source, do, seconds)
    except TooSlowError:
        return _Refused(
            status.HTTP_504_GATEWAY_TIMEOUT,
            "This takes long, and goes on. If it is executed, the rewind will be in the history of the group, as a "
            "whole or not at all.",
        )
    except (KafkaOffsetsError, SQLAlchemyError) as error:
        if isinstance(error, _READABLE) and not isinstance(error, _OUTAGES):
            return _Refused(status.HTTP_409_CONFLICT, str(error))
        return _Refused(status.HTTP_503_SERVICE_UNAVAILABLE, request.caller.text(_problem(error, request)))


def _problem(error: Exception, request: GroupRequest) -> Problem:
    match error:
        case CommitUnknownError():
            what = (
                "Whether the positions were moved is not known: the rewind is in the history of the group as a whole, "
                "or not at all"
            )
        case DatabaseUnavailableError():
            what = "The database could not do it. Nothing was changed"
        case KafkaUnavailableError():
            # Which of the connections it was is in the text, which may name hosts.
            what = "The Kafka cluster does not answer, or refuses"
        case _:
            return problem(error, request.source.conn_id)
    return Problem(what, shortened(str(error)), request.source.conn_id)


def _found(request: GroupRequest) -> Found[work.FormState]:
    """Return the group, if the user may edit it.

    :raises HTTPException: 404 where the user may not see it, 403 where they may not edit it
    """
    found = request.find(lambda conn, tables: work.form_state(conn, tables, request))
    request.check_edits(found, "Who moves the positions of a group")
    return found


def _form(sent: FormData) -> work.RewindForm:
    scenario = field(sent, "scenario")
    return work.RewindForm(
        scenario,
        field(sent, f"value-{scenario}"),
        field(sent, "scope"),
        field(sent, "kafka_conn_id"),
        field(sent, "isolation_level") or work.ISOLATION_LEVELS[0],
        replace=bool(field(sent, "replace")),
        abandon=bool(field(sent, "abandon")),
        new_cluster=bool(field(sent, "new_cluster")),
    )


def _form_page(
    request: GroupRequest, found: Found[work.FormState], form: work.RewindForm, refused: _Refused | None = None
) -> Response:
    return request.page(
        "rewind.html",
        refused.status if refused is not None else 200,
        group=found.summary,
        state=found.more,
        offered=_OFFERED,
        form=form,
        kafka_conn_ids=work.kafka_conn_ids(request),
        isolation_levels=work.ISOLATION_LEVELS,
        refused=refused.text if refused is not None else None,
        ticket=request.issue("preview"),
    )
