"""The commands that change nothing: what is stored, how far behind it is, what would be loaded, and whether it is
proved.
"""

from __future__ import annotations

from airflow_kafka_offsets.cli import arguments as shared
from airflow_kafka_offsets.cli.arguments import option, positive, switch, topics
from airflow_kafka_offsets.cli.entries import entry

READ = (
    entry(
        "state.groups",
        "List the groups",
        "List every group in the state tables: the Kafka cluster it loads from, its generation (a rewind raises it), "
        "the number of partitions with a position, its last committed and its open batch, and the run that holds its "
        "lease.",
        "groups --conn-id warehouse",
        *shared.DATABASE,
        shared.OUTPUT,
    ),
    entry(
        "lag.show_group",
        "Show positions and lag of every partition of a group",
        "Show, for every partition of a group, the stored position, the ends of the log, the lag, the number of lost "
        "offsets, the age of the newest committed record (0 without lag), the delay (how long the oldest unread "
        "record has waited), and the headroom (how many offsets, and how much time, are left until retention reaches "
        "the position). Exits with 1 if a partition has an error (a position beyond the end of the log is one), or "
        "there is none.",
        "show orders_loader --conn-id warehouse --output json",
        *shared.LAG,
    ),
    entry(
        "lag.lag",
        "Show the lag of a group, by topic and in total",
        "Show the lag of a group, by topic and in total (the row whose topic is TOTAL, or null). Times are those of "
        "the worst partition. Exits with 1 if the total is incomplete because a partition has an error, or there is "
        "none.",
        "lag orders_loader --conn-id warehouse --topic orders",
        *shared.LAG,
    ),
    entry(
        "state.history",
        "Show the batches of a group",
        "Show the batches of a group, the newest first: loads, rewinds and everything else that moved positions, with "
        "author and reason. With --batch, show the ranges, gaps and replaced output of one batch, and the schemas of "
        "a registry that it read (whole with --output json).",
        ("history orders_loader --conn-id warehouse --limit 5", "history orders_loader --conn-id warehouse --batch 42"),
        *shared.GROUP,
        option("--limit", "the most batches to show", type=positive, default=20),
        option("--batch", "the id of the batch to show in full", type=positive),
        shared.OUTPUT,
    ),
    entry(
        "lag.plan",
        "Show what the next batch of a group would load",
        "Show what a load would do next, and write nothing: for every partition the range, the number of offsets, an "
        "estimate of the bytes, and the number of slices that Spark reads in parallel. If the group has an open batch, "
        "that comes next. Pass the options of the load: they are not stored.",
        "plan orders_loader --conn-id warehouse --max-records 1000000",
        *shared.PLAN,
        option("--until", "load up to the first record at or after this instant (ISO 8601)"),
        shared.MAX_RECORDS,
        option("--max-bytes", "the most bytes of a batch, estimated", type=positive),
        option("--slice-offsets", "the most offsets of a slice", type=positive, default=250_000),
        switch("--lake-table", "the target is a lake table: a large batch has fewer, larger slices"),
        shared.ON_DATA_LOSS,
    ),
    entry(
        "target.verify",
        "Prove that a group loaded every record exactly once",
        "Prove that the history of a group has no hole and no overlap, and that its target holds each record up to "
        "the positions exactly once. With --kafka-conn-id, read all records that Kafka still has again, and look for "
        "each. If something is wrong, print all violations, and exit with 1. With --upsert-key, rows are not proved: "
        "later ones replace earlier ones.",
        (
            "verify orders_loader --conn-id warehouse --table orders --kafka-conn-id kafka_default",
            "verify orders_loader --conn-id warehouse --dag-id load_orders --task-id load",
        ),
        *shared.GROUP,
        *shared.TASK,
        shared.TABLE,
        shared.TABLE_SCHEMA,
        shared.UPSERT_KEY,
        option(
            "--kafka-conn-id",
            "the Airflow connection of Kafka, to compare record by record (default: read the target and the database "
            "only)",
        ),
        shared.ISOLATION_LEVEL_OF_TASK,
        shared.OUTPUT,
    ),
    entry(
        "positions.export",
        "Print the positions of a group as CSV",
        "Print the positions of a group as CSV, topic,partition,offset, for 'rewind --from-file'.",
        "export orders_loader --conn-id warehouse > positions.csv",
        *shared.GROUP,
    ),
    entry(
        "doctor.doctor",
        "Check that loads can run here",
        "Check versions, the database, the rights in it and the target, Kafka and its ACLs, Spark and Java, and say "
        "how to mend each fault. Changes nothing. Exits with 1 if a check failed.",
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
