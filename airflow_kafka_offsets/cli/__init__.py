"""`airflow kafka-offsets …`. Declared here; what a command does is imported when it runs.

A command is an `ActionCommand` in the list below, with an example as its epilog, and a function that is decorated with
`command.command`, takes its parsed arguments, and prints by `output.show` and `output.note`. `make reference` writes it into
`docs/commands.md`.
"""

from __future__ import annotations

import textwrap
from typing import Any

# Airflow prints help as it is given, without wrapping it.
_HELP_WIDTH = 100


def get_commands() -> list[Any]:
    """The command group that Airflow's command line adds."""
    from airflow.cli.cli_config import GroupCommand

    return [
        GroupCommand(
            name="kafka-offsets",
            help="Offsets and batches of Kafka loads",
            description=(
                "Look at, check and correct what loads of Kafka topics have stored in a database. Data goes to standard output, "
                "notes to standard error; every failure is one line there, and a status that is not zero."
            ),
            subcommands=_subcommands(),
        )
    ]


def _subcommands() -> tuple[Any, ...]:
    from airflow_kafka_offsets.cli import arguments as shared
    from airflow_kafka_offsets.cli.arguments import argument

    return (
        _command(
            "init",
            "airflow_kafka_offsets.cli.init.init",
            "Create or upgrade the state tables",
            "Create the tables that hold offsets and batch history in a database, or raise those of an earlier schema version to "
            "the current one. Safe to run again. With --show-sql the statements that would run on that database go to standard "
            "output, for somebody who may run DDL.",
            "init --conn-id warehouse --show-sql",
            *shared.DATABASE,
            argument(("--show-sql",), action="store_true", help="print the statements instead of running them"),
        ),
        _command(
            "groups",
            "airflow_kafka_offsets.cli.groups.groups",
            "List the groups",
            "List every group of the state tables: the Kafka cluster it loads from, its generation (rewinds raise it), how many "
            "partitions have a position, its last committed and its open batch, and the run that holds its lease now.",
            "groups --conn-id warehouse",
            *shared.DATABASE,
            shared.OUTPUT,
        ),
        _command(
            "show",
            "airflow_kafka_offsets.cli.lag.show_group",
            "Show positions and lag of every partition of a group",
            "Show, for every partition of a group, the stored position, the ends of the log, the lag, how many offsets are lost, "
            "the age of the newest committed record (0 without lag), the delay: how long the oldest record has waited, and the "
            "headroom: how many offsets, and how much time, retention is behind the position. Ends with status 1 where a partition has an error, or there is none.",
            "show orders_loader --conn-id warehouse --output json",
            *shared.LAG,
        ),
        _command(
            "lag",
            "airflow_kafka_offsets.cli.lag.lag",
            "Show the lag of a group, by topic and in total",
            "Show the lag of a group, by topic and in total (the row whose topic is TOTAL, or null). Times are those of the "
            "partition that is worst off. Ends with status 1 where the total is incomplete because a partition has an error, or there "
            "is none to look at.",
            "lag orders_loader --conn-id warehouse --topic orders",
            *shared.LAG,
        ),
        _command(
            "history",
            "airflow_kafka_offsets.cli.history.history",
            "Show the batches of a group",
            "Show the batches of a group, the newest first: loads, rewinds and whatever else moved positions, by whom, and why. "
            "With --batch, the ranges, gaps and replaced output of one batch.",
            "history orders_loader --conn-id warehouse --limit 5\n"
            "         airflow kafka-offsets history orders_loader --conn-id warehouse --batch 42",
            shared.GROUP,
            *shared.DATABASE,
            argument(("--limit",), type=shared.positive, default=20, help="how many batches (default: 20)"),
            argument(("--batch",), type=shared.positive, default=None, help="the id of the batch to show all of"),
            shared.OUTPUT,
        ),
        _command(
            "plan",
            "airflow_kafka_offsets.cli.plan.plan",
            "Show what the next batch of a group would load",
            "Show what a load would do next, and write nothing: for every partition the range, how many offsets that are, about "
            "how many bytes, and how many slices (Spark tasks). Where the group has an open batch, that is what comes next. "
            "Give the options of the load: they are not stored.",
            "plan orders_loader --conn-id warehouse --max-records 1000000",
            *shared.PLAN,
        ),
        _command(
            "verify",
            "airflow_kafka_offsets.cli.verify.verify",
            "Prove that a group loaded every record exactly once",
            "Prove that the history of a group has no hole and no overlap, and that its target holds each record up to the "
            "positions exactly once. With --kafka-conn-id, read again all records that Kafka still has, and look for each. "
            "Where something is wrong, print all violations, and end with status 1.",
            "verify orders_loader --conn-id warehouse --table orders --kafka-conn-id kafka_default",
            shared.GROUP,
            *shared.DATABASE,
            argument(("--table",), required=True, help="the table that the group loads into"),
            argument(("--table-schema",), default=None, help="its schema (default: that of the connection)"),
            argument(
                ("--upsert-key",),
                action="append",
                default=None,
                metavar="COLUMN",
                help="a column of the load's upsert_key; may be given several times. Rows are not proved then: later ones replace them",
            ),
            argument(
                ("--kafka-conn-id",),
                default=None,
                help="the Airflow connection of Kafka, to compare record by record (default: ask the database alone)",
            ),
            shared.ISOLATION_LEVEL,
            shared.OUTPUT,
        ),
        _command(
            "rewind",
            "airflow_kafka_offsets.cli.rewind.rewind",
            "Move the positions of a group, with a preview first",
            "Show where a scenario moves the positions of a group, and do it with --execute: all partitions in one transaction, with "
            "a row in the history. The scenarios are those of kafka-consumer-groups --reset-offsets, and --to-batch, --to-group "
            "and --undo. Offsets outside of a log are clamped, and reported. With --output json the preview can be saved; --preview "
            "executes it as it was shown, or not at all where a position has moved since.",
            "rewind orders_loader --conn-id warehouse --to-datetime 2026-11-17T00:00:00Z --topic orders:0,1\n"
            "         airflow kafka-offsets rewind orders_loader --conn-id warehouse --undo --execute --reason 'wrong day'",
            *shared.REWIND,
        ),
        _command(
            "replay",
            "airflow_kafka_offsets.cli.replay.replay",
            "Load a range of offsets or of time beside the loads of a group",
            "Load a range of offsets, of time, or that of a batch of the history, through Spark into a table. The positions are "
            "neither read nor moved, and loads of the group go on. Into the group's own table it needs --replace, which removes "
            "what was loaded of the range in the same transaction, or --upsert-key.",
            "replay orders_loader --conn-id warehouse --topic orders --batch 42 --table orders --replace \\\n"
            "             --columns 'id BIGINT, amount DOUBLE'",
            *shared.REPLAY,
        ),
        _command(
            "import",
            "airflow_kafka_offsets.cli.rewind.import_group",
            "Take over the positions that a consumer group of Kafka's committed",
            "Show what a consumer group of Kafka's committed, and make it the positions of a group with --execute. Partitions of "
            "which it committed nothing are left as they are, and named; commits outside of the log are clamped, and named. "
            "Where nothing is stored of the group yet, all topics that the consumer group committed are taken, or those of --topic.",
            "import orders_loader --conn-id warehouse --from-group old-job --topic orders --execute",
            *shared.IMPORT,
        ),
        _command(
            "abandon",
            "airflow_kafka_offsets.cli.rewind.abandon",
            "Give up the open batch of a group",
            "Give up an open batch, a load or a replay: its attempt can never commit, the positions stay where they are, and the "
            "next load plans anew.",
            "abandon orders_loader --conn-id warehouse --batch 42 --reason 'its topic was deleted'",
            shared.GROUP,
            *shared.DATABASE,
            argument(("--batch",), type=shared.positive, required=True, help="the id of the batch"),
            shared.WHO,
            shared.REASON,
            shared.OUTPUT,
        ),
        _command(
            "mirror",
            "airflow_kafka_offsets.cli.mirror.mirror",
            "Commit the positions of a group to a consumer group in Kafka",
            "Commit the positions of a group to a consumer group in Kafka, for tools that look at lag, and read back what it shows. "
            "The consumer group must be one that nobody consumes with. A load does this after each commit with mirror_to.",
            "mirror orders_loader --conn-id warehouse --to orders_loader",
            shared.GROUP,
            *shared.DATABASE,
            shared.KAFKA_CONN_ID,
            argument(
                ("--to",),
                type=shared.kafka_group,
                required=True,
                metavar="KAFKA_GROUP",
                help="the consumer group in Kafka",
            ),
            shared.ISOLATION_LEVEL,
            shared.OUTPUT,
        ),
        _command(
            "export",
            "airflow_kafka_offsets.cli.groups.export",
            "Print the positions of a group as CSV",
            "Print the positions of a group as CSV, topic,partition,offset: what 'rewind --from-file' reads.",
            "export orders_loader --conn-id warehouse > positions.csv",
            shared.GROUP,
            *shared.DATABASE,
        ),
        _command(
            "doctor",
            "airflow_kafka_offsets.cli.doctor.doctor",
            "Check that loads can run here",
            "Check versions, the database and the rights in it, Kafka, Spark and Java, and say how to put right what is not. "
            "Changes nothing. Ends with status 1 where a check failed.",
            "doctor --conn-id warehouse --kafka-conn-id kafka_default --spark-conn-id spark_default",
            *shared.DATABASE,
            shared.KAFKA_CONN_ID,
            argument(
                ("--spark-conn-id",),
                default="spark_default",
                help="the Airflow connection of Spark (default: spark_default)",
            ),
            argument(
                ("--topic",),
                dest="topics",
                metavar="TOPIC",
                action="append",
                help="a topic that must be readable; may be given several times (default: the topics of all stored positions)",
            ),
            shared.OUTPUT,
        ),
    )


def _command(name: str, function: str, summary: str, description: str, example: str, *arguments: Any) -> Any:
    """
    :param function: where it is; imported when the command runs
    :param example: what to type after `airflow kafka-offsets`
    """
    from airflow.cli.cli_config import ActionCommand, lazy_load_command

    return ActionCommand(
        name=name,
        help=summary,
        description=textwrap.fill(description, _HELP_WIDTH),
        epilog=f"Example: airflow kafka-offsets {example}",
        func=lazy_load_command(function),
        args=arguments,
    )
