"""Results of any size, read without holding them in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

_ROWS_AT_ONCE = 5_000


def stream(conn: Connection, query: sa.Select[Any]) -> Iterator[Any]:
    """Return the rows of a query as they are read; several results may be open side by side."""
    # Other drivers have one result at a time, unless the client holds all of its rows.
    options = {"yield_per": _ROWS_AT_ONCE} if conn.dialect.name in ("postgresql", "sqlite") else {}
    with conn.execute(query, execution_options=options) as result:
        yield from result
