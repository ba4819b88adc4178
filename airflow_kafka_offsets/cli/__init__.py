"""The command line: prints what the packages below decide and store, and decides nothing itself.

`commands` declares all commands, and `make reference` writes them into `docs/commands.md`. What a command runs is a
function in a module that is imported then. Two programs are made of the commands: `airflow kafka-offsets`
(`airflow_program`), with Airflow's connections, and `kafka-offsets` (`program`), which does not import Airflow.
"""

from __future__ import annotations

from typing import Any


def get_commands() -> list[Any]:
    """Return the command group that Airflow adds to its command line."""
    from airflow_kafka_offsets.cli.airflow_program import command_group

    return [command_group()]
