"""A request for a page of one group: which group the URL names, whether the user may see it, what answers have in
common, and forms that change something: from where they are sent, and what they may hold. A GET changes nothing.

A form holds a ticket that the server signed: for one user, one group and one purpose. A page of another origin has
none, and the browser says where a form is from.
"""

# No annotations of the future: as text, FastAPI of Airflow 3.1 could not read those of a class.

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Set
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

from airflow.configuration import conf
from fastapi import Depends, HTTPException, Query, Request, Response, status
from fastapi.responses import HTMLResponse, RedirectResponse
from itsdangerous import BadData, URLSafeTimedSerializer
from sqlalchemy.engine import Connection
from starlette.datastructures import FormData

from airflow_kafka_offsets.core.text import can_be_stored
from airflow_kafka_offsets.ledger.overview import GroupSummary, group_summaries
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.plugin.access import CallerDep, not_found
from airflow_kafka_offsets.plugin.group_targets import GroupTarget, group_target
from airflow_kafka_offsets.plugin.pages import ReadingsDep
from airflow_kafka_offsets.plugin.problems import problem
from airflow_kafka_offsets.plugin.rendering import Links, page
from airflow_kafka_offsets.plugin.sources import LoadingDags, Source

T = TypeVar("T")

_SECONDS = 5.0
"""How long a page of a group waits for its database."""

_SOURCES_SECONDS = 1.0

TICKET_SECONDS = 3600
"""How long a form can be sent after it was shown."""

_MOST_BYTES = 4_000_000

_FORM = "application/x-www-form-urlencoded"


class GroupRequest:
    """A request, with the user who asks and the group that the URL names.

    :ivar now: the database's time, once `find` has read the group
    :ivar summary: the group, once `find` has read it
    """

    now: datetime
    summary: GroupSummary

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
        self.http = http

    def find(self, read: Callable[[Connection, Tables], T]) -> T:
        """Read the group, if the user may see it, and return what else is read of it.

        :param read: reads in the same connection
        :raises HTTPException: 404 for a group that does not exist or that the user may not see, 503 without an answer
            of the database
        """
        discovery = self.readings.sources(time.monotonic() + _SOURCES_SECONDS).get(self.source)
        unread = "" if self.readings.has_dags else ", or the server has just started and knows no DAG yet: try again"
        missing = not_found(f"There is no group {self.group_id!r} in {self.source}, or you may not see it{unread}")
        # An URL must not have the server open any connection.
        if not can_be_stored(self.group_id) or discovery is None or not self.caller.sees_source(self.source, discovery):
            raise missing

        def work(ledger: Ledger) -> tuple[datetime, GroupSummary, T]:
            with ledger.connect() as conn:
                now, summaries = group_summaries(conn, ledger.tables, [self.group_id])
                # The user is asked about before anything else is read.
                if not summaries or not self.sees(summaries[0]):
                    raise missing
                return now, summaries[0], read(conn, ledger.tables)

        try:
            self.now, self.summary, found = self.readings.run(self.source, work, _SECONDS)
        except HTTPException:
            raise
        except Exception as error:
            what = self.caller.text(problem(error, self.source.conn_id))
            raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, what) from error
        return found

    def check_edits(self, who: str) -> None:
        """Check that the user may edit a DAG that loads the group.

        :param who: the subject of the message
        :raises HTTPException: 403
        """
        if not self.edits:
            raise HTTPException(status.HTTP_403_FORBIDDEN, f"{who} needs the right to edit a DAG that loads the group")

    @property
    def edits(self) -> bool:
        """Return whether the user may edit a DAG that loads the group."""
        return bool(self.edited_dags)

    @property
    def edited_dags(self) -> list[str]:
        """Return the DAGs that load the group, and that the user may edit."""
        return self.caller.edited_dags(self.source, self._dag_ids(self.summary))

    @property
    def sees_records(self) -> bool:
        """Return whether the user may see what dead letters of the group hold."""
        return self.caller.sees_records(self.source, self._dag_ids(self.summary))

    def sees(self, group: GroupSummary) -> bool:
        """Return whether the user may see a group of the same state tables."""
        return self.caller.sees_group(self.source, self._loading.naming(self.source, group))

    def _dag_ids(self, group: GroupSummary) -> Set[str]:
        return self._loading.of(self.source, group)

    @cached_property
    def _loading(self) -> LoadingDags:
        return self.readings.loading(0.0)

    def target(self, conn: Connection, tables: Tables) -> GroupTarget:
        """Return what the group loads into."""
        return group_target(conn, tables, self.source, self.group_id, self.readings.dags(0.0))

    def issue(self, purpose: str, content: Any = None) -> str:
        """Return the text of a ticket for a form.

        :param content: what JSON can hold; nobody can change it, and the user can read it
        """
        return str(self._tickets(purpose).dumps([secrets.token_hex(8), content]))

    def redeem(self, form: FormData, purpose: str) -> tuple[str, Any]:
        """Return the number of a form's ticket, which no other form has, and what it holds.

        :raises HTTPException: 403 if it is not of this user, group and purpose, or too old
        """
        try:
            number, content = self._tickets(purpose).loads(field(form, "ticket"), max_age=TICKET_SECONDS)
        except BadData:
            raise HTTPException(
                status.HTTP_403_FORBIDDEN,
                "This form is not yours, or was shown more than an hour ago: open it again. Nothing was done",
            ) from None
        return number, content

    def _tickets(self, purpose: str) -> URLSafeTimedSerializer:
        of = ["airflow-kafka-offsets forms", purpose, str(self.caller.user.get_id()), [*self.source], self.group_id]
        key = conf.get_mandatory_value("api", "secret_key")
        return URLSafeTimedSerializer(key, json.dumps(of), signer_kwargs={"digest_method": hashlib.sha256})

    def page(self, template: str, status_code: int = 200, **values: Any) -> HTMLResponse:
        """Return a rendered template; the group is `named` in it, and `now` the time at which it was read."""
        return page(self.http, template, status_code, named=self, now=self.now, **values)

    def redirect(self, path: str, **more: Any) -> Response:
        """Lead to another page of the group."""
        url = Links(self.http).page(path, self.source, self.group_id, **more)
        return RedirectResponse(url, status.HTTP_303_SEE_OTHER)


GroupRequestDep = Annotated[GroupRequest, Depends()]


def _from_this_site(request: Request) -> None:
    """Refuse a form of another site: the browser says where it is from, and a page cannot change that.

    :raises HTTPException: 403
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        is_ours = site == "same-origin"
    else:
        # Browsers before 2023, and those that reach Airflow without TLS.
        is_ours = origin is not None and urlsplit(origin).netloc == request.headers.get("host")
    if not is_ours:
        raise HTTPException(status.HTTP_403_FORBIDDEN, "A form of another site is not accepted. Nothing was done")


FROM_THIS_SITE = Depends(_from_this_site)
"""The dependency of every route that is no GET."""


async def _form(request: Request) -> FormData:
    # A form of several parts names the encodings of these, some of which take time by the square of their length.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        raise HTTPException(status.HTTP_415_UNSUPPORTED_MEDIA_TYPE, f"A form of the type {_FORM} is expected")
    length = request.headers.get("content-length", str(_MOST_BYTES + 1))
    if not (length.isascii() and length.isdecimal()):
        raise HTTPException(status.HTTP_400_BAD_REQUEST, "Content-Length is no number of bytes")
    if int(length[:20]) > _MOST_BYTES:
        raise HTTPException(status.HTTP_413_CONTENT_TOO_LARGE, "The form is too large")
    return await request.form(max_files=0, max_fields=50)


FormDep = Annotated[FormData, Depends(_form)]


def field(form: FormData, name: str) -> str:
    """Return a field of a form without the blanks around it; empty where it is missing.

    :raises HTTPException: 400 for a character that no database takes
    """
    value = form.get(name)
    text = value.strip() if isinstance(value, str) else ""
    if not can_be_stored(text):
        raise HTTPException(status.HTTP_400_BAD_REQUEST, f"The form has a character in {name} that no database takes")
    return text
