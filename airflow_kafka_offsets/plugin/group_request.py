"""A request for a page of one group: which group the URL names, whether the user may see it, and what answers have in
common.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from airflow.sdk import conf
from fastapi import Depends, HTTPException, Query, Request, Response, status
from fastapi.responses import HTMLResponse, RedirectResponse
from sqlalchemy.engine import Connection
from starlette.datastructures import FormData

from airflow_kafka_offsets.ledger.overview import GroupSummary, group_summaries
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.plugin import forms
from airflow_kafka_offsets.plugin.access import CallerDep, not_found
from airflow_kafka_offsets.plugin.group_targets import GroupTarget, group_target
from airflow_kafka_offsets.plugin.pages import ReadingsDep
from airflow_kafka_offsets.plugin.problems import problem
from airflow_kafka_offsets.plugin.rendering import Links, page
from airflow_kafka_offsets.plugin.sources import Source

T = TypeVar("T")

_SECONDS = 5.0
"""How long a page of a group waits for its database."""

_SOURCES_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """A group that the user may see.

    :param now: the database's time
    :param more: what was read with it
    """

    now: datetime
    summary: GroupSummary
    more: T


class GroupRequest:
    """A request, with the user who asks and the group that the URL names."""

    def __init__(
        self,
        http: Request,
        caller: CallerDep,
        readings: ReadingsDep,
        conn_id: Annotated[str, Query(max_length=250)],
        group: Annotated[str, Query(max_length=250)],
        schema: Annotated[str | None, Query(max_length=250)] = None,
        prefix: Annotated[str, Query(max_length=250)] = "",
    ) -> None:
        self.caller, self.readings = caller, readings
        self.source, self.group_id = Source(conn_id, schema or None, prefix), group
        self._http = http

    def find(self, read: Callable[[Connection, Tables], T]) -> Found[T]:
        """Read the group, and return it if the user may see it.

        :param read: reads more in the same connection
        :raises HTTPException: 404 for a group that does not exist or that the user may not see, 503 without an answer
            of the database
        """
        missing = not_found(f"There is no group {self.group_id!r} in {self.source}, or you may not see it")
        discovery = self.readings.sources(time.monotonic() + _SOURCES_SECONDS).get(self.source)
        # An URL must not have the server open any connection.
        if discovery is None or not self.caller.sees_source(self.source, discovery):
            raise missing

        def work(conn: Connection, tables: Tables) -> Found[T] | None:
            now, summaries = group_summaries(conn, tables, [self.group_id])
            # The user is asked about before anything else is read.
            if not summaries or not self.caller.sees_group(self.source, summaries[0]):
                return None
            return Found(now, summaries[0], read(conn, tables))

        try:
            found = self.readings.run(self.source, work, _SECONDS)
        except HTTPException:
            raise
        except Exception as error:
            what = self.caller.text(problem(error, self.source.conn_id))
            raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, what) from error
        if found is None:
            raise missing
        return found

    def check_edits(self, found: Found[Any], who: str) -> None:
        """Check that the user may edit a DAG that loads the group.

        :param who: the subject of the message
        :raises HTTPException: 403
        """
        if not self.edits(found):
            raise HTTPException(status.HTTP_403_FORBIDDEN, f"{who} needs the right to edit a DAG that loads the group")

    def edits(self, found: Found[Any]) -> bool:
        """Return whether the user may edit a DAG that loads the group."""
        return self.caller.edits_group(self.source, found.summary)

    def target(self, conn: Connection, tables: Tables) -> GroupTarget:
        """Return what the group loads into."""
        return group_target(conn, tables, self.source, self.group_id, self.readings.dags(0.0))

    def issue(self, purpose: str, content: Any = None) -> str:
        """Return a ticket for a form; see `forms.issue`."""
        return forms.issue(purpose, self.caller, self.source, self.group_id, content)

    def redeem(self, form: FormData, purpose: str) -> forms.Ticket:
        """Return what the ticket of a form holds; see `forms.redeem`."""
        return forms.redeem(forms.field(form, "ticket"), purpose, self.caller, self.source, self.group_id)

    def page(self, template: str, status_code: int = 200, **values: Any) -> HTMLResponse:
        """Return a rendered template; the group is `named` in it."""
        return page(self._http, template, status_code, named=self, **values)

    def redirect(self, path: str, **more: Any) -> Response:
        """Lead to another page of the group."""
        url = Links(self._http).page(path, self.source, self.group_id, **more)
        return RedirectResponse(url, status.HTTP_303_SEE_OTHER)


GroupRequestDep = Annotated[GroupRequest, Depends()]


def rewinds_are_on() -> bool:
    """Return whether the deployment wants rewinds in the web interface."""
    return bool(conf.getboolean("kafka_offsets", "rewind_in_web_interface", fallback=True))
