"""The table of commands: function, help, example and arguments of each. `airflow kafka-offsets` and `kafka-offsets` are made of it.

A new command is an entry here and a function in a module of this package.
"""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from airflow_kafka_offsets.cli import arguments as shared
from airflow_kafka_offsets.cli.arguments import Argument, option, positive, repeated, switch, topics

# Airflow prints help without wrapping it.
_HELP_WIDTH = 100


SUMMARY = "Offsets and batches of Kafka loads"

DESCRIPTION = (
    "Show, check and correct what loads of Kafka topics have stored in a database. Data goes to standard output, "
    "notes to standard error. A failure is one line on standard error, and an exit code other than 0."
)


class Command(NamedTuple):
    """A command.

    :param function: module and name in this package
    :param examples: command lines, the first of which begins on the first line
    """

    name: str
    function: str
    help: str
    description: str
    examples: str
    arguments: tuple[Argument, ...]


class Group(NamedTuple):
    """Commands with a name in common."""

    name: str
    help: str
    description: str
    commands: tuple[Command, ...]


def _command(
    function: str, summary: str, description: str, example: str, *arguments: Argument, within: str = ""
) -> Command:
    """Return a command.

    :param function: module and name in this package; imported when the command runs
    :param example: the command line after `airflow kafka-offsets`, which begins with the command's name
    :param within: the name of the group that it is a command of, if there is one
    """
    return Command(
        name=example.split(maxsplit=1)[0],
        function=function,
        help=summary,
        description=textwrap.fill(description, _HELP_WIDTH),
        examples=f"airflow kafka-offsets {f'{within} ' * bool(within)}{example}",
        arguments=arguments,
    )


_PIPELINE = (
    shared.TABLE_SCHEMA,
    option(
        "--columns",
        "the columns of JSON records, such as 'id BIGINT, name STRING' (default: keys and values unparsed)",
        metavar="DDL",
    ),
    option("--transform", "import path of a function from DataFrame to DataFrame"),
    shared.UPSERT_KEY,
    option("--staging-dir", "a directory that this machine and Spark's executors share, for staged files"),
)
"""The arguments of commands that decode records and write their rows, beside the table."""

_ISOLATION_LEVEL = option(
    "--isolation-level",
    f"that of the load; decides where a log ends (default: {shared.OF_TASK} read_committed)",
    choices=("read_committed", "read_uncommitted"),
)

_SPARK_CONN_ID = option("--spark-conn-id", f"the Airflow connection of Spark (default: {shared.OF_TASK} spark_default)")

COMMANDS: tuple[Command | Group, ...] = (
    _command(
        "state.init",
        "Create or upgrade the state tables",
        "Create the tables that hold offsets and batch history, or upgrade those of an earlier schema version. Safe to run again. "
        "With --show-sql, print the statements for this database instead, for a user who may run DDL. With --grant-to, also those that "
        "grant a role what it needs on the state tables for loads, and no more.",
        "init --conn-id warehouse --show-sql --grant-to loader",
        *shared.DATABASE,
        switch("--show-sql", "print the statements instead of running them"),
        option("--grant-to", "grant this role what loads need on the state tables", metavar="ROLE"),
        switch("--grant-moves", "grant the role also what rewinds need, and replays that replace rows"),
    ),
    _command(
        "state.groups",
        "List the groups",
        "List every group in the state tables: the Kafka cluster it loads from, its generation (a rewind raises it), the number of "
        "partitions with a position, its last committed and its open batch, and the run that holds its lease.",
        "groups --conn-id warehouse",
        *shared.DATABASE,
        shared.OUTPUT,
    ),
    _command(
        "lag.show_group",
        "Show positions and lag of every partition of a group",
        "Show, for every partition of a group, the stored position, the ends of the log, the lag, the number of lost offsets, "
        "the age of the newest committed record (0 without lag), the delay (how long the oldest unread record has waited), and the "
        "headroom (how many offsets, and how much time, are left until retention reaches the position). Exits with 1 if a "
        "partition has an error (a position beyond the end of the log is one), or there is none.",
        "show orders_loader --conn-id warehouse --output json",
        *shared.LAG,
    ),
    _command(
        "lag.lag",
        "Show the lag of a group, by topic and in total",
        "Show the lag of a group, by topic and in total (the row whose topic is TOTAL, or null). Times are those of the worst "
        "partition. Exits with 1 if the total is incomplete because a partition has an error, or there is none.",
        "lag orders_loader --conn-id warehouse --topic orders",
        *shared.LAG,
    ),
    _command(
        "state.history",
        "Show the batches of a group",
        "Show the batches of a group, the newest first: loads, rewinds and everything else that moved positions, with author and "
        "reason. With --batch, show the ranges, gaps and replaced output of one batch, and the schemas of a registry that it read (whole with --output json).",
        "history orders_loader --conn-id warehouse --limit 5\n"
        "         airflow kafka-offsets history orders_loader --conn-id warehouse --batch 42",
        *shared.GROUP,
        option("--limit", "the most batches to show", type=positive, default=20),
        option("--batch", "the id of the batch to show in full", type=positive),
        shared.OUTPUT,
    ),
    _command(
        "lag.plan",
        "Show what the next batch of a group would load",
        "Show what a load would do next, and write nothing: for every partition the range, the number of offsets, an estimate of "
        "the bytes, and the number of slices that Spark reads in parallel. If the group has an open batch, that comes next. "
        "Pass the options of the load: they are not stored.",
        "plan orders_loader --conn-id warehouse --max-records 1000000",
        *shared.PLAN,
        option("--until", "load up to the first record at or after this instant (ISO 8601)"),
        shared.MAX_RECORDS,
        option("--max-bytes", "the most bytes of a batch, estimated", type=positive),
        option("--slice-offsets", "the most offsets of a slice", type=positive, default=250_000),
        shared.ON_DATA_LOSS,
    ),
    _command(
        "target.verify",
        "Prove that a group loaded every record exactly once",
        "Prove that the history of a group has no hole and no overlap, and that its target holds each record up to the "
        "positions exactly once. With --kafka-conn-id, read all records that Kafka still has again, and look for each. "
        "If something is wrong, print all violations, and exit with 1. With --upsert-key, rows are not proved: later ones replace "
        "earlier ones.",
        "verify orders_loader --conn-id warehouse --table orders --kafka-conn-id kafka_default\n"
        "         airflow kafka-offsets verify orders_loader --conn-id warehouse --dag-id load_orders --task-id load",
        *shared.GROUP,
        *shared.TASK,
        shared.TABLE,
        shared.TABLE_SCHEMA,
        shared.UPSERT_KEY,
        option(
            "--kafka-conn-id",
            "the Airflow connection of Kafka, to compare record by record (default: read the target and the database only)",
        ),
        _ISOLATION_LEVEL,
        shared.OUTPUT,
    ),
    _command(
        "positions.rewind",
        "Move the positions of a group, with a preview first",
        "Show where a scenario moves the positions of a group, and move them with --execute: all partitions in one transaction, "
        "with a row in the history. The scenarios are those of kafka-consumer-groups --reset-offsets, and --to-batch, --to-group "
        "and --undo. Offsets outside of a log are clamped, and reported. A preview with --output json can be saved; --preview "
        "executes it exactly, or fails if a position has moved since.",
        "rewind orders_loader --conn-id warehouse --to-datetime 2026-11-17T00:00:00Z --topic orders:0,1\n"
        "         airflow kafka-offsets rewind orders_loader --conn-id warehouse --undo --execute --reason 'wrong day'\n"
        "         airflow kafka-offsets rewind orders_loader --conn-id warehouse --to-batch 42 --execute --replace \\\n"
        "             --dag-id load_orders --task-id load",
        *shared.MOVE,
        switch("--to-earliest", "to the beginning offsets"),
        switch("--to-latest", "to the end offsets"),
        switch("--to-current", "to the current positions"),
        option("--to-offset", "to an offset", metavar="OFFSET"),
        option("--shift-by", "by a number of offsets; a negative one moves back", metavar="OFFSETS"),
        option(
            "--to-datetime",
            "to the first record at or after an instant, ISO 8601; no zone means UTC",
            metavar="INSTANT",
        ),
        option("--by-duration", "to the first record of the last so much time, ISO 8601: P1DT12H", metavar="DURATION"),
        option("--from-file", "to the offsets of a CSV file, topic,partition,offset (-: stdin)", metavar="FILE"),
        option("--to-batch", "to the state before a batch of the history", metavar="BATCH"),
        option("--to-group", "to the positions of another group in the state tables", metavar="GROUP"),
        switch("--undo", "undo the last rewind"),
        option("--preview", "execute a preview that was saved with --output json (-: stdin)", metavar="FILE"),
        switch("--new-group", "allow a group that is not in the state tables yet"),
    ),
    _command(
        "target.replay",
        "Load a range of offsets or of time beside the loads of a group",
        "Load a range of offsets, a range of time, or that of a batch of the history, through Spark into a table, or into the target of a task of a DAG. The positions are "
        "neither read nor moved, and loads of the group continue. Into the group's own table it needs --replace, which removes "
        "what was loaded of the range in the same transaction, or --upsert-key.",
        "replay orders_loader --conn-id warehouse --topic orders --batch 42 --table orders --replace \\\n"
        "             --columns 'id BIGINT, amount DOUBLE'\n"
        "         airflow kafka-offsets replay orders_loader --conn-id warehouse --batch 42 --replace --dag-id load_orders --task-id load",
        *shared.GROUP,
        option("--kafka-conn-id", f"the Airflow connection of Kafka (default: {shared.OF_TASK} kafka_default)"),
        _SPARK_CONN_ID,
        topics("the topic", "the topics of the task of --task-id"),
        repeated("--offsets", "offsets of a partition, the end exclusive", metavar="TOPIC:PARTITION:START-END"),
        option("--since", "from the first record at or after this instant, ISO 8601", metavar="INSTANT"),
        option("--until", "up to the first record at or after this instant", metavar="INSTANT"),
        switch("--all-records", "read on to the end of the log, and take exactly the records of the span of time"),
        option("--batch", "the range of this batch of the group's history", type=positive),
        *shared.TASK,
        shared.TABLE,
        *_PIPELINE,
        switch("--replace", "remove what was loaded of the range, in the same transaction"),
        shared.MAX_RECORDS,
        shared.ON_DATA_LOSS,
        option(
            "--on-bad-record",
            f"fail on records that do not decode, or write them to dead_letters (default: {shared.OF_TASK} fail)",
            choices=("fail", "dead_letter"),
        ),
        *shared.AUTHOR,
        _ISOLATION_LEVEL,
        shared.OUTPUT,
    ),
    _command(
        "positions.import_group",
        "Take over the positions that a consumer group in Kafka committed",
        "Show what a consumer group in Kafka committed, and make it the positions of a group with --execute. Partitions without a "
        "commit are left as they are, and listed; commits outside of the log are clamped, and listed. If the group has no positions "
        "yet, all topics that the consumer group committed are imported, or those of --topic.",
        "import orders_loader --conn-id warehouse --from-group old-job --topic orders --execute",
        *shared.MOVE,
        shared.kafka_group("--from-group"),
    ),
    _command(
        "positions.abandon",
        "Abandon the open batch of a group",
        "Abandon an open batch, a load or a replay: its attempt can never commit, the positions stay where they are, and the "
        "next load plans a new batch. A batch that is planned ahead of it is abandoned, too.",
        "abandon orders_loader --conn-id warehouse --batch 42 --reason 'its topic was deleted'",
        *shared.GROUP,
        option("--batch", "the id of the batch", type=positive, required=True),
        *shared.AUTHOR,
        shared.OUTPUT,
    ),
    _command(
        "positions.mirror",
        "Commit the positions of a group to a consumer group in Kafka",
        "Commit the positions of a group to a consumer group in Kafka, for tools that show lag, and read them back. "
        "No consumer may use that consumer group. A load with mirror_to does this after each commit.",
        "mirror orders_loader --conn-id warehouse --to orders_loader",
        *shared.GROUP,
        shared.KAFKA_CONN_ID,
        shared.kafka_group("--to"),
        shared.ISOLATION_LEVEL,
        shared.OUTPUT,
    ),
    _command(
        "positions.export",
        "Print the positions of a group as CSV",
        "Print the positions of a group as CSV, topic,partition,offset, for 'rewind --from-file'.",
        "export orders_loader --conn-id warehouse > positions.csv",
        *shared.GROUP,
    ),
    Group(
        name="dead-letters",
        help="Look at dead letters, put them through the pipeline again, or drop them",
        description=textwrap.fill(
            "Records that a load set aside (on_bad_record='dead_letter'): look at them, correct them, put them through the pipeline as "
            "it is now, or drop what they hold.",
            _HELP_WIDTH,
        ),
        commands=(
            _command(
                "letters.list_letters",
                "Count dead letters by batch, partition and error class",
                "Count the dead letters of a group by batch, partition and error class: value, key or header for the part that does not "
                "decode, size of a record that was too large to be kept, target where the target refuses the row, dropped where the contents were deleted.",
                "list orders_loader --conn-id warehouse",
                *shared.LETTERS,
                shared.OUTPUT,
                within="dead-letters",
            ),
            _command(
                "letters.show_letters",
                "Show dead letters with key, value, headers and error",
                "Show dead letters with key, value, headers and error. Bytes that are no UTF-8 are shown in Base64. What --output json "
                "prints can be corrected and given to 'dead-letters replay --corrected'.",
                "show orders_loader --conn-id warehouse --error-class value --output json",
                *shared.LETTERS,
                option("--limit", "the most of them", type=positive, default=100),
                shared.OUTPUT,
                within="dead-letters",
            ),
            _command(
                "letters.replay",
                "Put dead letters through the pipeline again",
                "Decode dead letters again, write their rows, and remove the letters, in one transaction for each batch. What is bad still "
                "stays a dead letter, with the reason of today. The rows belong to the batch that set the records aside, as if they had "
                "never been bad. Loads may go on meanwhile.",
                "replay orders_loader --conn-id warehouse --dag-id load_orders --task-id load --reason 'wider column'\n"
                "         airflow kafka-offsets dead-letters replay orders_loader --conn-id warehouse --table orders \\\n"
                "             --columns 'id BIGINT, name STRING'",
                *shared.LETTERS,
                option("--corrected", "replay the dead letters of this file, with the values it has", metavar="FILE"),
                *shared.TASK,
                shared.TABLE,
                *_PIPELINE,
                _SPARK_CONN_ID,
                *shared.AUTHOR,
                shared.OUTPUT,
                within="dead-letters",
            ),
            _command(
                "letters.drop",
                "Delete what dead letters hold",
                "Delete key, value, headers and error of dead letters, with --execute; without it, count them. That there were such "
                "records, who dropped them and why stays in dead_letters, so that 'verify' proves the same as before.",
                "drop orders_loader --conn-id warehouse --batch 42 --execute --reason 'test data'",
                *shared.LETTERS,
                option(
                    "--older-than",
                    "only those whose batch was committed so long ago, ISO 8601: P90D",
                    type=shared.duration,
                    metavar="DURATION",
                ),
                switch("--execute", "delete; without it, the command only counts"),
                *shared.AUTHOR,
                shared.OUTPUT,
                within="dead-letters",
            ),
        ),
    ),
    _command(
        "doctor.doctor",
        "Check that loads can run here",
        "Check versions, the database, the rights in it and the target, Kafka and its ACLs, Spark and Java, and say how to mend "
        "each fault. "
        "Changes nothing. Exits with 1 if a check failed.",
        "doctor --conn-id warehouse --kafka-conn-id kafka_default --spark-conn-id spark_default",
        *shared.DATABASE,
        shared.KAFKA_CONN_ID,
        shared.SPARK_CONN_ID,
        topics("a topic that must be readable", "the topics of all stored positions", metavar="TOPIC"),
        option("--table", "a table that must take rows, or be missing (default: the tables of all loads)"),
        shared.TABLE_SCHEMA,
        shared.UPSERT_KEY,
        shared.OUTPUT,
    ),
)
