"""Rights to tables, checked before work is done that would be lost without them."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.database.identifiers import without_placeholders
from airflow_kafka_offsets.exceptions import TargetError


def check_rights(conn: Connection, table: sa.Table, rights: Sequence[str], what: str) -> None:
    """Check that the user has some rights to a table.

    :param what: what the user may not do without them, for the message; may name `{lacking}` and `{table}`
    :raises TargetError: names the statement that grants what is lacking
    """
    if conn.dialect.name != "postgresql":
        return
    name = without_placeholders(conn.dialect).identifier_preparer.format_table(table)
    if lacking := [right for right in rights if not conn.scalar(sa.select(sa.func.has_table_privilege(name, right)))]:
        raise TargetError(
            f"User {conn.engine.url.username!r} may not {what.format(lacking=' and '.join(lacking), table=table.fullname)}; "
            f"GRANT {', '.join(lacking)} ON {name} TO the user"
        )
