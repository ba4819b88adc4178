"""What the Spark application knows of the target: the names of its columns, to check a transform's result against."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetColumns:
    """The columns that a transform may return, and those that it must return.

    :param table: the target's name, for messages
    :param known: every column of the target, or None if the target does not exist yet
    :param required: columns that the target cannot fill by itself
    """

    table: str
    known: tuple[str, ...] | None
    required: tuple[str, ...] = ()
