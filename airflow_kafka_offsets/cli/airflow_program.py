"""`airflow kafka-offsets`: the commands in the form of Airflow's command line, with Airflow's connections.

Airflow 3.1 takes no commands of providers: `kafka-offsets` runs them with these connections, too.
"""

from __future__ import annotations

from argparse import Namespace
from functools import partial

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

from airflow_kafka_offsets.cli.commands import KAFKA_OFFSETS
from airflow_kafka_offsets.cli.entries import Argument, Command, Group, epilog, wrapped
from airflow_kafka_offsets.core.environment import variable

# argparse writes what an argument means into a separate column.
_INDENT = 24

_PROCESS_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"
"""The environment variable that says whether a process of Airflow may read the metadata database."""


def get_commands() -> list[GroupCommand]:
    """Return the command group that Airflow adds to its command line."""
    return [_group(KAFKA_OFFSETS)]


def _group(group: Group) -> GroupCommand:
    return GroupCommand(
        name=group.name,
        help=group.help,
        description=wrapped(group.description),
        subcommands=[_group(entry) if isinstance(entry, Group) else _action(entry) for entry in group.commands],
    )


def run(command: Command, args: Namespace) -> None:
    """Run a command with Airflow's connections."""
    from airflow_kafka_offsets.cli.connections import AirflowConnections

    # Airflow also looks for connections in its metadata database then, after the environment and a secrets backend, as
    # `airflow connections get` and `test` do. A process that is no task finds none otherwise that a user has added.
    with variable(_PROCESS_CONTEXT, "server"):
        command.run(args, AirflowConnections(args))


def _action(command: Command) -> ActionCommand:
    return ActionCommand(
        name=command.name,
        help=command.help,
        description=wrapped(command.description),
        epilog=epilog(f"airflow {example}" for example in command.examples),
        func=partial(run, command),
        args=[_argument(argument) for argument in command.arguments],
    )


def _argument(argument: Argument) -> Arg:
    help_ = wrapped(argument.settings["help"], indent=_INDENT)
    # Airflow does not annotate it.
    return Arg(argument.flags, **argument.settings | {"help": help_})  # type: ignore[no-untyped-call]
