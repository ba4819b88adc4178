"""`kafka-offsets`: the commands as a program that does not import Airflow.

It has the commands of `airflow kafka-offsets`. Where those take the ids of Airflow's connections, it takes a database
URL and a file.
"""

from __future__ import annotations

import re
import sys
from argparse import SUPPRESS, Action, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from airflow_kafka_offsets import __version__
from airflow_kafka_offsets.cli.arguments import OF_TASK, option
from airflow_kafka_offsets.cli.commands import KAFKA_OFFSETS
from airflow_kafka_offsets.cli.connections import DATABASE, DATABASE_FILE, KAFKA_CONFIG, FileConnections, refuse_secrets
from airflow_kafka_offsets.cli.entries import Argument, Command, Group, epilog, wrapped
from airflow_kafka_offsets.exceptions import ConfigurationError

_ONLY_AIRFLOW = ("doctor", "replay", "archive-classes")
"""Commands that always need Spark, a connection of it, or an option of Airflow's."""

_REPLACED = {
    "--conn-id": (
        option(
            "--database",
            f"the URL of the database with the state tables, without a password (default: {DATABASE})",
            metavar="URL",
        ),
        option("--database-file", f"a file that holds the URL (default: {DATABASE_FILE})", metavar="FILE"),
    ),
    "--kafka-conn-id": (
        option(
            "--kafka-config",
            "a file with librdkafka's properties, as JSON or as lines of name=value (default, where Kafka is always "
            f"asked: {KAFKA_CONFIG})",
            metavar="FILE",
        ),
    ),
}
"""The arguments in place of those that name Airflow's connections."""

_WORDS = {
    "--kafka-conn-id": "--kafka-config",
    f"{OF_TASK} ": "",
    ", in place of a task of a DAG": "",
    "; without a table, those of the target of --dag-id and --task-id": "",
    "that of the connection": "that of the database",
}
"""Words of the commands, and what is written in their place."""

_NEED_AIRFLOW = (
    *("--conn-id", "--kafka-conn-id", "--spark-conn-id"),
    *("--dag-id", "--task-id", "--map-index", "--map-values"),
)

_DESCRIPTION = (
    f"{KAFKA_OFFSETS.description} The commands are those of 'airflow kafka-offsets', without Airflow's start: the "
    f"database is that of {DATABASE}, {DATABASE_FILE}, --database or --database-file; Kafka that of {KAFKA_CONFIG} or "
    "--kafka-config. No argument may contain a password."
)

_EPILOG = (
    f"{', '.join(_ONLY_AIRFLOW)} need Airflow's connections or its configuration, and so do tasks of a DAG "
    "(--dag-id): use 'airflow kafka-offsets'."
)


def main(arguments: list[str] | None = None) -> None:
    """Run a command.

    :param arguments: by default those of the process
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        refuse_secrets(arguments)
    except ConfigurationError as error:
        _refuse(str(error))
    if arguments and arguments[0] in _ONLY_AIRFLOW:
        _refuse(f"{arguments[0]} needs the connections of Airflow: use 'airflow kafka-offsets {arguments[0]}'")
    args = parser().parse_args(arguments)
    args.run(args, FileConnections(args))


def parser() -> ArgumentParser:
    """Return the parser of all commands."""
    root = ArgumentParser(
        prog=KAFKA_OFFSETS.path,
        description=wrapped(_DESCRIPTION),
        epilog=wrapped(_EPILOG),
        formatter_class=RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"%(prog)s {__version__}", help="Show the version.")
    _add(root, (entry for entry in KAFKA_OFFSETS.commands if entry.name not in _ONLY_AIRFLOW))
    return root


def _add(to: ArgumentParser, entries: Iterable[Command | Group]) -> None:
    subparsers = to.add_subparsers(metavar="COMMAND", required=True)
    for entry in sorted(entries, key=lambda entry: entry.name):
        own = subparsers.add_parser(
            entry.name,
            help=entry.help,
            description=wrapped(_text(entry.description)),
            formatter_class=RawDescriptionHelpFormatter,
            epilog=epilog(_examples(entry)) if isinstance(entry, Command) else None,
            # An abbreviation could pass by what refuses secrets.
            allow_abbrev=False,
        )
        if isinstance(entry, Group):
            _add(own, entry.commands)
            continue
        for argument in _arguments(entry):
            own.add_argument(*argument.flags, **{**argument.settings, "help": _text(argument.settings["help"])})
        # What commands look at, and nobody can give here.
        own.set_defaults(run=entry.run, dag_id=None, task_id=None, spark_conn_id=None)


def _arguments(command: Command) -> list[Argument]:
    """Return positional arguments, and options by name."""
    arguments: list[Argument] = []
    for argument in command.arguments:
        flag = argument.flags[0]
        if flag in _NEED_AIRFLOW:
            arguments += _REPLACED.get(flag, ())
            argument = Argument((flag,), {"action": _NeedsAirflow, "help": SUPPRESS})
        arguments.append(argument)
    return sorted(arguments, key=lambda argument: (argument.flags[-1].startswith("-"), argument.flags[-1]))


def _text(help_: str) -> str:
    """Return a help without what only Airflow has."""
    for of_airflow, here in _WORDS.items():
        help_ = help_.replace(of_airflow, here)
    return help_


class _NeedsAirflow(Action):
    """Refuses an argument that `airflow kafka-offsets` has."""

    def __call__(self, parser: ArgumentParser, *_: Any) -> NoReturn:
        (flag,) = self.option_strings
        instead = f"give {' or '.join(own.flags[0] for own in _REPLACED[flag])}, or " if flag in _REPLACED else ""
        parser.exit(2, f"{parser.prog}: {flag} needs Airflow: {instead}use 'airflow {parser.prog}'\n")


def _examples(command: Command) -> Iterator[str]:
    """Yield the examples that work without Airflow, with the arguments of this program."""
    for example in command.examples:
        if not re.search(r"--(dag|task|spark-conn)-id", example):
            without = re.sub(r" --conn-id \S+", "", example)
            yield re.sub(r"--kafka-conn-id \S+", "--kafka-config client.properties", without)


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(f"kafka-offsets: {message}\n")
    raise SystemExit(2)
