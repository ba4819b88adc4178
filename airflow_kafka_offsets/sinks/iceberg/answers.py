"""What a server of REST catalogs may take of the load that asks it: time, and memory for its answers."""

from __future__ import annotations

import io
from functools import partial
from typing import Any
from urllib.parse import urljoin, urlsplit

from requests import ReadTimeout, Response, Session

from airflow_kafka_offsets.core.threads import in_background

SECONDS = 300.0
"""How long an answer may take, with the token that its request needs."""

MOST_BYTES = 64 << 20
"""How many an answer may have, decompressed; of one that is compressed a hundred times its bytes, and a megabyte."""

# Metadata in JSON compresses to a thirtieth; parsed, it takes fifty times its bytes.
_MOST_TIMES = 100

# In a step, of which gzip makes at most a thousand times as much.
_STEP_BYTES = 1 << 14


def bind_requests(session: Session) -> None:
    """Bound the time and the memory that the requests of a session take, by `SECONDS` and `MOST_BYTES`; requests itself
    has a limit only for each wait, and only where a caller gives it.
    """
    request = session.request

    def bound(*arguments: Any, **options: Any) -> Response:
        # The thread of an answer that does not come ends some time later.
        asked = in_background(partial(request, *arguments, **{**options, "timeout": 2 * SECONDS}))
        try:
            return asked.result(SECONDS)
        except TimeoutError:
            if asked.done():
                raise
            raise ReadTimeout(f"the answer takes more than {SECONDS:g} s") from None

    session.request = bound  # type: ignore[method-assign]
    session.headers["Accept-Encoding"] = "gzip"
    session.hooks["response"].append(_read)


def _read(response: Response, **_: Any) -> None:
    """Read the content of an answer, before requests would decompress any amount of it.

    :raises ValueError: it is too much, in an encoding that was not asked for, or leads to another host
    """
    to = urljoin(response.url, response.headers.get("Location", ""))
    if response.is_redirect and urlsplit(to).hostname != urlsplit(response.url).hostname:
        response.close()
        raise ValueError(f"{response.url} leads to another host")
    encoding = response.headers.get("Content-Encoding", "gzip").lower()
    if encoding not in ("gzip", "identity"):
        response.close()
        raise ValueError(f"{response.url} answers with the encoding {encoding[:40]!r}, which it was not asked for")
    content = bytearray()
    for part in response.raw.stream(_STEP_BYTES, decode_content=encoding == "gzip"):
        content += part
        if len(content) > min(MOST_BYTES, (1 << 20) + _MOST_TIMES * response.raw.tell()):
            response.close()
            raise ValueError(f"{response.url} answers with too many bytes: {len(content):,} and more")
    response.raw = io.BytesIO(content)
