"""The names of targets in the history: of tables, of other targets, and of several; and which names mean one target.

A table of the database of the positions has its own name, with or without its schema. Any other target has a name such
as `kind://name`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import unquote

from airflow_kafka_offsets.sinks.sink import DatabaseTable

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

_KIND = "://"

_SEVERAL, _AND = f"fanout{_KIND}", "+"

# What stands for it in the name of one of several; the percent sign, too.
_QUOTED = str.maketrans({"%": "%25", "+": "%2B"})


def joined(names: Iterable[str]) -> str:
    """Return the name of several targets: the same for the same targets."""
    return _SEVERAL + _AND.join(name.translate(_QUOTED) for name in names)


def targets_in(name: str) -> list[str]:
    """Return the names of the targets that a name joins; the name itself where it is of one."""
    return [*map(unquote, name.removeprefix(_SEVERAL).split(_AND))] if name.startswith(_SEVERAL) else [name]


def is_table(name: str) -> bool:
    """Return whether a name is that of a table of the database of the positions."""
    return _KIND not in name


def same_table_names(bind: Connection | Engine, name: str) -> tuple[str, ...]:
    """Return the names that mean the same target: a table has one with the connection's default schema, and one
    without it.
    """
    import sqlalchemy as sa

    default = sa.inspect(bind).default_schema_name if is_table(name) else None
    if not default:
        return (name,)
    return (name, name.removeprefix(f"{default}.") if name.startswith(f"{default}.") else f"{default}.{name}")


def shared_target(conn: Connection, name: str, other: str) -> str | None:
    """Return a target that two names have in common, of which one or both join several; None where there is none."""
    others = {alike for target in targets_in(other) for alike in same_table_names(conn, target)}
    return next((target for target in targets_in(name) if target in others), None)


def existing_table(conn: Connection, name: str) -> DatabaseTable | None:
    """Return the table that has a name in the history; None where the database has none."""
    import sqlalchemy as sa

    if not is_table(name):
        return None
    inspector = sa.inspect(conn)
    if inspector.has_table(name):
        return DatabaseTable(name)
    schema, dot, table = name.partition(".")
    # A dot may also be part of a table's name.
    return DatabaseTable(table, schema) if dot and inspector.has_table(table, schema=schema) else None
