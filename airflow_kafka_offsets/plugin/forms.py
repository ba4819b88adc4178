"""Forms that change something: who may send them, from where, and what they may hold. A GET changes nothing.

A form holds a ticket that the server signed: for one user, one group and one purpose. A page of another origin has
none, and the browser says where a form is from.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
import time
import zlib
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

from airflow.configuration import conf
from fastapi import Depends, HTTPException, Request, status
from starlette.datastructures import FormData

from airflow_kafka_offsets.plugin.access import Caller
from airflow_kafka_offsets.plugin.sources import Source

TICKET_SECONDS = 3600
"""How long a form can be sent after it was shown."""

_MOST_BYTES = 4_000_000


class Ticket(NamedTuple):
    """What a form may do.

    :param number: no other form has it
    """

    number: str
    content: Any


def issue(purpose: str, caller: Caller, source: Source, group_id: str, content: Any = None) -> str:
    """Return the text of a ticket.

    :param content: what JSON can hold; nobody can change it, and the user can read it
    """
    written = json.dumps([int(time.time()), secrets.token_hex(8), content], separators=(",", ":")).encode()
    text = base64.urlsafe_b64encode(zlib.compress(written)).decode()
    return f"{text}.{_signature(purpose, caller, source, group_id, text)}"


def redeem(text: str, purpose: str, caller: Caller, source: Source, group_id: str) -> Ticket:
    """Return what a ticket holds.

    :raises HTTPException: 403 if it is not of this user, group and purpose, or too old
    """
    written, _, signature = text.rpartition(".")
    expected = _signature(purpose, caller, source, group_id, written)
    if hmac.compare_digest(signature.encode(), expected.encode()):
        issued, number, content = json.loads(zlib.decompress(base64.urlsafe_b64decode(written)))
        if time.time() - issued <= TICKET_SECONDS:
            return Ticket(number, content)
    raise HTTPException(
        status.HTTP_403_FORBIDDEN,
        "This form is not yours, or was shown more than an hour ago: open it again. Nothing was done",
    )


def _signature(purpose: str, caller: Caller, source: Source, group_id: str, text: str) -> str:
    key = hmac.digest(
        conf.get_mandatory_value("api", "secret_key").encode(), b"airflow-kafka-offsets forms", hashlib.sha256
    )
    of = [purpose, str(caller.user.get_id()), [*source], group_id, text]
    return hmac.new(key, json.dumps(of).encode(), hashlib.sha256).hexdigest()


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
    if int(request.headers.get("content-length") or _MOST_BYTES + 1) > _MOST_BYTES:
        raise HTTPException(status.HTTP_413_CONTENT_TOO_LARGE, "The form is too large")
    return await request.form(max_files=0, max_fields=50)


FormDep = Annotated[FormData, Depends(_form)]


def field(form: FormData, name: str) -> str:
    """Return a field of a form without the blanks around it; empty where it is missing."""
    value = form.get(name)
    return value.strip() if isinstance(value, str) else ""
