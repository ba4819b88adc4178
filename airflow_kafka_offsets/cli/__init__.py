"""`airflow kafka-offsets …`: prints what the packages below decide and store, and decides nothing itself.

`commands` is the table of all commands with their arguments; `make reference` writes it into `docs/commands.md`. Each command is a
function decorated with `command.command`, in a module that is imported when the command runs.
"""

from __future__ import annotations

from typing import Any


def get_commands() -> list[Any]:
    """Return the command group that Airflow adds to its command line."""
    from airflow.cli.cli_config import GroupCommand

    from airflow_kafka_offsets.cli.commands import COMMANDS

    return [
        GroupCommand(
            name="kafka-offsets",
            help="Offsets and batches of Kafka loads",
            description=(
                "Show, check and correct what loads of Kafka topics have stored in a database. Data goes to standard output, "
                "notes to standard error. A failure is one line on standard error, and an exit code other than 0."
            ),
            subcommands=COMMANDS,
        )
    ]
