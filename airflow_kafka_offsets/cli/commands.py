"""The table of all commands. `airflow kafka-offsets` and `kafka-offsets` are made of it.

A new command is an entry in `read_entries`, `write_entries` or `dead_letter_entries`, and a function in a module of
this package.
"""

from __future__ import annotations

from airflow_kafka_offsets.cli.dead_letter_entries import LETTERS
from airflow_kafka_offsets.cli.entries import Command, Group
from airflow_kafka_offsets.cli.read_entries import READ
from airflow_kafka_offsets.cli.write_entries import WRITE

SUMMARY = "Offsets and batches of Kafka loads"

DESCRIPTION = (
    "Show, check and correct what loads of Kafka topics have stored in a database. Data goes to standard output, "
    "notes to standard error. A failure is one line on standard error, and an exit code other than 0."
)

COMMANDS: tuple[Command | Group, ...] = (*READ, *WRITE, LETTERS)
