"""The names of targets in the history: of tables, of other targets, and of several; and which names mean one target.

A table of the database of the positions has its own name, with its schema, or without it where that is the one of the
state tables: a name means the same in every session, whatever its default schema is. Any other target has a name such
as `kind://name`.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_kafka_offsets.core.text import can_be_stored
from airflow_kafka_offsets.sinks.sink import DatabaseTable

if TYPE_CHECKING:
    import sqlalchemy as sa
    from sqlalchemy.engine import Connection
    from sqlalchemy.engine.reflection import Inspector

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

    :param batches: the state table `offset_batches`, in whose schema a name without one is
    """

    def __init__(self, conn: Connection, batches: sa.Table) -> None:
        self._conn, self._batches = conn, batches
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
            each.startswith(_FUNCTION) or self.is_gone(each) for each in (*targets_in(name), *targets_in(target))
        )

    def is_renamed(self, name: str, target: str, known: Iterable[str]) -> bool:
        """Return whether exactly one table of a name may have been renamed to a target.

        :param known: the names that the history has; none of them is that of the target
        """
        if any(each.startswith(_FUNCTION) for each in (*targets_in(name), *targets_in(target))):
            return True
        gone = [*filter(self.is_gone, targets_in(name))]
        return len(gone) == 1 and all(self.shared(each, target) is None for each in known)

    def renamed(self, name: str, old: str, new: str) -> str:
        """Return a name with another one in the place of one of its targets."""
        targets = [new if self.same(target, old) else target for target in targets_in(name)]
        return joined(targets) if len(targets) > 1 else targets[0]

    def existing(self, name: str) -> DatabaseTable | None:
        """Return the table that has a name; None where the database has none."""
        if not is_table(name):
            return None
        return DatabaseTable(name, self._home) if self._exists(name, self._home) else self._in_schema(name)

    def of_session(self, name: str) -> DatabaseTable:
        """Return the table that a user names: it is in a schema of the session's, unless that is the one of the state
        tables; or it is the one of a schema that is a part of the name.
        """
        found = self._in_schema(name) if "." in name and not self._exists(name, None) else None
        return found or DatabaseTable(name, schema_of_session(self._conn, name, self._batches))

    def _in_schema(self, name: str) -> DatabaseTable | None:
        # A dot may also be part of a table's name.
        schema, dot, table = name.partition(".")
        is_there = dot and schema.casefold() in self._schemas and self._exists(table, schema)
        return DatabaseTable(table, schema) if is_there else None

    def _exists(self, table: str, schema: str | None) -> bool:
        from airflow_kafka_offsets.database.tables import is_too_long

        # Databases report an error for names that they cannot keep.
        parts = (table, schema or "")
        is_name = all(can_be_stored(part) and not is_too_long(part, self._conn.dialect) for part in parts)
        return is_name and self._inspector.has_table(table, schema=schema)

    def is_gone(self, name: str) -> bool:
        """Return whether a name is that of a table which does not exist. In MySQL, it may be in a database that this
        user does not see.
        """
        from airflow_kafka_offsets.database.mysql import is_mysql

        if not is_table(name) or self.existing(name) is not None:
            return False
        schema, dot, _ = name.partition(".")
        return not (dot and is_mysql(self._conn.dialect) and schema.casefold() not in self._schemas)

    def meant(self, name: str) -> DatabaseTable:
        """Return the table that has a name, or would have it."""
        schema, dot, table = name.partition(".")
        in_schema = dot and schema in self._inspector.get_schema_names()
        return self.existing(name) or (DatabaseTable(table, schema) if in_schema else DatabaseTable(name, self._home))

    @cached_property
    def _inspector(self) -> Inspector:
        import sqlalchemy as sa

        return sa.inspect(self._conn)

    @cached_property
    def _schemas(self) -> frozenset[str]:
        """The schemas of the database, in lower case: those of names may be many, and are not asked for each."""
        return frozenset(map(str.casefold, self._inspector.get_schema_names()))

    @cached_property
    def _home(self) -> str | None:
        """The schema of the state tables; None where it is that of each session, or all sessions have the same."""
        from airflow_kafka_offsets.database.mysql import is_mysql

        dialect = self._conn.dialect
        if dialect.name == "postgresql" and self._batches.schema is None:
            found: str | None = self._conn.scalar(_found_in(self._batches.name))
            return found
        return self._batches.schema if dialect.name == "postgresql" or is_mysql(dialect) else None

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
            self._known[target] = self._table_identity(target) if is_table(target) else _uri_identity(target)
        return self._known[target]

    def _table_identity(self, name: str) -> str:
        """Return schema and name by which the database identifies a table, which may not exist yet."""
        found = self.meant(name)
        schema = found.schema or self._inspector.default_schema_name or ""
        return repr((schema.lower(), found.table.lower()) if self._folds else (schema, found.table))

    @cached_property
    def _folds(self) -> bool:
        """Whether upper and lower case in the name of a table mean the same."""
        import sqlalchemy as sa

        from airflow_kafka_offsets.database.mysql import is_mysql

        dialect = self._conn.dialect
        return dialect.name == "sqlite" or (
            is_mysql(dialect) and bool(self._conn.scalar(sa.text("SELECT @@lower_case_table_names")))
        )


def _last_part(target: str) -> str:
    return target.rpartition(".")[2].casefold()


def _uri_identity(uri: str) -> str:
    scheme, _, place = uri.partition(_KIND)
    kind, plus, store = scheme.rpartition("+")
    place = os.path.realpath(place) if store == "file" else posixpath.normpath(place)
    return f"{kind}{plus}{STORE_SCHEMES.get(store, store)}{_KIND}{place}"


def _found_in(name: str) -> sa.Select[str]:
    """Select the schema of Postgres in which a session finds a name without one, or else creates it."""
    import sqlalchemy as sa

    names = sa.table("pg_class", *map(sa.column, ("relname", "relnamespace", "oid")), schema="pg_catalog")
    schemas = sa.table("pg_namespace", *map(sa.column, ("nspname", "oid")), schema="pg_catalog")
    found = (
        sa.select(schemas.c.nspname)
        .join_from(names, schemas, schemas.c.oid == names.c.relnamespace)
        .where(names.c.relname == name, sa.func.pg_catalog.pg_table_is_visible(names.c.oid))
        .scalar_subquery()
    )
    return sa.select(sa.func.coalesce(found, sa.func.current_schema()))


def schema_of_session(conn: Connection, table: str, batches: sa.Table) -> str | None:
    """Return the schema in which a session finds a table without one, or creates it; None where this is the schema of
    the state tables, or the default of every session.

    :param batches: the state table `offset_batches`
    """
    import sqlalchemy as sa

    from airflow_kafka_offsets.database.mysql import is_mysql

    if conn.dialect.name == "postgresql" and can_be_stored(table):
        found, state = conn.execute(
            sa.select(*(_found_in(name).scalar_subquery() for name in (table, batches.name)))
        ).one()
    elif is_mysql(conn.dialect):
        found = state = conn.scalar(sa.text("SELECT DATABASE()"))
    else:
        return None
    return None if found == (batches.schema or state) else found
