"""The page of a group's verifications, and the click that starts one."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request, Response, status

from airflow_kafka_offsets.plugin.forms import FROM_THIS_SITE, FormDep
from airflow_kafka_offsets.plugin.group_request import GroupRequest, GroupRequestDep
from airflow_kafka_offsets.plugin.shell_commands import verify_command
from airflow_kafka_offsets.plugin.verifications import BusyError, Verifications
from airflow_kafka_offsets.sinks.fan_out import of_tables

router = APIRouter()


def _verifications(request: Request) -> Verifications:
    verifications: Verifications = request.app.state.verifications
    return verifications


VerificationsDep = Annotated[Verifications, Depends(_verifications)]


@router.get("/verification")
def verification_page(request: GroupRequestDep, verifications: VerificationsDep) -> Response:
    """Return the results of a group, the newest first."""
    return _answer(request, "verification.html", verifications)


@router.get("/verification/now")
def verification_now(request: GroupRequestDep, verifications: VerificationsDep) -> Response:
    """Return what of the page changes, with which it refreshes itself."""
    return _answer(request, "verification_now.html", verifications)


@router.post("/verification", dependencies=[FROM_THIS_SITE])
def start(request: GroupRequestDep, verifications: VerificationsDep, form: FormDep) -> Response:
    """Start a verification, and lead to its page."""
    found = request.find(request.target)
    request.check_edits(found, "Who starts a verification")
    request.redeem(form, "verify")
    target = found.more
    if not target.can_verify:
        raise HTTPException(status.HTTP_409_CONFLICT, f"{target.unknown}. Verify with KafkaVerifyOperator")
    who, dag_id = str(request.caller.user.get_name()), min(found.summary.dag_ids, default=None)
    try:
        verifications.start(request.source, request.group_id, of_tables(target.tables), who=who, dag_id=dag_id)
    except BusyError as error:
        raise HTTPException(status.HTTP_409_CONFLICT, str(error)) from None
    return request.redirect("verification")


def _answer(request: GroupRequest, template: str, verifications: Verifications) -> Response:
    found = request.find(request.target)
    target = found.more
    return request.page(
        template,
        now=found.now,
        target=target,
        results=verifications.latest(request.source, request.group_id),
        command=verify_command(request.source, request.group_id, target) if not target.can_verify else None,
        verifiers=[task for task in target.verifiers if task[0] in request.caller.readable_dags],
        ticket=request.issue("verify") if request.edits(found) else None,
    )
