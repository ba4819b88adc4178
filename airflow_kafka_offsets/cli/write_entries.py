"""The commands that write: state tables, positions, the rows of a replay, and archives of classes."""

from __future__ import annotations

from airflow_kafka_offsets.cli import arguments as shared
from airflow_kafka_offsets.cli.arguments import option, positive, repeated, switch, topics
from airflow_kafka_offsets.cli.entries import entry

WRITE = (
    entry(
        "state.init",
        "Create or upgrade the state tables",
        "Create the tables that hold offsets and batch history, or upgrade those of an earlier schema version. Safe "
        "to run again. With --show-sql, print the statements for this database instead, for a user who may run DDL. "
        "With --grant-to, also those that grant a role what it needs on the state tables for loads, and no more.",
        "init --conn-id warehouse --show-sql --grant-to loader",
        *shared.DATABASE,
        switch("--show-sql", "print the statements instead of running them"),
        option("--grant-to", "grant this role what loads need on the state tables", metavar="ROLE"),
        switch("--grant-moves", "grant the role also what rewinds need, and replays that replace rows"),
    ),
    entry(
        "positions.rewind",
        "Move the positions of a group, with a preview first",
        "Show where a scenario moves the positions of a group, and move them with --execute: all partitions in one "
        "transaction, with a row in the history. The scenarios are those of kafka-consumer-groups --reset-offsets, "
        "and --to-batch, --to-group and --undo. Offsets outside of a log are clamped, and reported. A preview with "
        "--output json can be saved; --preview executes it exactly, or fails if a position has moved since.",
        (
            "rewind orders_loader --conn-id warehouse --to-datetime 2026-11-17T00:00:00Z --topic orders:0,1",
            "rewind orders_loader --conn-id warehouse --undo --execute --reason 'wrong day'",
            "rewind orders_loader --conn-id warehouse --to-batch 42 --execute --replace --dag-id load_orders "
            "--task-id load",
        ),
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
    entry(
        "positions.import_group",
        "Take over the positions that a consumer group in Kafka committed",
        "Show what a consumer group in Kafka committed, and make it the positions of a group with --execute. "
        "Partitions without a commit are left as they are, and listed; commits outside of the log are clamped, and "
        "listed. If the group has no positions yet, all topics that the consumer group committed are imported, or "
        "those of --topic.",
        "import orders_loader --conn-id warehouse --from-group old-job --topic orders --execute",
        *shared.MOVE,
        shared.kafka_group("--from-group"),
    ),
    entry(
        "positions.abandon",
        "Abandon the open batch of a group",
        "Abandon an open batch, a load or a replay: its attempt can never commit, the positions stay where they are, "
        "and the next load plans a new batch. A prefetched batch is abandoned with it.",
        "abandon orders_loader --conn-id warehouse --batch 42 --reason 'its topic was deleted'",
        *shared.GROUP,
        option("--batch", "the id of the batch", type=positive, required=True),
        *shared.AUTHOR,
        shared.OUTPUT,
    ),
    entry(
        "positions.mirror",
        "Commit the positions of a group to a consumer group in Kafka",
        "Commit the positions of a group to a consumer group in Kafka, for tools that show lag, and read them back. "
        "No consumer may use that consumer group. A load with Coordination.mirror_to does this after each commit.",
        "mirror orders_loader --conn-id warehouse --to orders_loader",
        *shared.GROUP,
        shared.KAFKA_CONN_ID,
        shared.kafka_group("--to"),
        shared.ISOLATION_LEVEL,
        shared.OUTPUT,
    ),
    entry(
        "target.replay",
        "Load a range of offsets or of time again, while loads of the group go on",
        "Load a range of offsets, a range of time, or that of a batch of the history, through Spark into a table, or "
        "into the target of a task of a DAG. The positions are neither read nor moved, and loads of the group "
        "continue. Into the group's own table it needs --replace, which removes what was loaded of the range in the "
        "same transaction, or --upsert-key.",
        (
            "replay orders_loader --conn-id warehouse --topic orders --batch 42 --table orders --replace "
            "--columns 'id BIGINT, amount DOUBLE'",
            "replay orders_loader --conn-id warehouse --batch 42 --replace --dag-id load_orders --task-id load",
        ),
        *shared.GROUP,
        option("--kafka-conn-id", f"the Airflow connection of Kafka (default: {shared.OF_TASK} kafka_default)"),
        shared.SPARK_CONN_ID_OF_TASK,
        topics("the topic", "the topics of the task of --task-id"),
        repeated("--offsets", "offsets of a partition, the end exclusive", metavar="TOPIC:PARTITION:START-END"),
        option("--since", "from the first record at or after this instant, ISO 8601", metavar="INSTANT"),
        option("--until", "up to the first record at or after this instant", metavar="INSTANT"),
        switch("--all-records", "read on to the end of the log, and take exactly the records of the span of time"),
        option("--batch", "the range of this batch of the group's history", type=positive),
        *shared.TASK,
        shared.TABLE,
        *shared.PIPELINE,
        switch("--replace", "remove what was loaded of the range, in the same transaction"),
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
    ),
    entry(
        "classes.archive_classes",
        "Write an archive of Spark's classes, from which loads start sooner",
        "Start Spark twice, and have Java write the classes that loads need into archives, 65 and 155 MB, in the "
        "directory of the option class_archives in section kafka_offsets, or in the user's cache directory. The "
        "drivers of loads find them there, and start a second or two sooner. Run it once on each worker, or when its "
        "image is built, and again after an upgrade of Java or Spark.",
        "archive-classes",
    ),
)
