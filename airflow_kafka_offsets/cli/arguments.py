"""Arguments that commands share. Imported whenever Airflow builds its command line, so that it must cost nothing."""

from __future__ import annotations

from argparse import ArgumentTypeError
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.cli.cli_config import ARG_OUTPUT
from airflow.cli.cli_config import Arg as AirflowArg

if TYPE_CHECKING:
    from airflow_kafka_offsets.core.start import Start


argument: Any = AirflowArg  # Airflow does not annotate it

_COMMITTED_BY = "committed-by:"


def positive(text: str) -> int:
    """A number of at least 1, for argparse."""
    # Numbers go to the database, which holds 64 bits.
    if not text.isdecimal() or len(text) > 19 or not 1 <= int(text) < 2**63 - 1:
        raise ArgumentTypeError(f"must be a whole number of at least 1, of 64 bits at most; got {text!r}")
    return int(text)


def duration(text: str) -> timedelta:
    """An ISO 8601 duration of weeks, days, hours, minutes and seconds, for argparse: `P1D`, `PT1H30M`."""
    from airflow_kafka_offsets.core.instants import duration as read

    with suppress(OverflowError):
        found = read(text)
        if found is not None:
            return found
    raise ArgumentTypeError(f"must be an ISO 8601 duration such as P1D or PT1H30M; got {text!r}")


def kafka_group(text: str) -> str:
    """The name of a consumer group of Kafka's, for argparse."""
    if not text.strip():
        raise ArgumentTypeError("must be the name of a consumer group; got an empty one")
    return text


def start(text: str) -> Start:
    """Where a load begins, for argparse: a word, an instant, a duration back from now, or the commits of a group."""
    from airflow_kafka_offsets.core.start import CommittedBy

    if text.startswith(_COMMITTED_BY):
        return CommittedBy(kafka_group(text.removeprefix(_COMMITTED_BY)))
    return duration(text) if text.startswith("P") else text


GROUP = argument(("group",), metavar="GROUP", help="the group_id of the load")

CONN_ID = argument(
    ("--conn-id",), required=True, help="the Airflow connection of the database that holds the positions"
)

SCHEMA = argument(("--schema",), default=None, help="the database schema of the state tables")

PREFIX = argument(("--prefix",), default="", help="put before the names of the state tables")

KAFKA_CONN_ID = argument(
    ("--kafka-conn-id",), default="kafka_default", help="the Airflow connection of Kafka (default: kafka_default)"
)

ISOLATION_LEVEL = argument(
    ("--isolation-level",),
    choices=("read_committed", "read_uncommitted"),
    default="read_committed",
    help="that of the load; decides where a log ends (default: read_committed)",
)

TOPICS = argument(
    ("--topic",),
    dest="topics",
    metavar="TOPIC",
    action="append",
    help="only this topic; may be given several times (default: the topics of the stored positions)",
)

START = argument(
    ("--start",),
    type=start,
    default="earliest",
    help=(
        "where a topic without a stored position begins: earliest, latest, none, a timestamp (ISO 8601), a duration back "
        "from now (PT6H), or committed-by:GROUP for the commits of a consumer group of Kafka's (default: earliest)"
    ),
)

OUTPUT = ARG_OUTPUT

DATABASE = (CONN_ID, SCHEMA, PREFIX)
"""Where the state is: every command takes these."""

LAG = (GROUP, *DATABASE, KAFKA_CONN_ID, TOPICS, START, ISOLATION_LEVEL, OUTPUT)

PLAN = (
    *LAG,
    argument(("--until",), default=None, help="load up to the first record at or after this instant (ISO 8601)"),
    argument(("--max-records",), type=positive, default=None, help="the most offsets of one batch"),
    argument(("--max-bytes",), type=positive, default=None, help="the most bytes of one batch, estimated"),
    argument(
        ("--slice-offsets",),
        type=positive,
        default=250_000,
        help="the most offsets that one Spark task reads (default: 250000)",
    ),
    argument(
        ("--on-data-loss",),
        choices=("fail", "skip"),
        default="fail",
        help="what to do about records that are gone before they were loaded (default: fail)",
    ),
)
"""The options of a load that decide what it plans, named as they are there."""

WHO = argument(("--who",), default=None, help="for the history (default: the user of this process)")

REASON = argument(("--reason",), default=None, help="for the history: why")

_MOVE = (
    GROUP,
    *DATABASE,
    KAFKA_CONN_ID,
    argument(
        ("--topic",),
        dest="topics",
        metavar="TOPIC[:PARTITION,…]",
        action="append",
        help="only this topic, or these partitions of it; may be given several times (default: all topics of the group)",
    ),
    argument(("--execute",), action="store_true", help="do it; without this, only the preview is shown"),
    WHO,
    REASON,
    argument(
        ("--abandon",),
        type=positive,
        default=None,
        metavar="BATCH",
        help="give up the group's open batch, named by its id, in the same transaction",
    ),
    argument(
        ("--replace",),
        default=None,
        metavar="TABLE",
        help="also delete the rows of this table, and the dead letters, of the offsets that will be read again",
    ),
    argument(("--table-schema",), default=None, help="the schema of that table (default: that of the connection)"),
    argument(
        ("--new-cluster",),
        action="store_true",
        help="let the group leave the Kafka cluster that its positions belong to for this one",
    ),
    ISOLATION_LEVEL,
    OUTPUT,
)
"""What moves positions."""

REWIND = (
    *_MOVE,
    argument(("--to-earliest",), action="store_true", help="to the beginning offsets"),
    argument(("--to-latest",), action="store_true", help="to the end offsets"),
    argument(("--to-current",), action="store_true", help="to where the positions are"),
    argument(("--to-offset",), default=None, metavar="OFFSET", help="to an offset"),
    argument(("--shift-by",), default=None, metavar="OFFSETS", help="by so many offsets, back where negative"),
    argument(
        ("--to-datetime",),
        default=None,
        metavar="INSTANT",
        help="to the first record at or after an instant, ISO 8601; no zone means UTC",
    ),
    argument(
        ("--by-duration",),
        default=None,
        metavar="DURATION",
        help="to the first record of the last so much time, ISO 8601: P1DT12H",
    ),
    argument(
        ("--from-file",),
        default=None,
        metavar="FILE",
        help="to the offsets of a CSV file, topic,partition,offset (-: stdin)",
    ),
    argument(("--to-batch",), default=None, metavar="BATCH", help="to the state before a batch of the history"),
    argument(
        ("--to-group",), default=None, metavar="GROUP", help="to the positions of another group of the state tables"
    ),
    argument(("--undo",), action="store_true", help="take the last rewind back"),
    argument(("--preview",), default=None, metavar="FILE", help="what a preview with --output json said (-: stdin)"),
    argument(("--new-group",), action="store_true", help="the group may be one that nothing is stored of yet"),
)

IMPORT = (
    *_MOVE,
    argument(
        ("--from-group",), type=kafka_group, required=True, metavar="KAFKA_GROUP", help="the consumer group in Kafka"
    ),
)

REPLAY = (
    GROUP,
    *DATABASE,
    KAFKA_CONN_ID,
    argument(
        ("--spark-conn-id",),
        default="spark_default",
        help="the Airflow connection of Spark (default: spark_default)",
    ),
    argument(("--topic",), dest="topics", action="append", required=True, help="the topic; may be given several times"),
    argument(
        ("--offsets",),
        action="append",
        default=None,
        metavar="TOPIC:PARTITION:START-END",
        help="offsets of a partition, the end exclusive; may be given several times",
    ),
    argument(
        ("--since",), default=None, metavar="INSTANT", help="from the first record at or after this instant, ISO 8601"
    ),
    argument(("--until",), default=None, metavar="INSTANT", help="up to the first record at or after this instant"),
    argument(("--batch",), type=positive, default=None, help="the range of this batch of the group's history"),
    argument(("--table",), required=True, help="the table to load into"),
    argument(("--table-schema",), default=None, help="its schema (default: that of the connection)"),
    argument(
        ("--columns",),
        default=None,
        metavar="DDL",
        help="the columns of JSON records, such as 'id BIGINT, name STRING' (default: keys and values as they are)",
    ),
    argument(("--transform",), default=None, help="import path of a function from DataFrame to DataFrame"),
    argument(("--replace",), action="store_true", help="remove what was loaded of the range, in the same transaction"),
    argument(
        ("--upsert-key",),
        action="append",
        default=None,
        metavar="COLUMN",
        help="a column that rows are known by; may be given several times",
    ),
    argument(("--max-records",), type=positive, default=None, help="the most offsets of one batch"),
    argument(
        ("--on-data-loss",),
        choices=("fail", "skip"),
        default="fail",
        help="what to do about records of the range that are gone (default: fail)",
    ),
    argument(
        ("--on-bad-record",),
        choices=("fail", "dead_letter"),
        default="fail",
        help="what to do about records that do not decode (default: fail)",
    ),
    argument(("--staging-dir",), default=None, help="what this machine and Spark's executors share, for staged files"),
    WHO,
    REASON,
    ISOLATION_LEVEL,
    OUTPUT,
)
