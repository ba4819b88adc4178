"""Templates, how values are written in them, and the static files. Everything is escaped, for HTML and to be visible;
nothing comes from another server.
"""

from __future__ import annotations

import base64
import json
from codecs import getincrementaldecoder
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from http import HTTPStatus
from importlib import resources
from typing import Any
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo

from airflow.providers.common.compat.sdk import conf
from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from airflow_kafka_offsets import __version__
from airflow_kafka_offsets.core.history import DEAD_LETTERS, DELETE, RENAME, RENAMED
from airflow_kafka_offsets.core.text import count, short_duration
from airflow_kafka_offsets.dead_letters.selection import Excerpt
from airflow_kafka_offsets.escaping import printable
from airflow_kafka_offsets.plugin.group_rows import share_level
from airflow_kafka_offsets.plugin.sources import Source
from airflow_kafka_offsets.sinks.target_names import in_words

# How many times its length a text of JSON may have on lines of its own.
_MOST_BLANKS = 8

STATIC = {
    "style.css": "text/css",
    "uPlot.min.css": "text/css",
    "page.js": "text/javascript",
    "plots.js": "text/javascript",
    "uPlot.iife.min.js": "text/javascript",
}
"""The static files, with their types."""

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'self'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Headers of every answer. Airflow shows the pages in frames of its own origin."""


def static_file(name: str) -> bytes:
    """Return a file of `STATIC`."""
    return (resources.files(__package__ or "") / "static" / name).read_bytes()


def number(value: float | None) -> str:
    """Write a number with separators."""
    return "–" if value is None else f"{value:,}"


def known(value: int | None) -> str:
    """Write an offset or a number as digits only, which can be copied."""
    return "–" if value is None else str(value)


def size(value: int | None) -> str:
    """Write a number of bytes in the largest unit that it reaches."""
    if value is None:
        return "–"
    number, unit = float(value), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        # What would be rounded to 1,000 belongs to the next unit.
        if number < 999.5:
            break
        number, unit = number / 1000, larger
    return f"{number:.0f} {unit}" if unit == "B" or number >= 9.95 else f"{number:.1f} {unit}"


_KINDS = {
    "initialize": "first positions",
    DEAD_LETTERS: "replay of dead letters",
    DELETE: "group deleted",
    RENAME: "group renamed",
    RENAMED: "group renamed",
}


def kind(batch: Mapping[str, Any]) -> tuple[str, str]:
    """Return in words what a batch did, and how: the scenario of a rewind, or the other name of a group."""
    name, scenario = batch["kind"], batch["scenario"] or ""
    return _KINDS.get(name, name), "" if scenario == name else scenario.removeprefix("renamed ").removeprefix(
        "dead letters "
    )


def duration(value: timedelta | None) -> str:
    """Write a duration with its two largest units."""
    return "–" if value is None else short_duration(value)


@cache
def time_zone() -> tzinfo | None:
    """Return the time zone of Airflow; None is that of the machine."""
    name: str = conf.get("core", "default_timezone", fallback="utc")
    if name.lower() == "utc":
        return UTC
    return None if name == "system" else ZoneInfo(name)


def zone_name() -> str:
    """Return the name by which a browser knows the time zone of Airflow; empty for that of the machine."""
    return "UTC" if (zone := time_zone()) is UTC else str(zone or "")


def instant(value: datetime | None) -> str:
    """Write an instant in Airflow's time zone."""
    if value is None:
        return "–"
    try:
        local = value.astimezone(time_zone())
    except OverflowError:
        local = value.astimezone(UTC)
    return f"{local:%Y-%m-%d %H:%M:%S %Z}"


def ago(value: datetime | None, now: datetime | None) -> str:
    """Write how long ago an instant was: in its two largest units, and in one of minutes or of seconds."""
    if value is None or now is None:
        return "–"
    text = duration(now - value)
    return f"{text.partition(' ')[0] if 'm' in text and 'h' not in text else text} ago"


def text_of(excerpt: Excerpt | None) -> tuple[str, str]:
    """Return the beginning of what a record holds as text, and as what it was written: text, JSON, Base64, null."""
    if excerpt is None:
        return "", "null"
    if isinstance(excerpt.beginning, str):
        return excerpt.beginning, "text"
    data = bytes(excerpt.beginning)
    is_cut = excerpt.length > len(data)
    try:
        # A character of several bytes may be cut: it is left out.
        text = getincrementaldecoder("utf-8")().decode(data, final=not is_cut)
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "Base64"
    if not is_cut and text[:1] in "{[":
        try:
            pretty = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pretty = ""
        # Nothing but blanks may change: not the form of a number, nor a key that is there twice. What is nested deep
        # would be mostly blanks.
        if 0 < len(pretty) < _MOST_BLANKS * len(text) and "".join(pretty.split()) == "".join(text.split()):
            return pretty, "JSON"
    return text, "text"


def headers_of(excerpt: Excerpt | None) -> list[tuple[str, str, str]]:
    """Return the names of headers, their values as text, and as what these are written; a row of what is stored if it
    is cut, or not of the form that this package writes.
    """
    if excerpt is None:
        return []
    stored = str(excerpt.beginning)
    if excerpt.length > len(stored):
        return [("(the beginning of all)", stored, "JSON")]
    rows = []
    try:
        for name, value in json.loads(stored):
            data = None if value is None else base64.b64decode(value)
            rows.append((name, *text_of(None if data is None else Excerpt(data, len(data)))))
    except (ValueError, TypeError, RecursionError):
        return [("(all)", stored, "text")]
    return rows


class Links:
    """URLs below the prefix of the app, and of Airflow's own pages."""

    def __init__(self, request: Request) -> None:
        # With the prefix that Airflow itself is served under.
        self.base = str(request.scope.get("root_path", ""))
        self.airflow = self.base.removesuffix("/kafka-offsets")

    def static(self, name: str) -> str:
        return f"{self.base}/static/{name}?v={__version__}"

    def groups(self) -> str:
        return f"{self.base}/"

    def dag(self, dag_id: str) -> str:
        """Return the URL of a DAG in Airflow."""
        return f"{self.airflow}/dags/{quote(dag_id, '')}"

    def page(self, path: str, source: Source, group: str, **more: Any) -> str:
        """Return the URL of a page of a group."""
        named = {"conn_id": source.conn_id, "schema": source.schema, "prefix": source.prefix, "group": group, **more}
        query = urlencode({key: value for key, value in named.items() if value not in (None, "")})
        return f"{self.base}/{path}?{query}"

    def of_task(self, dag_id: str, task_id: str) -> str:
        """Return the URL of a task in Airflow."""
        return f"{self.airflow}/dags/{quote(dag_id, '')}/tasks/{quote(task_id, '')}"

    def task(self, batch: Mapping[str, Any]) -> str | None:
        """Return the URL of the log of the task instance of a batch; None if no task made it."""
        dag_id, task_id, run_id = (batch[name] for name in ("dag_id", "task_id", "run_id"))
        if None in (dag_id, task_id, run_id):
            return None
        url = f"{self.airflow}/dags/{quote(dag_id, '')}/runs/{quote(run_id, '')}/tasks/{quote(task_id, '')}"
        if batch["map_index"] is not None and batch["map_index"] >= 0:
            url += f"/mapped/{batch['map_index']}"
        return f"{url}?try_number={batch['try_number']}" if batch["try_number"] else url


def _visible(value: Any) -> Any:
    """Return what a template writes for a value that is not markup."""
    return value if hasattr(value, "__html__") else printable(str(value), keep="\n\t")


_ENVIRONMENT = Environment(
    loader=PackageLoader(__package__ or ""),
    autoescape=True,
    finalize=_visible,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_ENVIRONMENT.filters |= {
    "number": number,
    "known": known,
    "size": size,
    "kind": kind,
    "targets": in_words,
    "duration": duration,
    "instant": instant,
    "ago": ago,
    "text_of": text_of,
    "headers_of": headers_of,
    "count": count,
    "level_of_share": lambda share: share_level(share).word,
}


def page(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a rendered template; `links` is in it. A page that refreshes itself asks for its block `live` alone."""
    found = _ENVIRONMENT.get_template(template)
    values = {"links": Links(request), **values}
    if request.headers.get("x-part") == "live" and "live" in found.blocks:
        return HTMLResponse("".join(found.blocks["live"](found.new_context(values))), status)
    return HTMLResponse(found.render(values), status)


def error_page(request: Request, status: int, text: str, headers: Mapping[str, str] | None) -> Response:
    """Return what a page says instead of its content, with a way back."""
    if status == HTTPStatus.UNAUTHORIZED:
        return Response(text, status, headers, "text/plain; charset=utf-8")
    answer = page(request, "error.html", status, title=_TITLES.get(status, HTTPStatus(status).phrase), text=text)
    answer.headers.update(headers or {})
    return answer


_TITLES = {403: "Not allowed", 404: "Not found", 409: "Not now", 503: "No answer", 504: "No answer yet"}
