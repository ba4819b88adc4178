"""The declarations of all commands: arguments, examples and help, which `make reference` also writes into
`docs/commands/`.

A new command is a function here, which imports and calls one in a module of this package. Airflow imports this module
with every command line that it builds: nothing heavy may be imported outside of the functions.
"""

from __future__ import annotations

from argparse import Namespace

from airflow_kafka_offsets.cli import arguments as shared
from airflow_kafka_offsets.cli.arguments import option, positive, repeated, switch, topics
from airflow_kafka_offsets.cli.entries import Group

KAFKA_OFFSETS = Group(
    "kafka-offsets",
    "Offsets and batches of Kafka loads",
    "Show, check and correct the offsets and batches that loads of Kafka topics store in a database. Data goes to "
    "standard output, notes to standard error. A failure is one line on standard error, after the usage for a wrong "
    "option, and an exit code other than 0. Instants are UTC.",
)


@KAFKA_OFFSETS.command(
    (
        "groups --conn-id warehouse",
        "groups delete old_loader --conn-id warehouse --execute --reason 'its topic is gone'",
        "groups rename orders_loader shop_loader --conn-id warehouse --execute --reason 'moved to the shop'",
    ),
    option("action", "list (the default), delete or rename", nargs="?", default="list", choices=shared.GROUP_ACTIONS),
    option("group", "the group to delete or rename", nargs="?", metavar="GROUP"),
    option("new_name", "its new name", nargs="?", metavar="NEW_NAME"),
    *shared.DATABASE,
    repeated("--kafka-conn-id", "the Airflow connection of a Kafka cluster, to show lag", "kafka_default"),
    switch("--execute", "delete or rename; without it, the command only shows what would change"),
    *shared.AUTHOR,
    shared.OUTPUT,
)
def groups(args: Namespace) -> None:
    """List the groups, with their lag; delete or rename one.

    List every group in the state tables: the Kafka cluster it loads from, its lag, its generation (a rewind raises it),
    the number of partitions with a position, its last committed and its open batch, and the run that holds its lease.
    The lag is null where Kafka does not answer, which a note says. Delete removes the positions of a group, and the
    contents of its dead letters for good. Rename gives it another name, as its load must have it then. Both leave the
    rows and the history, record who did it and why, and are refused while the group is held, has an open batch, or is
    between two commits.
    """
    from airflow_kafka_offsets.cli import groups

    groups.groups(args)


@KAFKA_OFFSETS.command("show orders_loader --conn-id warehouse --output json", *shared.LAG)
def show_group(args: Namespace) -> None:
    """Show positions and lag of every partition of a group.

    Show, for every partition of a group, the stored position, the ends of the log, the lag, the number of lost offsets,
    the age of the newest committed record (0 without lag), the delay (how long the oldest unread record has waited, or
    since when the position has not moved if records before it are as new), and the headroom (how many offsets, and how
    much time, are left until retention reaches the position; no time where nothing is unread). Exits with 1 if a
    partition has an error (a position beyond the end of the log is one), or there is none, but not if offsets are lost:
    a probe looks at lost, too.
    """
    from airflow_kafka_offsets.cli import lag

    lag.show_group(args)


@KAFKA_OFFSETS.command("lag orders_loader --conn-id warehouse --topic orders", *shared.LAG)
def lag(args: Namespace) -> None:
    """Show the lag of a group, by topic and in total.

    Show the lag of a group, by topic and in total (the row whose topic is TOTAL, or null). Times are those of the worst
    partition. Exits with 1 if the total is incomplete because a partition has an error, or there is none, but not if
    offsets are lost: a probe looks at lost, too.
    """
    from airflow_kafka_offsets.cli import lag

    lag.lag(args)


@KAFKA_OFFSETS.command(
    ("history orders_loader --conn-id warehouse --limit 5", "history orders_loader --conn-id warehouse --batch 42"),
    *shared.GROUP,
    option("--limit", "the maximum number of batches to show", type=positive, default=20),
    option("--batch", "the id of the batch to show in full", type=positive),
    shared.OUTPUT,
)
def history(args: Namespace) -> None:
    """Show the batches of a group.

    Show the batches of a group, the newest first: loads, rewinds and everything else that moved positions, with author
    and reason. With --batch, show the ranges, gaps and replaced output of one batch, and the schemas of a registry that
    it read (whole with --output json).
    """
    from airflow_kafka_offsets.cli import state

    state.history(args)


@KAFKA_OFFSETS.command(
    "plan orders_loader --conn-id warehouse --max-records 1000000",
    *shared.GROUP,
    shared.KAFKA_CONN_ID,
    topics("only this topic", shared.STORED_TOPICS, metavar="TOPIC"),
    *shared.OF_LAG,
    option("--until", "load up to the first record at or after this instant (ISO 8601)"),
    shared.MAX_RECORDS,
    option("--max-bytes", "the maximum size of a batch in bytes, estimated", type=positive),
    option("--slice-offsets", "the maximum number of offsets in a slice", type=positive, default=250_000),
    switch("--lake-table", "the target is a lake table: a large batch has fewer, larger slices"),
    shared.ON_DATA_LOSS,
)
def plan(args: Namespace) -> None:
    """Show what the next batch of a group would load.

    Show what a load would do next, and write nothing: for every partition the range, the number of offsets, an estimate
    of the bytes, and the number of slices that Spark reads in parallel. An open batch of the group comes first. Pass
    the options of the load: they are not stored.
    """
    from airflow_kafka_offsets.cli import lag

    lag.plan(args)


@KAFKA_OFFSETS.command(
    (
        "verify orders_loader --conn-id warehouse --table orders --kafka-conn-id kafka_default",
        "verify orders_loader --conn-id warehouse --dag-id load_orders --task-id load_orders",
    ),
    *shared.GROUP,
    *shared.TASK,
    shared.TABLE,
    shared.TABLE_SCHEMA,
    shared.UPSERT_KEY,
    option(
        "--kafka-conn-id",
        "the Airflow connection of Kafka, to compare record by record (default: read only the target and the database)",
    ),
    shared.ISOLATION_LEVEL_OF_TASK,
    shared.OUTPUT,
)
def verify(args: Namespace) -> None:
    """Prove that a group loaded every record exactly once.

    Prove that the history of a group has no missing and no overlapping offsets, and that its target holds each record
    before the positions exactly once. With --kafka-conn-id, read all records that Kafka still has, and look up each in
    the target. With --upsert-key, rows are not proved: later ones replace earlier ones. Records and batches are those
    of the whole history: after a rewind or a replay, a record counts each time that it was loaded. Rows are those of
    the target now; where output_checked is false, the history's. By_number is the number of batches of whose rows only
    the number is compared, as after a transform, reread that of records read from Kafka, rows_after the number of rows
    that a rewind without --replace left after the positions: the next load duplicates them. Published has batches that
    the target has and the history not yet. If something is wrong, print the first 1,000 violations (words), each with
    the number of all of them (violations), and exit with 1.
    """
    from airflow_kafka_offsets.cli import target

    target.verify(args)


@KAFKA_OFFSETS.command("export orders_loader --conn-id warehouse > positions.csv", *shared.GROUP)
def export(args: Namespace) -> None:
    """Print the positions of a group as CSV.

    Print the positions of a group as CSV, topic,partition,offset, for 'rewind --from-file'.
    """
    from airflow_kafka_offsets.cli import positions

    positions.export(args)


@KAFKA_OFFSETS.command(
    "doctor --conn-id warehouse --kafka-conn-id kafka_default --spark-conn-id spark_default",
    *shared.DATABASE,
    shared.KAFKA_CONN_ID,
    shared.SPARK_CONN_ID,
    topics("a topic that must be readable", "the topics of all stored positions", metavar="TOPIC"),
    option("--table", "a table that must take rows, or be missing (default: the tables of all loads)"),
    shared.TABLE_SCHEMA,
    shared.UPSERT_KEY,
    shared.OUTPUT,
)
def doctor(args: Namespace) -> None:
    """Check that loads can run here.

    Check versions, the database and its privileges, the target, Kafka and its ACLs, Spark and Java, and show how to fix
    each problem. Changes nothing. Exits with 1 if a check failed.
    """
    from airflow_kafka_offsets.cli import doctor

    doctor.doctor(args)


@KAFKA_OFFSETS.command(
    "init --conn-id warehouse --show-sql --grant-to loader",
    *shared.DATABASE,
    switch("--show-sql", "print the statements instead of running them"),
    option("--grant-to", "grant this role the privileges on the state tables that loads need", metavar="ROLE"),
    switch("--grant-moves", "also grant the role the privileges for rewinds, and for replays that replace rows"),
)
def init(args: Namespace) -> None:
    """Create or upgrade the state tables.

    Create the tables that hold offsets and batch history, or upgrade those of an earlier schema version. Safe to run
    again. With --show-sql, print the statements for this database instead, for a user who may run DDL. With --grant-to,
    also those that grant a role the privileges on the state tables that loads need.
    """
    from airflow_kafka_offsets.cli import state

    state.init(args)


@KAFKA_OFFSETS.command(
    (
        "rewind orders_loader --conn-id warehouse --to-datetime 2026-11-17T00:00:00Z --topic orders:0,1",
        "rewind orders_loader --conn-id warehouse --undo --execute --reason 'wrong day'",
        "rewind orders_loader --conn-id warehouse --to-batch 42 --execute --replace --dag-id load_orders "
        "--task-id load_orders --reason 'wrong amounts'",
    ),
    *shared.MOVE,
    switch("--to-earliest", "to the beginning offsets"),
    switch("--to-latest", "to the end offsets"),
    switch("--to-current", "to the current positions"),
    option("--to-offset", "to an offset", metavar="OFFSET"),
    option("--shift-by", "by a number of offsets; a negative one moves back", metavar="OFFSETS"),
    option(
        "--to-datetime", "to the first record at or after an instant, ISO 8601; no zone means UTC", metavar="INSTANT"
    ),
    option("--by-duration", "back from now by a duration, ISO 8601: P1DT12H", metavar="DURATION"),
    option("--from-file", "to the offsets of a CSV file, topic,partition,offset (-: stdin)", metavar="FILE"),
    option("--to-batch", "to the state before a batch of the history", metavar="BATCH"),
    option("--to-group", "to the positions of another group in the state tables", metavar="GROUP"),
    switch("--undo", "undo the last rewind"),
    option("--preview", "execute a preview saved with --output json (-: stdin)", metavar="FILE"),
    switch("--new-group", "allow a group that is not in the state tables yet"),
)
def rewind(args: Namespace) -> None:
    """Move the positions of a group, with a preview first.

    Show where a scenario moves the positions of a group, and move them with --execute: all partitions in one
    transaction, with a row in the history. The scenarios are those of kafka-consumer-groups --reset-offsets, and
    --to-batch, --to-group and --undo. Offsets outside of a log are clamped, and reported. A preview with --output json
    can be saved; --preview executes it exactly, or fails if a position has moved since.
    """
    from airflow_kafka_offsets.cli import positions

    positions.rewind(args)


@KAFKA_OFFSETS.command(
    "import orders_loader --conn-id warehouse --from-group old-job --topic orders --execute --reason 'a new loader'",
    *shared.MOVE,
    shared.kafka_group("--from-group"),
)
def import_group(args: Namespace) -> None:
    """Take over the positions that a consumer group in Kafka committed.

    Show what a consumer group in Kafka committed, and make it the positions of a group with --execute. Partitions
    without a commit are left as they are, and listed; commits outside of the log are clamped, and listed. Without
    --topic, the topics are those that the group has positions of, or, if it has none yet, all that the consumer group
    committed.
    """
    from airflow_kafka_offsets.cli import positions

    positions.import_group(args)


@KAFKA_OFFSETS.command(
    "abandon orders_loader --conn-id warehouse --batch 42 --reason 'its topic was deleted'",
    *shared.GROUP,
    option("--batch", "the id of the batch", type=positive, required=True),
    *shared.AUTHOR,
    shared.OUTPUT,
)
def abandon(args: Namespace) -> None:
    """Abandon the open batch of a group.

    Abandon an open batch, a load or a replay: its attempt can never commit, the positions stay where they are, and the
    next load plans a new batch. A prefetched batch is abandoned with it.
    """
    from airflow_kafka_offsets.cli import positions

    positions.abandon(args)


@KAFKA_OFFSETS.command(
    "mirror orders_loader --conn-id warehouse --to orders_loader",
    *shared.GROUP,
    shared.KAFKA_CONN_ID,
    shared.kafka_group("--to"),
    shared.ISOLATION_LEVEL,
    shared.OUTPUT,
)
def mirror(args: Namespace) -> None:
    """Commit the positions of a group to a consumer group in Kafka.

    Commit the positions of a group to a consumer group in Kafka, for tools that show lag, and read them back. No
    consumer may use that consumer group. A load with Coordination.mirror_to does this after each commit.
    """
    from airflow_kafka_offsets.cli import positions

    positions.mirror(args)


@KAFKA_OFFSETS.command(
    (
        "replay orders_loader --conn-id warehouse --topic orders --batch 42 --table orders --replace "
        "--columns 'id BIGINT, amount DOUBLE' --reason 'wrong amounts'",
        "replay orders_loader --conn-id warehouse --batch 42 --replace --dag-id load_orders --task-id load_orders "
        "--reason 'wrong amounts'",
    ),
    *shared.GROUP,
    option("--kafka-conn-id", f"the Airflow connection of Kafka (default: {shared.OF_TASK} kafka_default)"),
    shared.SPARK_CONN_ID_OF_TASK,
    topics("the topic", "the topics of the task of --task-id"),
    repeated("--offsets", "offsets of a partition, the end exclusive", metavar="TOPIC:PARTITION:START-END"),
    option("--since", "from the first record at or after this instant, ISO 8601", metavar="INSTANT"),
    option("--until", "up to the first record at or after this instant", metavar="INSTANT"),
    switch("--all-records", "read up to the end of the log, and load exactly the records of the span of time"),
    option("--batch", "the range of this batch of the group's history", type=positive),
    *shared.TASK,
    shared.TABLE,
    *shared.PIPELINE,
    switch("--replace", "remove the earlier rows of the range in the same transaction"),
    shared.MAX_RECORDS,
    shared.ON_DATA_LOSS,
    option(
        "--on-bad-record",
        f"fail on records that do not decode, or write them to dead_letters (default: {shared.OF_TASK} fail)",
        choices=("fail", "dead-letters"),
    ),
    *shared.AUTHOR,
    shared.ISOLATION_LEVEL_OF_TASK,
    shared.OUTPUT,
)
def replay(args: Namespace) -> None:
    """Load a range of offsets or a span of time again, while loads of the group continue.

    Load a range of offsets, a span of time, or the range of a batch in the history into a table, or into the target of
    a task of a DAG, with Spark. The positions are neither read nor moved, and loads of the group continue. Into the
    group's own table, a replay needs --replace, which removes the earlier rows of the range in the same transaction, or
    --upsert-key.
    """
    from airflow_kafka_offsets.cli import target

    target.replay(args)


@KAFKA_OFFSETS.command("archive-classes")
def archive_classes(args: Namespace) -> None:
    """Write class data sharing archives, with which Spark starts faster.

    Start Spark twice, and let Java write the classes that loads need into archives of 65 and 155 MB, in the directory
    of the option class_archives in section kafka_offsets, or in the user's cache directory. The drivers of loads use
    them, and start a second or two faster. Run it once on each worker, or when its image is built, and again after an
    upgrade of Java or Spark.
    """
    from airflow_kafka_offsets.cli import classes

    classes.archive_classes(args)


DEAD_LETTERS = KAFKA_OFFSETS.group(
    "dead-letters",
    "Show, replay or drop dead letters",
    "Records that a load dead-lettered (on_bad_record=DeadLetters()): show them, correct them, replay them through "
    "the current pipeline, or drop their contents.",
)


@DEAD_LETTERS.command("list orders_loader --conn-id warehouse", *shared.DEAD_LETTERS, shared.OUTPUT)
def list_letters(args: Namespace) -> None:
    """Count dead letters by batch, partition and error class.

    Count the dead letters of a group by batch, partition and error class: value, key or header is the part that cannot
    be decoded; size, a record that was too large to be kept; crash, one that ended the process; transform, one that the
    transform failed for; target, one whose row the target refuses; decoded, one of these whose record had expired, with
    what it was decoded to. Those whose contents were deleted are listed with --error-class dropped only. First and last
    are the lowest and the highest of their offsets, errors the number of different errors, and error is one of these.
    """
    from airflow_kafka_offsets.cli import dead_letters

    dead_letters.list_dead_letters(args)


@DEAD_LETTERS.command(
    "show orders_loader --conn-id warehouse --error-class value --output json",
    *shared.DEAD_LETTERS,
    option("--limit", "the maximum number to show", type=positive, default=100),
    shared.OUTPUT,
)
def show_letters(args: Namespace) -> None:
    """Show dead letters with key, value, headers and error.

    Show dead letters with key, value, headers and error. Bytes that are not UTF-8 are shown in Base64. What --output
    json prints can be corrected and given to 'dead-letters replay --corrected'.
    """
    from airflow_kafka_offsets.cli import dead_letters

    dead_letters.show_dead_letters(args)


@DEAD_LETTERS.command(
    (
        "replay orders_loader --conn-id warehouse --dag-id load_orders --task-id load_orders --reason 'wider column'",
        "replay orders_loader --conn-id warehouse --table orders --columns 'id BIGINT, name STRING'",
    ),
    *shared.DEAD_LETTERS,
    option("--corrected", "replay the dead letters of this file, with the values it has", metavar="FILE"),
    *shared.TASK,
    shared.TABLE,
    *shared.PIPELINE,
    shared.SPARK_CONN_ID_OF_TASK,
    *shared.AUTHOR,
    shared.OUTPUT,
)
def replay_letters(args: Namespace) -> None:
    """Replay dead letters through the current pipeline.

    Decode dead letters again, write their rows, and delete them, in one transaction for each batch. A record that is
    still bad stays a dead letter, with the new reason; if all are, the command exits with 1. The rows have the number
    of the new batch. Loads may run meanwhile.
    """
    from airflow_kafka_offsets.cli import dead_letters

    dead_letters.replay(args)


@DEAD_LETTERS.command(
    (
        "drop orders_loader --conn-id warehouse --batch 42 --execute --reason 'test data'",
        "drop orders_loader --conn-id warehouse --key customer-4711 --execute --reason 'erasure request 17'",
    ),
    *shared.DEAD_LETTERS,
    option(
        "--older-than",
        "only those whose batch was committed at least this long ago, ISO 8601: P90D",
        type=shared.duration,
        metavar="DURATION",
    ),
    switch("--execute", "delete; without it, the command only counts"),
    *shared.AUTHOR,
    shared.OUTPUT,
)
def drop_letters(args: Namespace) -> None:
    """Delete the contents of dead letters.

    Delete key, value, headers and error of dead letters, with --execute; without it, count them. Their offsets, who
    dropped them and why stay in dead_letters, so that 'verify' proves the same as before. If their records are read
    and dead-lettered again by the group, their contents are not kept either.
    """
    from airflow_kafka_offsets.cli import dead_letters

    dead_letters.drop(args)
