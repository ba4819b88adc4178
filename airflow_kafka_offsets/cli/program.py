"""`kafka-offsets`: the commands as a program, without Airflow or with it.

With the id of a connection of Airflow's, or a task of a DAG, a command is that of `airflow kafka-offsets`. Otherwise it
takes a database URL and a file, and does not import Airflow. Messages and documents name this program: every version of
Airflow has it.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NoReturn

from airflow_kafka_offsets import __version__
from airflow_kafka_offsets.cli.arguments import OF_TASK, option
from airflow_kafka_offsets.cli.commands import KAFKA_OFFSETS
from airflow_kafka_offsets.cli.connections import DATABASE, DATABASE_FILE, KAFKA_CONFIG, FileConnections, refuse_secrets
from airflow_kafka_offsets.cli.entries import Argument, Command, Group, epilog, wrapped
from airflow_kafka_offsets.exceptions import ConfigurationError

ONLY_AIRFLOW = ("doctor", "replay", "archive-classes")
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

_OF_AIRFLOW = (
    *("--conn-id", "--kafka-conn-id", "--spark-conn-id"),
    *("--dag-id", "--task-id", "--map-index", "--map-values"),
)

_DESCRIPTION = (
    f"{KAFKA_OFFSETS.description} Without a connection of Airflow's, the database is that of {DATABASE}, "
    f"{DATABASE_FILE}, --database or --database-file, Kafka that of {KAFKA_CONFIG} or --kafka-config, and Airflow is "
    "not imported. No argument may contain a password."
)

_EPILOG = (
    "With a connection of Airflow's (--conn-id, --kafka-conn-id, --spark-conn-id) or a task of a DAG (--dag-id), a "
    f"command looks for connections and DAGs in Airflow, as {', '.join(ONLY_AIRFLOW)} always do."
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
    options = {argument.partition("=")[0] for argument in arguments}
    if arguments[:1] in (["doctor"], ["replay"]) and options.isdisjoint(("--conn-id", "-h", "--help")):
        _refuse(f"{arguments[0]} needs --conn-id: it takes Airflow's connections, and not {DATABASE} or {KAFKA_CONFIG}")
    with_airflow = arguments[:1] in [[name] for name in ONLY_AIRFLOW] or not options.isdisjoint(_OF_AIRFLOW)
    if with_airflow:
        from airflow_kafka_offsets.cli import airflow_program

        args = _parse(parser(with_airflow=True), arguments, Namespace())
        airflow_program.run(args.command, args)
        return
    # What commands look at, and nobody can give here.
    args = _parse(parser(), arguments, Namespace(dag_id=None, task_id=None, spark_conn_id=None))
    args.command.run(args, FileConnections(args))


def _parse(root: ArgumentParser, arguments: list[str], args: Namespace) -> Namespace:
    """Return the parsed arguments. An argument too many is refused with the usage of its command."""
    _, unknown = root.parse_known_args(arguments, args)
    if unknown:
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return args


def parser(*, with_airflow: bool = False) -> ArgumentParser:
    """Return the parser of all commands.

    :param with_airflow: with the arguments of `airflow kafka-offsets`
    """
    root = ArgumentParser(
        prog=KAFKA_OFFSETS.path,
        description=wrapped(_DESCRIPTION),
        epilog=wrapped(_EPILOG),
        formatter_class=RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"%(prog)s {__version__}", help="Show the version.")
    if with_airflow:
        _add(root, KAFKA_OFFSETS.commands)
    else:
        # Those of Airflow are listed; `main` runs them with the other parser.
        _add(root, map(_listed, KAFKA_OFFSETS.commands))
    return root


def _add(to: ArgumentParser, entries: Iterable[Command | Group]) -> None:
    subparsers = to.add_subparsers(metavar="COMMAND", required=True)
    for entry in sorted(entries, key=lambda entry: entry.name):
        own = subparsers.add_parser(
            entry.name,
            help=entry.help,
            description=wrapped(entry.description),
            formatter_class=RawDescriptionHelpFormatter,
            epilog=epilog(entry.examples) if isinstance(entry, Command) else None,
            # An abbreviation could pass by what refuses secrets.
            allow_abbrev=False,
        )
        if isinstance(entry, Group):
            _add(own, entry.commands)
            continue
        for argument in sorted(entry.arguments, key=lambda each: (each.flags[-1].startswith("-"), each.flags[-1])):
            own.add_argument(*argument.flags, **argument.settings)
        own.set_defaults(command=entry, parser=own)


def _listed(entry: Command | Group) -> Command | Group:
    if isinstance(entry, Command) and entry.name in ONLY_AIRFLOW:
        return entry._replace(description=entry.help, examples=(), arguments=())
    return _without_airflow(entry)


def _without_airflow(entry: Command | Group) -> Command | Group:
    """Return an entry whose commands have the arguments, the help and the examples of this program."""
    if isinstance(entry, Group):
        return replace(entry, commands=[*map(_without_airflow, entry.commands)])
    arguments: list[Argument] = []
    for argument in entry.arguments:
        flag = argument.flags[0]
        arguments += _REPLACED.get(flag, ()) if flag in _OF_AIRFLOW else [argument]
    texts = [
        argument._replace(settings={**argument.settings, "help": _text(argument.settings["help"])})
        for argument in arguments
    ]
    return entry._replace(
        description=_text(entry.description), examples=tuple(_examples(entry)), arguments=tuple(texts)
    )


def _text(help_: str) -> str:
    """Return a help without what only Airflow has."""
    for of_airflow, here in _WORDS.items():
        help_ = help_.replace(of_airflow, here)
    return help_


def _examples(command: Command) -> Iterator[str]:
    """Yield the examples that work without Airflow, with the arguments of this program."""
    for example in command.examples:
        if not re.search(r"--(dag|task|spark-conn)-id", example):
            without = re.sub(r" --conn-id \S+", "", example)
            yield re.sub(r"--kafka-conn-id \S+", "--kafka-config client.properties", without)


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(f"kafka-offsets: {message}\n")
    raise SystemExit(2)
