"""The commands of dead letters."""

from __future__ import annotations

from airflow_kafka_offsets.cli import arguments as shared
from airflow_kafka_offsets.cli.arguments import option, positive, switch
from airflow_kafka_offsets.cli.entries import Group, entry, wrapped

LETTERS = Group(
    name="dead-letters",
    help="Look at dead letters, put them through the pipeline again, or drop them",
    description=wrapped(
        "Records that a load dead-lettered (on_bad_record=DeadLetters()): look at them, correct them, put them "
        "through the pipeline as it is now, or drop what they hold.",
    ),
    commands=(
        entry(
            "dead_letters.list_dead_letters",
            "Count dead letters by batch, partition and error class",
            "Count the dead letters of a group by batch, partition and error class: value, key or header for the part "
            "that does not decode, size of a record that was too large to be kept, target where the target refuses "
            "the row, dropped where the contents were deleted.",
            "list orders_loader --conn-id warehouse",
            *shared.LETTERS,
            shared.OUTPUT,
        ),
        entry(
            "dead_letters.show_dead_letters",
            "Show dead letters with key, value, headers and error",
            "Show dead letters with key, value, headers and error. Bytes that are not UTF-8 are shown in Base64. "
            "What --output json prints can be corrected and given to 'dead-letters replay --corrected'.",
            "show orders_loader --conn-id warehouse --error-class value --output json",
            *shared.LETTERS,
            option("--limit", "the most of them", type=positive, default=100),
            shared.OUTPUT,
        ),
        entry(
            "dead_letters.replay",
            "Put dead letters through the pipeline again",
            "Decode dead letters again, write their rows, and delete them, in one transaction for each batch. A record "
            "that is still bad stays a dead letter, with its new reason. The rows belong to the batch that "
            "dead-lettered the records. Loads may go on meanwhile.",
            (
                "replay orders_loader --conn-id warehouse --dag-id load_orders --task-id load --reason 'wider column'",
                "replay orders_loader --conn-id warehouse --table orders --columns 'id BIGINT, name STRING'",
            ),
            *shared.LETTERS,
            option("--corrected", "replay the dead letters of this file, with the values it has", metavar="FILE"),
            *shared.TASK,
            shared.TABLE,
            *shared.PIPELINE,
            shared.SPARK_CONN_ID_OF_TASK,
            *shared.AUTHOR,
            shared.OUTPUT,
        ),
        entry(
            "dead_letters.drop",
            "Delete what dead letters hold",
            "Delete key, value, headers and error of dead letters, with --execute; without it, count them. That there "
            "were such records, who dropped them and why stays in dead_letters, so that 'verify' proves the same as "
            "before.",
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
        ),
    ),
)
