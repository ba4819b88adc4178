"""`airflow kafka-offsets`: the table of commands in the form of Airflow's command line, with Airflow's connections."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module

from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

from airflow_kafka_offsets.cli.arguments import Argument
from airflow_kafka_offsets.cli.commands import COMMANDS, DESCRIPTION, SUMMARY
from airflow_kafka_offsets.cli.entries import Command, Group, epilog, wrapped
from airflow_kafka_offsets.core.environment import variable

_PROGRAM = "airflow kafka-offsets"

# argparse writes what an argument means into a column of its own.
_INDENT = 24

_PROCESS_CONTEXT = "_AIRFLOW_PROCESS_CONTEXT"
"""The environment variable that says whether a process of Airflow may read the metadata database."""


def command_group() -> GroupCommand:
    """Return all commands."""
    subcommands = [_group(entry) if isinstance(entry, Group) else _action(entry) for entry in COMMANDS]
    return GroupCommand(name="kafka-offsets", help=SUMMARY, description=DESCRIPTION, subcommands=subcommands)


def _group(group: Group) -> GroupCommand:
    subcommands = [_action(command, f"{_PROGRAM} {group.name}") for command in group.commands]
    return GroupCommand(name=group.name, help=group.help, description=group.description, subcommands=subcommands)


def _action(command: Command, program: str = _PROGRAM) -> ActionCommand:
    return ActionCommand(
        name=command.name,
        help=command.help,
        description=command.description,
        epilog=epilog(program, command.examples),
        func=_run(command.function),
        args=[_argument(argument) for argument in command.arguments],
    )


def _argument(argument: Argument) -> Arg:
    help_ = wrapped(argument.settings["help"], indent=_INDENT)
    # Airflow does not annotate it.
    return Arg(argument.flags, **argument.settings | {"help": help_})  # type: ignore[no-untyped-call]


def _run(path: str) -> Callable[[Namespace], None]:
    """Return a function that imports that of a command, and calls it with Airflow's connections."""
    module, _, name = path.rpartition(".")

    def run(args: Namespace) -> None:
        from airflow_kafka_offsets.cli.connections import AirflowConnections

        args.connections = AirflowConnections(args)
        with _stored_connections():
            getattr(import_module(f"airflow_kafka_offsets.cli.{module}"), name)(args)

    run.__name__ = name
    return run


def _stored_connections() -> AbstractContextManager[None]:
    """Have Airflow look for connections in its metadata database as well, after the environment and a secrets backend.

    `airflow connections get` and `test` do the same. Without it, a process that is no task finds none that a user has
    added.
    """
    return variable(_PROCESS_CONTEXT, "server")
