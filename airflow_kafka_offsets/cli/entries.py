"""An entry of the table of commands: the function, help, example and arguments of a command."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import NamedTuple

from airflow_kafka_offsets.cli.arguments import Argument

_WIDTH = 100
_COMMAND_WIDTH = 110
_EXAMPLES = "Example: "


class Command(NamedTuple):
    """A command.

    :param function: module and name in this package
    :param examples: command lines, without the name of the program
    """

    name: str
    function: str
    help: str
    description: str
    examples: tuple[str, ...]
    arguments: tuple[Argument, ...]


class Group(NamedTuple):
    """Commands with a name in common."""

    name: str
    help: str
    description: str
    commands: tuple[Command, ...]


def wrapped(text: str, indent: int = 0) -> str:
    """Return a text in lines of the width of a help. Airflow prints a help as it is.

    :param indent: the columns that the help has to the left of the text
    """
    return textwrap.fill(text, _WIDTH - indent)


def epilog(program: str, examples: Iterable[str]) -> str:
    """Return the examples, with lines that a shell joins."""
    lines = (" \\\n".join(_command_lines(f"{program} {example}")) for example in examples)
    return _EXAMPLES + f"\n{' ' * len(_EXAMPLES)}".join(lines)


def _command_lines(command: str) -> list[str]:
    """Break a command line before options."""
    unbreakable = re.sub(r" (?!--)", "\0", command)
    indent = " " * (len(_EXAMPLES) + 4)
    lines = textwrap.wrap(unbreakable, _COMMAND_WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def entry(
    function: str, summary: str, description: str, examples: str | tuple[str, ...], *arguments: Argument
) -> Command:
    """Return a command.

    :param function: module and name in this package; imported when the command runs
    :param examples: what follows the name of the program
    """
    examples = (examples,) if isinstance(examples, str) else examples
    return Command(examples[0].split()[0], function, summary, wrapped(description), examples, arguments)
