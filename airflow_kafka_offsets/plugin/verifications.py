"""The page of a group's verifications, and those that a click starts: in threads, a few at a time and one of a group,
with their results in Airflow's audit log.

The audit log is shared by the processes of the API server, names the user, and is kept until it is cleaned.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from airflow.models.log import Log  # noqa: TID251 - the page runs in the API server
from airflow.utils.session import create_session  # noqa: TID251
from fastapi import APIRouter, HTTPException, Response, status

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import ConfigurationError, PlanningError, VerificationError
from airflow_kafka_offsets.plugin.group_request import FROM_THIS_SITE, FormDep, GroupRequest, GroupRequestDep
from airflow_kafka_offsets.plugin.group_targets import verify_command
from airflow_kafka_offsets.plugin.problems import original, problem
from airflow_kafka_offsets.plugin.readings import Readings
from airflow_kafka_offsets.plugin.sources import Source
from airflow_kafka_offsets.sinks.fan_out import of_tables
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.verification.verify import verify

log = logging.getLogger(__name__)

AT_ONCE = 2
"""How many run at a time in a process."""

KEPT = 10
"""How many results of a group the page shows."""

_LOST_AFTER = timedelta(hours=1)
"""After which one of another process is taken for lost."""

_STARTED, _ENDED = "kafka_offsets.verify", "kafka_offsets.verified"
_VIOLATIONS, _CHARACTERS = 20, 500


router = APIRouter()


@dataclass(frozen=True, slots=True)
class Verification:
    """A verification, as the audit log has it.

    :param who: the user who started it
    :param outcome: running, proved, wrong, failed or lost
    :param text: what was proved, or why it failed
    :param violations: the first of what is wrong
    """

    who: str
    started_at: datetime
    ended_at: datetime | None
    outcome: str
    text: str = ""
    violations: Sequence[str] = ()

    @property
    def is_running(self) -> bool:
        return self.outcome == "running"


class Verifications:
    """Those that this process runs, and the results of all.

    :param readings: opens the databases
    """

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self._process = uuid.uuid4().hex

    def start(self, source: Source, group_id: str, sink: Sink, *, who: str, dag_id: str | None) -> None:
        """Start one in a thread.

        :param dag_id: whose audit log has it
        :raises HTTPException: 409 if one of this group runs, or too many others do
        """
        number = uuid.uuid4().hex
        with self._lock:
            if any(each.is_running for each in self.latest(source, group_id, 1)):
                raise HTTPException(status.HTTP_409_CONFLICT, "A verification of this group is running")
            if len(self._running) >= AT_ONCE:
                what = f"{AT_ONCE} verifications are running; start this one when one of them has ended"
                raise HTTPException(status.HTTP_409_CONFLICT, what)
            self._running.add(number)
        try:
            _write(_STARTED, source, group_id, who, dag_id, number=number, process=self._process)
        except Exception:
            self._running.discard(number)
            raise

        def run() -> None:
            try:
                result = self._verify(source, group_id, sink)
                _write(_ENDED, source, group_id, who, dag_id, number=number, **result)
            finally:
                self._running.discard(number)

        threading.Thread(target=run, name="kafka-offsets-verify", daemon=True).start()

    def latest(self, source: Source, group_id: str, limit: int = KEPT) -> list[Verification]:
        """Return the latest verifications of a group, the newest first."""
        of_group = Log.extra.startswith(_of_group(source, group_id), autoescape=True)
        query = sa.select(Log.event, Log.dttm, Log.owner, Log.extra).where(Log.event.in_((_STARTED, _ENDED)), of_group)
        with create_session() as session:
            rows: Sequence[Any] = session.execute(query.order_by(Log.id.desc()).limit(2 * limit)).all()
        ended = {}
        found = []
        for event, at, who, extra in rows:
            content = json.loads(extra or "{}")
            if event == _ENDED:
                ended[content["number"]] = (at, content)
                continue
            ended_at, result = ended.get(content["number"], (None, None))
            if result is None:
                result = {"outcome": "running" if self._may_run(content, at) else "lost"}
            values = {name: result[name] for name in ("outcome", "text", "violations") if name in result}
            found.append(Verification(who, at, ended_at, **values))
        return found[:limit]

    def _may_run(self, content: dict[str, Any], started_at: datetime) -> bool:
        number: str = content["number"]
        if content["process"] == self._process:
            return number in self._running
        return datetime.now(UTC) - started_at < _LOST_AFTER

    def _verify(self, source: Source, group_id: str, sink: Sink) -> dict[str, Any]:
        try:
            with self._readings.ledger(*source) as ledger:
                coverage = verify(group_id, sink=sink, engine=ledger.engine, tables=ledger.tables)
        except VerificationError as error:
            violations = [shortened(each.words, _CHARACTERS) for each in error.violations[:_VIOLATIONS]]
            return {"outcome": "wrong", "text": f"{error.count:,} found", "violations": violations}
        except Exception as error:
            if isinstance(error, (ConfigurationError, PlanningError)) and original(error) is error:
                return {"outcome": "failed", "text": shortened(str(error), _CHARACTERS)}
            # The traceback may hold values of connections.
            log.warning("Group %r of %s was not verified: %s", group_id, source, type(error).__name__)
            return {"outcome": "failed", "text": problem(original(error), source.conn_id).summary}
        text = f"{coverage.text}."
        if not coverage.output_checked:
            text += " The rows of the table were not checked: they have no batch id."
        return {"outcome": "proved", "text": text}


def _of_group(source: Source, group_id: str) -> str:
    """Return how the text of a row begins, for its group."""
    return json.dumps({"group": [*source, group_id]})[:-1] + ","


def _write(event: str, source: Source, group_id: str, who: str, dag_id: str | None, **content: Any) -> None:
    extra = json.dumps({"group": [*source, group_id], **content})
    with create_session() as session:
        session.add(Log(event=event, owner=who, extra=extra, dag_id=dag_id))


@router.get("/verification")
def verification_page(request: GroupRequestDep) -> Response:
    """Return the results of a group, the newest first."""
    target = request.find(request.target)
    return request.page(
        "verification.html",
        target=target,
        results=_verifications(request).latest(request.source, request.group_id),
        command=verify_command(request.source, request.group_id, target) if not target.can_verify else None,
        verifiers=[task for task in target.verifiers if task[0] in request.caller.readable_dags],
        ticket=request.issue("verify") if request.edits else None,
    )


@router.post("/verification", dependencies=[FROM_THIS_SITE])
def start(request: GroupRequestDep, form: FormDep) -> Response:
    """Start a verification, and lead to its page."""
    target = request.find(request.target)
    request.check_edits("Who starts a verification")
    request.redeem(form, "verify")
    if not target.can_verify:
        raise HTTPException(status.HTTP_409_CONFLICT, f"{target.unknown}. Verify with KafkaVerifyOperator")
    who, dag_id = str(request.caller.user.get_name()), min(request.edited_dags, default=None)
    sink = of_tables(target.tables)
    _verifications(request).start(request.source, request.group_id, sink, who=who, dag_id=dag_id)
    return request.redirect("verification")


def _verifications(request: GroupRequest) -> Verifications:
    verifications: Verifications = request.http.app.state.verifications
    return verifications
