"""What all commands share: how a failure is reported, and the database and the cluster of their connections.

Arguments are in `arguments`, printing is in `output`.
"""

from __future__ import annotations

import re
import sys
import traceback
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from airflow_kafka_offsets.cli.connections import Connections
from airflow_kafka_offsets.cli.output import note
from airflow_kafka_offsets.core.offsets import Scope, parse_scope
from airflow_kafka_offsets.core.threads import in_background
from airflow_kafka_offsets.database.errors import database_message, is_outage, is_refused_login
from airflow_kafka_offsets.escaping import printable
from airflow_kafka_offsets.exceptions import ConfigurationError, DatabaseUnavailableError, KafkaOffsetsError
from airflow_kafka_offsets.ledger.tables import Ledger, Tables

if TYPE_CHECKING:
    from airflow_kafka_offsets.kafka.cluster import Cluster
    from airflow_kafka_offsets.replaying.bounds import OffsetBounds

KAFKA_TIMEOUT_SECONDS = 10.0
"""How long a command waits for an answer of Kafka: less than a task, since a person waits for the command."""

DATABASE_TIMEOUT_SECONDS = 10.0
"""How long a command waits for a connection to the database."""

# As the options of Kafka's tool have partitions, or as the log has a range.
_OFFSETS = re.compile(r"([^:\[]+)(?::(\d+):(\d+)-(\d+)|\[(\d+)\] (\d+)\.\.(\d+))", re.ASCII)


class _UsageError(Exception):
    """An option has a value that it cannot have."""


@contextmanager
def reported(command: str, connections: Connections) -> Iterator[None]:
    """Report a failure in one line on standard error, an error that nobody foresaw with its traceback, and exit with 1,
    or with 2 for a usage error.

    :param command: what the line begins with
    """
    try:
        yield
    except _UsageError as error:
        note(f"{command}: {one_line(error)}")
        raise SystemExit(2) from error
    except Exception as error:
        text = describe_error(error, connections)
        # The traceback of an error that nobody foresaw may quote what state tables contain.
        said = printable(traceback.format_exc(), keep="\n") if text is None else f"{command}: {one_line(text)}"
        raise SystemExit(said) from error


@contextmanager
def usage() -> Iterator[None]:
    """Report a value that an option cannot have as a usage error, as argparse does: the command exits with 2.

    Use it around code that looks at the arguments only.
    """
    try:
        yield
    except ConfigurationError as error:
        raise _UsageError(str(error)) from error


def describe_error(error: Exception, connections: Connections) -> str | None:
    """Return what happened and what to do, without statements, values and URLs; None where nobody foresaw the error."""
    if isinstance(error, DBAPIError) and is_refused_login(error):
        return f"the database refuses the login: {database_message(error)}. Correct {connections.database}"
    if isinstance(error, DBAPIError) and not error.statement and is_outage(error):
        return f"the database cannot be asked: {database_message(error)}; {_check_database(connections)}"
    if isinstance(error, DBAPIError):
        return f"the database reports: {database_message(error)}. {connections.doctor} shows what is missing"
    if isinstance(error, SQLAlchemyError):
        return f"the database connection cannot be used ({type(error).__name__}): check {connections.database}"
    if isinstance(error, UnicodeEncodeError):
        return f"an argument or a stored text has characters that are not of {error.encoding}: correct it"
    if isinstance(error, ImportError):
        return f"{error}: install what the database needs, for example the extra [postgres]"
    return str(error) if isinstance(error, KafkaOffsetsError) else connections.describe(error)


def _check_database(connections: Connections) -> str:
    return f"check whether it runs and can be reached, and {connections.database}"


@contextmanager
def database(args: Namespace) -> Iterator[Ledger]:
    """Open the database of the arguments for a block, with the state tables of `--schema` and `--prefix`.

    :raises DatabaseUnavailableError: it does not answer in time
    """
    with args.connections.open_database() as engine:
        if engine.dialect.name != "sqlite":
            # The engine keeps the connection for the command. Drivers wait without end for a server that is frozen.
            try:
                in_background(lambda: engine.connect().close()).result(DATABASE_TIMEOUT_SECONDS)
            except TimeoutError:
                raise DatabaseUnavailableError(
                    f"The database does not answer within {DATABASE_TIMEOUT_SECONDS:g} s: "
                    f"{_check_database(args.connections)}"
                ) from None
            except DBAPIError as error:
                # The block meets it again; `init --show-sql` can do without the database.
                if not is_outage(error):
                    raise
        yield Ledger(engine, Tables.of(args.schema, args.prefix))


@usage()
def check_change(args: Namespace, *, needs_reason: bool = True) -> None:
    """Check, before anything is asked, that a change has a reason, and a terminal to confirm it on or `--yes`."""
    if needs_reason and not (args.reason or "").strip():
        raise ConfigurationError("A change needs --reason: why, for the history")
    if not args.yes and not sys.stdin.isatty():
        raise ConfigurationError("Standard input is no terminal, on which the change could be confirmed: add --yes")


def confirm(args: Namespace, *consequences: str) -> None:
    """Say what a command is about to change, and ask on a terminal whether to.

    :raises ConfigurationError: the user does not want it
    """
    for consequence in consequences:
        note(consequence)
    if args.yes:
        return
    sys.stderr.write("Continue? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ConfigurationError("Not confirmed: nothing was changed")


def cluster(args: Namespace) -> Cluster:
    """Return the cluster of the arguments."""
    # Commands that ask the database only do without Kafka's client.
    from airflow_kafka_offsets.kafka.cluster import Cluster

    config = args.connections.kafka_config()
    return Cluster(config, isolation_level=args.isolation_level, timeout=KAFKA_TIMEOUT_SECONDS)


@usage()
def scope(args: Namespace) -> Scope:
    """Return the topics and partitions of `--topic`; without it, all topics."""
    return parse_scope(args.topics or ())


@usage()
def whole_topics(args: Namespace, instead: str) -> list[str]:
    """Return the topics of `--topic`, for a command that cannot take some of their partitions.

    :param instead: what the user may give instead of a partition
    :raises ConfigurationError: partitions are named
    """
    given = parse_scope(args.topics or ())
    if partial := [topic for topic, partitions in given.items() if partitions is not None]:
        raise ConfigurationError(f"--topic takes whole topics here, such as --topic {partial[0]}; {instead}")
    return list(given)


def offset_bounds(texts: Sequence[str]) -> OffsetBounds:
    """Return the offsets of `--offsets`.

    :raises ConfigurationError: one is of another form, or a partition is named twice
    """
    from airflow_kafka_offsets.replaying.bounds import OffsetBounds

    offsets = []
    for text in texts:
        match = _OFFSETS.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                "--offsets must be topic:partition:start-end, or 'topic[partition] start..end' as in logs, the end "
                f"exclusive; got {text!r}"
            )
        offsets.append(dict(zip(("topic", "partition", "start", "end"), filter(None, match.groups()), strict=True)))
    bounds = OffsetBounds(offsets)
    bounds.read()  # raises for a partition that is named twice
    return bounds


def one_line(text: object) -> str:
    """Return a text without line breaks, and without other characters that are not visible."""
    return printable(" ".join(str(text).split()))
