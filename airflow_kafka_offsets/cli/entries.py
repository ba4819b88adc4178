"""How commands are declared: by functions that are decorated with the `command` of a group of commands.

What a command takes and says is here, for `airflow kafka-offsets` and `kafka-offsets` alike; each makes its parser of
it.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from airflow_kafka_offsets.cli.connections import Connections

_WIDTH = 100
_COMMAND_WIDTH = 110
_EXAMPLES = "Example: "


class Argument(NamedTuple):
    """An argument of a command.

    :param flags: as it is typed; a name without hyphens is positional
    :param settings: as for `ArgumentParser.add_argument`
    """

    flags: tuple[str, ...]
    settings: dict[str, Any]


class Command(NamedTuple):
    """A command.

    :param path: what is typed, with `kafka-offsets` and the name of its group
    :param examples: whole command lines
    """

    path: str
    function: Callable[[Namespace], None]
    help: str
    description: str
    examples: tuple[str, ...]
    arguments: tuple[Argument, ...]

    @property
    def name(self) -> str:
        return self.path.split()[-1]

    def run(self, args: Namespace, connections: Connections) -> None:
        """Run it. A failure ends the process, with one line on standard error."""
        from airflow_kafka_offsets.cli.command import reported
        from airflow_kafka_offsets.cli.output import data_alone, flush

        args.connections = connections
        with data_alone(), reported(self.path, connections):
            self.function(args)
            flush()


@dataclass(frozen=True)
class Group:
    """Commands, and groups of commands, with a name in common.

    :param path: what is typed before their names
    """

    path: str
    help: str
    description: str
    commands: list[Command | Group] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.path.split()[-1]

    def command(
        self, examples: str | tuple[str, ...], *arguments: Argument
    ) -> Callable[[Callable[[Namespace], None]], Command]:
        """Have a function be a command of the group; its docstring is what the help says.

        The function is called with the parsed arguments, and their `connections`. What it runs with is imported in it.

        :param examples: command lines from the name of the command on
        """
        examples = (examples,) if isinstance(examples, str) else examples

        def declare(function: Callable[[Namespace], None]) -> Command:
            # Python leaves docstrings out where it is told to.
            summary, _, description = (inspect.getdoc(function) or "").partition("\n\n")
            command = Command(
                f"{self.path} {examples[0].split()[0]}",
                function,
                summary.removesuffix("."),
                " ".join(description.split()),
                tuple(f"{self.path} {example}" for example in examples),
                arguments,
            )
            self.commands.append(command)
            return command

        return declare

    def group(self, name: str, summary: str, description: str) -> Group:
        """Return a new group in this one."""
        group = Group(f"{self.path} {name}", summary, description)
        self.commands.append(group)
        return group


def wrapped(text: str, indent: int = 0) -> str:
    """Return a text in lines of the width of a help. Airflow prints a help as it is.

    :param indent: the columns that the help has to the left of the text
    """
    return textwrap.fill(text, _WIDTH - indent)


def epilog(examples: Iterable[str]) -> str:
    """Return examples, with lines that a shell joins."""
    return _EXAMPLES + f"\n{' ' * len(_EXAMPLES)}".join(map(_command_lines, examples))


def _command_lines(command: str) -> str:
    """Break a command line before options."""
    unbreakable = re.sub(r" (?!--)", "\0", command)
    indent = " " * (len(_EXAMPLES) + 4)
    lines = textwrap.wrap(unbreakable, _COMMAND_WIDTH, subsequent_indent=indent, break_on_hyphens=False)
    return " \\\n".join(lines).replace("\0", " ")
