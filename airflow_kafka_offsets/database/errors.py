"""What an error of the database means: an outage, a lost race, a missing right."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError, IntegrityError, InternalError, OperationalError

from airflow_kafka_offsets.exceptions import DatabaseUnavailableError, LedgerError

# serialization_failure and deadlock_detected; not the others of class 40, of which one leaves the outcome open.
ROLLED_BACK_STATES = ("40001", "40P01")

MYSQL_DEADLOCK = 1213

# The connection, the state of the transaction (read-only, idle for too long), a rollback, resources, a lock, the operator,
# the system. What these have in common with a value that is too long for an index is the class of the driver's error.
_OUTAGE_STATES = ("08", "25", "40", "53", "55P03", "57", "58")


STATE_RIGHTS = "SELECT, INSERT, UPDATE and DELETE on the state tables, and USAGE on the sequence of offset_batches"


def is_outage(error: DBAPIError) -> bool:
    """Whether the database could not do what was asked for a reason of its own: a later attempt may find it well."""
    if error.connection_invalidated:
        return True
    state = sqlstate(error)
    if state is not None:
        return state.startswith(_OUTAGE_STATES)
    # For SQLite's driver a wrong statement and missing rights are of the same class as a full disk.
    lasting = getattr(error.orig, "sqlite_errorname", "").startswith(("SQLITE_ERROR", "SQLITE_READONLY"))
    return isinstance(error, (OperationalError, InternalError)) and not lasting


@contextmanager
def translated_errors(
    what: str, then: str = "Run the task again: it carries on from what the ledger holds."
) -> Iterator[None]:
    """Turn an outage of the database within the block, or its refusal, into an error that says what it means.

    :param what: what could not be done, as the beginning of a sentence
    :param then: what to do about an outage
    :raises DatabaseUnavailableError: the database could not do it, for a reason that is not in the statements
    :raises LedgerError: it refuses the statements: rights are missing, or a table
    """
    try:
        yield
    except IntegrityError:
        raise  # of two that write the same row at once, one: for the caller to judge
    except DBAPIError as error:
        if not is_outage(error):
            raise LedgerError(
                f"{what}: {database_message(error)}. Who loads, replays or rewinds needs {STATE_RIGHTS}; who only looks needs SELECT. "
                "'airflow kafka-offsets doctor' tells what is missing"
            ) from error
        raise DatabaseUnavailableError(f"{what}: {database_message(error)}. {then}") from error


def database_message(error: DBAPIError) -> str:
    """What the database said, in one line, without the statement and its values."""
    return str(error.orig).strip().split("\n", maxsplit=1)[0]


def sqlstate(error: DBAPIError) -> str | None:
    """The SQLSTATE of an error, where the driver hands it on (psycopg and psycopg2 do)."""
    return getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)


def mysql_number(error: DBAPIError) -> object:
    """Return the number of a MySQL error, or None."""
    arguments = getattr(error.orig, "args", ())
    return arguments[0] if arguments else None
