"""Tables as the database has them. To look one up takes a dozen queries, which a transaction needs to make once."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Transaction

_found: WeakKeyDictionary[Transaction, dict[tuple[str, str | None], sa.Table]] = WeakKeyDictionary()


def reflected(conn: Connection, name: str, schema: str | None) -> sa.Table | None:
    """Return a table as the transaction of a connection first saw it; None where there is none."""
    transaction = conn.get_transaction()
    known = {} if transaction is None else _found.setdefault(transaction, {})
    if (name, schema) not in known:
        try:
            table = sa.Table(name, sa.MetaData(), schema=schema, autoload_with=conn, resolve_fks=False)
        except sa.exc.NoSuchTableError:
            return None
        known[name, schema] = table
    return known[name, schema]


def forget_reflected(conn: Connection) -> None:
    """Look all tables up again: the transaction changed one, or waited for another that may have."""
    if (transaction := conn.get_transaction()) is not None:
        _found.pop(transaction, None)
