"""Rights to tables, checked before work is done that would be lost without them."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from airflow_kafka_offsets.database.errors import is_outage
from airflow_kafka_offsets.database.identifiers import without_placeholders
from airflow_kafka_offsets.database.mysql import error_number, is_mysql
from airflow_kafka_offsets.exceptions import TargetError

# Of MySQL: a command is denied for the table. That it is denied for a column says that some columns have the right.
_COMMAND_DENIED = 1142


def check_rights(conn: Connection, table: sa.Table, rights: Sequence[str], what: str) -> None:
    """Check that the user has some rights to a table.

    :param rights: of SELECT, INSERT, UPDATE and DELETE; for UPDATE, on MySQL, the table needs a column
    :param what: what the user may not do without them, for the message; may name `{lacking}` and `{table}`
    :raises TargetError: names the statement that grants what is lacking
    """
    if is_mysql(conn.dialect):
        lacking = [right for right in rights if _is_denied(conn, table, right)]
    elif conn.dialect.name == "postgresql":
        name = _quoted(conn, table)
        lacking = [right for right in rights if not conn.scalar(sa.select(sa.func.has_table_privilege(name, right)))]
    else:
        return
    if lacking:
        raise TargetError(
            f"User {conn.engine.url.username!r} may not "
            f"{what.format(lacking=' and '.join(lacking), table=table.fullname)}; "
            f"GRANT {', '.join(lacking)} ON {_quoted(conn, table)} TO the user"
        )


def _is_denied(conn: Connection, table: sa.Table, right: str) -> bool:
    """Return whether MySQL denies a statement; EXPLAIN needs the rights of what it explains, and counts those of roles
    and databases.

    :raises DBAPIError: the database failed
    """
    name = _quoted(conn, table)
    formatted = without_placeholders(conn.dialect).identifier_preparer.format_column
    column = next(map(formatted, table.columns), "")
    statement = {
        "SELECT": f"SELECT 1 FROM {name} LIMIT 0",  # noqa: S608 - quoted
        "INSERT": f"INSERT INTO {name} () VALUES ()",  # noqa: S608
        "UPDATE": f"UPDATE {name} SET {column} = DEFAULT WHERE FALSE",  # noqa: S608
        "DELETE": f"DELETE FROM {name} WHERE FALSE",  # noqa: S608
    }[right]
    try:
        conn.exec_driver_sql(f"EXPLAIN {statement}".replace("%", "%%")).close()
    except DBAPIError as error:
        if is_outage(error):
            raise
        # Any other error is of a user who may: a column without a default has no value.
        return error_number(error.orig) == _COMMAND_DENIED
    return False


def _quoted(conn: Connection, table: sa.Table) -> str:
    return without_placeholders(conn.dialect).identifier_preparer.format_table(table)
