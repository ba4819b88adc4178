"""The names of targets in the history: of tables, of other targets, and of several; and which names mean one target.

A table of the database of the positions has its own name, with or without its schema. Any other target has a name such
as `kind://name`.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_kafka_offsets.core.text import can_be_stored
from airflow_kafka_offsets.sinks.sink import DatabaseTable

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

_KIND = "://"

_SEVERAL, _AND = f"fanout{_KIND}", "+"

_FUNCTION = f"function{_KIND}"

STORE_SCHEMES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "abfs": "abfss"}
"""Other schemes of the same object stores, as their clients have them."""

# What stands for it in the name of one of several; the percent sign, too.
_QUOTED = str.maketrans({"%": "%25", "+": "%2B"})


def joined(names: Iterable[str]) -> str:
    """Return the name of several targets: the same for the same targets."""
    return _SEVERAL + _AND.join(name.translate(_QUOTED) for name in names)


def targets_in(name: str) -> list[str]:
    """Return the names of the targets that a name joins; for a single target, the name itself."""
    return [*map(unquote, name.removeprefix(_SEVERAL).split(_AND))] if name.startswith(_SEVERAL) else [name]


def in_words(name: str) -> str:
    """Return the name of a target, or of several, for people."""
    return ", ".join(targets_in(name))


def is_table(name: str) -> bool:
    """Return whether a name is that of a table of the database of the positions."""
    return _KIND not in name


class TargetNames:
    """Compares names of targets over a connection. The database is asked about each name once.

    A table may be named with or without its schema, and in upper or lower case, if its database allows this; a URI may
    have the scheme of another client of the same store.
    """

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._known: dict[str, str] = {}

    def same(self, name: str, other: str) -> bool:
        """Return whether two names mean the same target, or the same several."""
        return name == other or (self._includes(name, other) and self._includes(other, name))

    def among(self, names: Iterable[str], name: str) -> str:
        """Return the first of several names that means the same target as a name; itself where none does."""
        return next((each for each in names if self.same(each, name)), name)

    def shared(self, name: str, other: str) -> str | None:
        """Return the first target of a name that another name has, too; None where there is none."""
        return next((target for target in targets_in(name) if self._has(other, target)), None)

    def may_hold(self, target: str, name: str | None) -> bool:
        """Return whether a target may hold rows that were written into a name: a function may write anywhere, and a
        table that does not exist any more may have been renamed.
        """
        if name is None or self.shared(name, target) is not None:
            return True
        return any(
            each.startswith(_FUNCTION) or (is_table(each) and existing_table(self._conn, each) is None)
            for each in (*targets_in(name), *targets_in(target))
        )

    def is_renamed(self, name: str, target: str, known: Iterable[str]) -> bool:
        """Return whether exactly one table of a name may have been renamed to a target.

        :param known: the names that the history has; none of them is that of the target
        """
        if any(each.startswith(_FUNCTION) for each in (*targets_in(name), *targets_in(target))):
            return True
        gone = [each for each in targets_in(name) if is_table(each) and existing_table(self._conn, each) is None]
        return len(gone) == 1 and all(self.shared(each, target) is None for each in known)

    def renamed(self, name: str, old: str, new: str) -> str:
        """Return a name with another one in the place of one of its targets."""
        targets = [new if self.same(target, old) else target for target in targets_in(name)]
        return joined(targets) if len(targets) > 1 else targets[0]

    def _includes(self, name: str, other: str) -> bool:
        return all(self._has(name, target) for target in targets_in(other))

    def _has(self, name: str, target: str) -> bool:
        return any(each == target or self._is_one(each, target) for each in targets_in(name))

    def _is_one(self, target: str, other: str) -> bool:
        if is_table(target) != is_table(other):
            return False
        # Whatever their schemas are: it saves questions to the database.
        is_near = not is_table(target) or _last_part(target) == _last_part(other)
        return is_near and self._identity(target) == self._identity(other)

    def _identity(self, target: str) -> str:
        if target not in self._known:
            self._known[target] = _table_identity(self._conn, target) if is_table(target) else _uri_identity(target)
        return self._known[target]


def _last_part(target: str) -> str:
    return target.rpartition(".")[2].casefold()


def _uri_identity(uri: str) -> str:
    scheme, _, place = uri.partition(_KIND)
    kind, plus, store = scheme.rpartition("+")
    place = os.path.realpath(place) if store == "file" else posixpath.normpath(place)
    return f"{kind}{plus}{STORE_SCHEMES.get(store, store)}{_KIND}{place}"


def _table_identity(conn: Connection, name: str) -> str:
    """Return schema and name by which a database identifies a table, which may not exist yet."""
    import sqlalchemy as sa

    from airflow_kafka_offsets.database.mysql import is_mysql

    inspector = sa.inspect(conn)
    found = existing_table(conn, name)
    schema, dot, table = name.partition(".")
    if found is None:
        in_schema = dot and schema in inspector.get_schema_names()
        found = DatabaseTable(table, schema) if in_schema else DatabaseTable(name)
    schema = found.schema or _schema_on_path(conn, found.table) or inspector.default_schema_name or ""
    if conn.dialect.name == "sqlite":
        folds = True
    else:
        folds = is_mysql(conn.dialect) and bool(conn.scalar(sa.text("SELECT @@lower_case_table_names")))
    return repr((schema.lower(), found.table.lower()) if folds else (schema, found.table))


def _schema_on_path(conn: Connection, table: str) -> str | None:
    """Return the schema of Postgres in which a name without one is found; None where it is not."""
    import sqlalchemy as sa

    if conn.dialect.name != "postgresql":
        return None
    query = (
        "SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relname = :name AND pg_catalog.pg_table_is_visible(c.oid)"
    )
    found: str | None = conn.scalar(sa.text(query), {"name": table})
    return found


def existing_table(conn: Connection, name: str) -> DatabaseTable | None:
    """Return the table that has a name in the history; None where the database has none."""
    import sqlalchemy as sa

    from airflow_kafka_offsets.database.tables import is_too_long

    def exists(table: str, schema: str | None = None) -> bool:
        # Databases report an error for names that they cannot keep.
        parts = (table, schema or "")
        is_name = all(can_be_stored(part) and not is_too_long(part, conn.dialect) for part in parts)
        return is_name and inspector.has_table(table, schema=schema)

    if not is_table(name):
        return None
    inspector = sa.inspect(conn)
    if exists(name):
        return DatabaseTable(name)
    schema, dot, table = name.partition(".")
    # A dot may also be part of a table's name.
    return DatabaseTable(table, schema) if dot and exists(table, schema) else None
