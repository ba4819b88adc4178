"""An entry of the table of commands: the function, help, example and arguments of a command."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from airflow_kafka_offsets.cli.arguments import Argument

# Airflow prints help without wrapping it.
_HELP_WIDTH = 100


class Command(NamedTuple):
    """A command.

    :param function: module and name in this package
    :param examples: command lines, the first of which begins on the first line
    """

    name: str
    function: str
    help: str
    description: str
    examples: str
    arguments: tuple[Argument, ...]


class Group(NamedTuple):
    """Commands with a name in common."""

    name: str
    help: str
    description: str
    commands: tuple[Command, ...]


def wrapped(text: str) -> str:
    """Return a text in lines of the width of a help."""
    return textwrap.fill(text, _HELP_WIDTH)


def entry(
    function: str, summary: str, description: str, example: str, *arguments: Argument, within: str = ""
) -> Command:
    """Return a command.

    :param function: module and name in this package; imported when the command runs
    :param example: the command line after `airflow kafka-offsets`, which begins with the command's name
    :param within: the name of the group that it is a command of, if there is one
    """
    return Command(
        name=example.split(maxsplit=1)[0],
        function=function,
        help=summary,
        description=wrapped(description),
        examples=f"airflow kafka-offsets {f'{within} ' * bool(within)}{example}",
        arguments=arguments,
    )
