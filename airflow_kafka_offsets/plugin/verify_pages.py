"""The page of a group's verifications, and the click that starts one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request, Response, status
from fastapi.responses import RedirectResponse

from airflow_kafka_offsets.plugin.access import Caller, CallerDep
from airflow_kafka_offsets.plugin.forms import FROM_THIS_SITE, FormDep, field, issue, redeem
from airflow_kafka_offsets.plugin.group_pages import Found, NamedGroup, NamedGroupDep, find_group
from airflow_kafka_offsets.plugin.group_targets import GroupTarget, group_target
from airflow_kafka_offsets.plugin.pages import ReadingsDep
from airflow_kafka_offsets.plugin.readings import Readings
from airflow_kafka_offsets.plugin.rendering import Links, page
from airflow_kafka_offsets.plugin.shell_commands import verify_command
from airflow_kafka_offsets.plugin.verifications import BusyError, Verifications
from airflow_kafka_offsets.sinks.fan_out import of_tables

router = APIRouter()


def _verifications(request: Request) -> Verifications:
    verifications: Verifications = request.app.state.verifications
    return verifications


VerificationsDep = Annotated[Verifications, Depends(_verifications)]


@router.get("/verification")
def verification_page(
    request: Request, caller: CallerDep, readings: ReadingsDep, verifications: VerificationsDep, named: NamedGroupDep
) -> Response:
    """Return the results of a group, the newest first."""
    return _answer(request, "verification.html", caller, readings, verifications, named)


@router.get("/verification/now")
def verification_now(
    request: Request, caller: CallerDep, readings: ReadingsDep, verifications: VerificationsDep, named: NamedGroupDep
) -> Response:
    """Return what of the page changes, with which it refreshes itself."""
    return _answer(request, "verification_now.html", caller, readings, verifications, named)


@router.post("/verification", dependencies=[FROM_THIS_SITE])
def start(
    request: Request,
    caller: CallerDep,
    readings: ReadingsDep,
    verifications: VerificationsDep,
    named: NamedGroupDep,
    form: FormDep,
) -> Response:
    """Start a verification, and lead to its page."""
    found = _found(readings, caller, named)
    if not caller.edits_group(named.source, found.summary):
        raise HTTPException(
            status.HTTP_403_FORBIDDEN, "Who starts a verification needs the right to edit a DAG that loads the group"
        )
    redeem(field(form, "ticket"), "verify", caller, named.source, named.group_id)
    target = found.more
    if not target.can_verify:
        raise HTTPException(status.HTTP_409_CONFLICT, f"{target.unknown}. Verify with KafkaVerifyOperator")
    sink = of_tables(target.tables)
    dag_id = min(found.summary.dag_ids, default=None)
    try:
        verifications.start(named.source, named.group_id, sink, who=str(caller.user.get_name()), dag_id=dag_id)
    except BusyError as error:
        raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from None
    url = Links(request).page("verification", named.source, named.group_id)
    return RedirectResponse(url, status.HTTP_303_SEE_OTHER)


def _found(readings: Readings, caller: Caller, named: NamedGroup) -> Found[GroupTarget]:
    return find_group(
        readings,
        caller,
        named,
        lambda conn, tables: group_target(conn, tables, named.source, named.group_id, readings.dags(0.0)),
    )


def _answer(
    request: Request,
    template: str,
    caller: Caller,
    readings: Readings,
    verifications: Verifications,
    named: NamedGroup,
) -> Response:
    found = _found(readings, caller, named)
    target = found.more
    return page(
        request,
        template,
        named=named,
        now=found.now,
        target=target,
        results=verifications.latest(named.source, named.group_id),
        command=verify_command(named.source, named.group_id, target) if not target.can_verify else None,
        verifiers=[task for task in target.verifiers if task[0] in caller.readable_dags],
        ticket=issue("verify", caller, named.source, named.group_id)
        if caller.edits_group(named.source, found.summary)
        else None,
    )
