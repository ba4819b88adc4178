"""The arguments that commands share, and the types of their values, for `airflow kafka-offsets` and `kafka-offsets`.

Airflow imports this module with every command line that it builds: heavy imports belong into functions.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.cli.entries import Argument

if TYPE_CHECKING:
    from airflow_kafka_offsets.core.instants import Start

_COMMITTED_BY, _BASE64 = "committed-by:", "base64:"


def option(flag: str, text: str, **settings: Any) -> Argument:
    """Return an argument of a command; the help shows a default that is not empty.

    :param text: the help
    :param settings: as for `ArgumentParser.add_argument`
    """
    default = f" (default: {settings['default']})" if settings.get("default") else ""
    return Argument((flag,), {"help": text + default, **settings})


def switch(flag: str, text: str) -> Argument:
    """Return an argument that is true if it is given."""
    return option(flag, text, action="store_true")


def choice(flag: str, text: str, *choices: str) -> Argument:
    """Return an argument that is one of some words, by default the first."""
    return option(flag, text, choices=choices, default=choices[0])


def repeated(flag: str, text: str, fallback: str = "", **settings: Any) -> Argument:
    """Return an argument that may be given several times.

    :param fallback: its default, for the help
    """
    default = f" (default: {fallback})" if fallback else ""
    return option(flag, f"{text}; may be given several times{default}", action="append", **settings)


def topics(text: str, fallback: str = "", **settings: Any) -> Argument:
    """Return the argument `--topic`, which may be given several times."""
    return repeated("--topic", text, fallback, dest="topics", **settings)


def kafka_group(flag: str) -> Argument:
    """Return the argument that names a consumer group in Kafka."""
    return option(flag, "the consumer group in Kafka", type=consumer_group, required=True, metavar="KAFKA_GROUP")


def positive(text: str) -> int:
    """Parse a number of at least 1."""
    # The database holds 64 bits.
    if not text.isdecimal() or len(text) > 19 or not 1 <= int(text) < 2**63 - 1:
        raise ArgumentTypeError(f"must be a whole number of at least 1, of 64 bits at most; got {text!r}")
    return int(text)


def duration(text: str) -> timedelta:
    """Parse an ISO 8601 duration of weeks, days, hours, minutes and seconds: `P1D`, `PT1H30M`."""
    from airflow_kafka_offsets.core.instants import duration as parse

    with suppress(OverflowError):
        if (parsed := parse(text)) is not None:
            return parsed
    raise ArgumentTypeError(f"must be an ISO 8601 duration such as P1D or PT1H30M; got {text!r}")


def consumer_group(text: str) -> str:
    """Return the name of a consumer group in Kafka, which must not be blank."""
    if not text.strip():
        raise ArgumentTypeError("must be the name of a consumer group; got an empty one")
    return text


def map_index(text: str) -> int:
    """Parse the index of a mapped task instance."""
    if not text.isdecimal() or len(text) > 9:
        raise ArgumentTypeError(f"must be a whole number of at least 0; got {text!r}")
    return int(text)


def map_values(text: str) -> dict[str, Any]:
    """Parse the mapped arguments of a task."""
    import json

    with suppress(ValueError):
        values = json.loads(text)
        if isinstance(values, dict):
            return values
    raise ArgumentTypeError('must be a JSON object, such as \'{"topics": ["orders"]}\'')


def record_key(text: str) -> bytes:
    """Parse the key of records: text, or bytes in Base64 after `base64:`."""
    import base64

    if not text.startswith(_BASE64):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_BASE64), validate=True)
    except ValueError:
        raise ArgumentTypeError(f"must have Base64 after {_BASE64}; got {text!r}") from None


def start(text: str) -> Start:
    """Parse where a load begins: a word, an instant, a duration back from now, or the commits of a consumer group."""
    from airflow_kafka_offsets.core.instants import CommittedBy

    if text.startswith(_COMMITTED_BY):
        return CommittedBy(consumer_group(text.removeprefix(_COMMITTED_BY)))
    return duration(text) if text.startswith("P") else text


_FORMATS = ("table", "json", "yaml", "plain")

# The words are those of Airflow's own commands.
OUTPUT = Argument(
    ("-o", "--output"),
    {
        "help": "Output format. Allowed values: json, yaml, plain, table (default: table)",
        "default": _FORMATS[0],
        "choices": _FORMATS,
        "metavar": f"({', '.join(_FORMATS)})",
    },
)

DATABASE = (
    option("--conn-id", "the Airflow connection of the database with the state tables", required=True),
    option("--schema", "the database schema of the state tables"),
    option("--prefix", "the prefix of the names of the state tables", default=""),
)

GROUP = (option("group", "the group_id of the load", metavar="GROUP"), *DATABASE)

GROUP_ACTIONS = ("list", "delete", "rename")

KAFKA_CONN_ID = option("--kafka-conn-id", "the Airflow connection of Kafka", default="kafka_default")

SPARK_CONN_ID = option("--spark-conn-id", "the Airflow connection of Spark", default="spark_default")

ISOLATION_LEVEL = choice(
    "--isolation-level", "that of the load; decides where a log ends", "read_committed", "read_uncommitted"
)

TABLE_SCHEMA = option("--table-schema", "the schema of that table (default: that of the connection)")

UPSERT_KEY = repeated("--upsert-key", "a column of the load's upsert_key", metavar="COLUMN")

TASK = (
    option("--dag-id", "the DAG of the load: its task, as it is now, defines the target and the pipeline"),
    option("--task-id", "the task of the load, in that DAG"),
    option("--map-index", "which of its mapped task instances (default: the one that loads the group)", type=map_index),
    option(
        "--map-values",
        "the arguments that it is mapped over, as a JSON object, where another task returns them in a run",
        type=map_values,
        metavar="JSON",
    ),
)
"""The arguments that name a task of a DAG."""

TABLE = option("--table", "the table that the group loads into, instead of a task of a DAG")

OF_TASK = "that of the task of --task-id, or else"

ISOLATION_LEVEL_OF_TASK = option(
    "--isolation-level",
    f"that of the load; decides where a log ends (default: {OF_TASK} read_committed)",
    choices=("read_committed", "read_uncommitted"),
)

SPARK_CONN_ID_OF_TASK = option("--spark-conn-id", f"the Airflow connection of Spark (default: {OF_TASK} spark_default)")

PIPELINE = (
    TABLE_SCHEMA,
    option(
        "--columns",
        "the columns of JSON records, such as 'id BIGINT, name STRING' (default: keys and values unparsed)",
        metavar="DDL",
    ),
    option("--transform", "import path of a function from DataFrame to DataFrame"),
    UPSERT_KEY,
    option("--staging-dir", "a directory that this machine and Spark's executors share, for staged files"),
)
"""The arguments of commands that decode records and write their rows, in addition to the table."""

MAX_RECORDS = option("--max-records", "the maximum number of offsets in a batch", type=positive)

ON_DATA_LOSS = choice(
    "--on-data-loss", "fail, or skip records that Kafka deleted before they were loaded", "fail", "skip"
)

SCOPE = "TOPIC[:PARTITION,…]"

STORED_TOPICS = "the topics of the stored positions"

OF_LAG = (
    option(
        "--start",
        "where a topic without a stored position begins: earliest, latest, none, a timestamp (ISO 8601), a duration "
        "back from now (PT6H), or committed-by:GROUP for the commits of a consumer group in Kafka",
        type=start,
        default="earliest",
    ),
    ISOLATION_LEVEL,
    OUTPUT,
)

LAG = (
    *GROUP,
    KAFKA_CONN_ID,
    topics("only this topic, or these partitions of it", STORED_TOPICS, metavar=SCOPE),
    *OF_LAG,
)

AUTHOR = (
    option(
        "--who",
        "the author, for the history, which also has the user of the database (default: the user of the process)",
    ),
    option("--reason", "why, for the history; only a replay without --replace needs none"),
    Argument(("-y", "--yes"), {"help": "do not ask for confirmation, for scripts", "action": "store_true"}),
)
"""The arguments of commands that change something; see `command.confirm`."""

_ERROR_CLASSES = ("value", "key", "header", "size", "crash", "transform", "target", "decoded", "dropped")

DEAD_LETTERS = (
    *GROUP,
    option("--batch", "only those of this batch", type=positive),
    option(
        "--error-class",
        f"only those of this class: {', '.join(_ERROR_CLASSES)}",
        choices=_ERROR_CLASSES,
        metavar="CLASS",
    ),
    option("--schema-id", "only those whose value has this schema id", type=positive),
    option(
        "--key",
        "only those of records with this key, such as a person's: a text, or base64: and the bytes in Base64",
        type=record_key,
    ),
    repeated("--offsets", "only these offsets of a partition, the end exclusive", metavar="TOPIC:PARTITION:START-END"),
)
"""The arguments that choose dead letters."""

MOVE = (
    *GROUP,
    KAFKA_CONN_ID,
    topics("only this topic, or these partitions of it", "all topics of the group", metavar=SCOPE),
    switch("--execute", "move the positions; without it, the command only shows the preview"),
    *AUTHOR,
    option("--abandon", "abandon this open batch of the group in the same transaction", type=positive, metavar="BATCH"),
    option(
        "--replace",
        "also delete the rows of this table, and the dead letters, of the offsets that will be read again; without a "
        "table, those of the target of --dag-id and --task-id",
        nargs="?",
        default=False,
        metavar="TABLE",
    ),
    TABLE_SCHEMA,
    *TASK,
    switch("--new-cluster", "let the group move from the Kafka cluster of its positions to this one"),
    ISOLATION_LEVEL,
    OUTPUT,
)
"""The arguments of commands that move positions."""
