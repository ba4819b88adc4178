"""The names of targets as the history has them: with the schema, where the user named one."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine


def spellings(bind: Connection | Engine, name: str) -> tuple[str, ...]:
    """Every name that is the same table's: with the connection's default schema, and without it.

    :param name: as `SqlTable.name` has it
    """
    default = sa.inspect(bind).default_schema_name
    if not default:
        return (name,)
    return (name, name.removeprefix(f"{default}.") if name.startswith(f"{default}.") else f"{default}.{name}")
