"""The pages that move positions: a form with every scenario, a preview with what it costs, and its execution. Only the
last changes anything.

Whoever edits a DAG of the group may use them. `[kafka_offsets] rewind_in_web_interface` turns them off.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response, status
from fastapi.responses import RedirectResponse
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
from airflow_kafka_offsets.plugin import rewind_work as work
from airflow_kafka_offsets.plugin.access import Caller, CallerDep
from airflow_kafka_offsets.plugin.background import TooSlowError
from airflow_kafka_offsets.plugin.forms import FROM_THIS_SITE, FormDep, field, issue, redeem
from airflow_kafka_offsets.plugin.group_pages import Found, NamedGroup, NamedGroupDep, find_group, rewinds_are_on
from airflow_kafka_offsets.plugin.pages import ReadingsDep
from airflow_kafka_offsets.plugin.problems import Problem, problem
from airflow_kafka_offsets.plugin.readings import Readings
from airflow_kafka_offsets.plugin.rendering import Links, page
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
"""Errors whose texts have groups, topics and offsets, and no hosts."""


def _switched_on() -> None:
    if not rewinds_are_on():
        raise HTTPException(
            status.HTTP_403_FORBIDDEN,
            "Rewinds in the web interface are turned off: [kafka_offsets] rewind_in_web_interface",
        )


router = APIRouter(dependencies=[Depends(_switched_on)])


@router.get("/rewind")
def rewind_form(
    request: Request,
    caller: CallerDep,
    readings: ReadingsDep,
    named: NamedGroupDep,
    scenario: Annotated[str, Query(max_length=20)] = "",
    value: Annotated[str, Query(max_length=250)] = "",
) -> Response:
    """Return the form of a rewind."""
    found = _found(readings, caller, named)
    return _form_page(request, readings, caller, named, found, work.RewindForm(scenario, value))


@router.post("/rewind/preview", dependencies=[FROM_THIS_SITE])
def preview_page(
    request: Request, caller: CallerDep, readings: ReadingsDep, named: NamedGroupDep, form: FormDep
) -> Response:
    """Return what a rewind would do, or the form again with what is wrong. Nothing is changed."""
    found = _found(readings, caller, named)
    redeem(field(form, "ticket"), "preview", caller, named.source, named.group_id)
    wish = _wish(form)
    kafka_conn_ids = _kafka_conn_ids(readings, named)
    outcome = _attempt(
        lambda: readings.run_long(
            named.source,
            lambda ledger: work.preview_wish(
                ledger, readings, caller, named.source, found.summary, kafka_conn_ids, wish
            ),
            _PREVIEW_SECONDS,
        ),
        caller,
        named,
    )
    if isinstance(outcome, _Refused):
        return _form_page(request, readings, caller, named, found, wish, outcome)
    preview, command = outcome.preview, None
    blocked = preview.open_batch is not None and not wish.abandon
    ticket = issue("execute", caller, named.source, named.group_id, work.ticket_content(outcome, wish))
    if not outcome.target.tables and preview.offsets_reread and not preview.moves_cluster:
        command = replace_command(
            named.source, named.group_id, outcome.target, wish, outcome.kafka_conn_id, preview.open_batch
        )
    partitions = [each for each in preview.partitions if each.changes or each.note or each.offsets_reread]
    return page(
        request,
        "rewind_preview.html",
        named=named,
        cost=outcome,
        preview=preview,
        command=command,
        partitions=partitions[:_PARTITIONS],
        left_out=max(0, len(partitions) - _PARTITIONS),
        unchanged=len(preview.partitions) - len(partitions),
        wish=wish,
        blocked=blocked,
        ticket=ticket,
    )


@router.post("/rewind/execute", dependencies=[FROM_THIS_SITE])
def execute(
    request: Request, caller: CallerDep, readings: ReadingsDep, named: NamedGroupDep, form: FormDep
) -> Response:
    """Execute a preview, as it was shown or not at all, and lead to its row in the history."""
    _found(readings, caller, named)
    number, content = redeem(field(form, "ticket"), "execute", caller, named.source, named.group_id)
    reason, who = field(form, "reason"), str(caller.user.get_name())
    if not reason:
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "A rewind needs a reason. Nothing was changed")
    outcome = _attempt(
        lambda: readings.run_long(
            named.source, lambda ledger: work.execute(ledger, content, number, who, reason), _EXECUTE_SECONDS
        ),
        caller,
        named,
    )
    if isinstance(outcome, _Refused):
        return page(request, "rewind_refused.html", outcome.status, named=named, text=outcome.text)
    log.info("%s has rewound group %r of %s: %s", who, named.group_id, named.source, outcome)
    links = Links(request)
    if outcome.batch_id is None:
        return RedirectResponse(links.page("group", named.source, named.group_id), status.HTTP_303_SEE_OTHER)
    url = links.page("batch", named.source, named.group_id, batch=outcome.batch_id)
    return RedirectResponse(url, status.HTTP_303_SEE_OTHER)


class _Refused:
    """Why nothing was done.

    :param text: what the user may know
    """

    def __init__(self, status_code: int, text: str) -> None:
        self.status = status_code
        self.text = text


def _attempt(do: Callable[[], T], caller: Caller, named: NamedGroup) -> T | _Refused:
    try:
        return do()
    except CommitUnknownError as error:
        what = (
            "Whether the positions were moved is not known: the rewind is in the history of the group as a whole, "
            "or not at all"
        )
        return _Refused(
            status.HTTP_503_SERVICE_UNAVAILABLE, caller.text(Problem(what, str(error), named.source.conn_id))
        )
    except DatabaseUnavailableError as error:
        what = "The database could not do it. Nothing was changed"
        return _Refused(
            status.HTTP_503_SERVICE_UNAVAILABLE, caller.text(Problem(what, str(error), named.source.conn_id))
        )
    except _READABLE as error:
        return _Refused(status.HTTP_409_CONFLICT, str(error))
    except TooSlowError:
        return _Refused(
            status.HTTP_504_GATEWAY_TIMEOUT,
            "This takes long, and goes on. If it is executed, the rewind will be in the history of the group, as a "
            "whole or not at all.",
        )
    except KafkaUnavailableError as error:
        return _Refused(status.HTTP_503_SERVICE_UNAVAILABLE, caller.text(_no_kafka(error, named)))
    except (KafkaOffsetsError, SQLAlchemyError) as error:
        return _Refused(status.HTTP_503_SERVICE_UNAVAILABLE, caller.text(problem(error, named.source.conn_id)))


def _no_kafka(error: KafkaUnavailableError, named: NamedGroup) -> Problem:
    # Which of the connections it was is in the text, which may name hosts.
    return Problem("The Kafka cluster does not answer, or refuses", shortened(str(error)), named.source.conn_id)


def _found(readings: Readings, caller: Caller, named: NamedGroup) -> Found[work.FormState]:
    """Return the group, if the user may edit it.

    :raises HTTPException: 404 where the user may not see it, 403 where they may not edit it
    """
    found = find_group(
        readings,
        caller,
        named,
        lambda conn, tables: work.before(conn, tables, readings, named.source, named.group_id),
    )
    if not caller.edits_group(named.source, found.summary):
        raise HTTPException(
            status.HTTP_403_FORBIDDEN, "Who moves the positions of a group needs the right to edit a DAG that loads it"
        )
    return found


def _kafka_conn_ids(readings: Readings, named: NamedGroup) -> frozenset[str]:
    return readings.sources(0.0)[named.source].kafka_conn_ids


def _wish(form: FormData) -> work.RewindForm:
    scenario = field(form, "scenario")
    return work.RewindForm(
        scenario,
        field(form, f"value-{scenario}"),
        field(form, "scope"),
        field(form, "kafka_conn_id"),
        field(form, "isolation_level") or work.ISOLATION_LEVELS[0],
        replace=bool(field(form, "replace")),
        abandon=bool(field(form, "abandon")),
        new_cluster=bool(field(form, "new_cluster")),
    )


def _form_page(
    request: Request,
    readings: Readings,
    caller: Caller,
    named: NamedGroup,
    found: Found[work.FormState],
    wish: work.RewindForm,
    refused: _Refused | None = None,
) -> Response:
    values: dict[str, Any] = {
        "named": named,
        "group": found.summary,
        "before": found.more,
        "offered": _OFFERED,
        "wish": asdict(wish),
        "kafka_conn_ids": sorted(
            conn_id for conn_id in _kafka_conn_ids(readings, named) if caller.shares_team(conn_id)
        ),
        "isolation_levels": work.ISOLATION_LEVELS,
        "refused": refused.text if refused is not None else None,
        "ticket": issue("preview", caller, named.source, named.group_id),
    }
    return page(request, "rewind.html", refused.status if refused is not None else 200, **values)
