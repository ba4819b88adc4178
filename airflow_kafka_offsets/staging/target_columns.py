"""The columns of the target, as far as the Spark application has to know them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TargetColumns:
    """What the sink needs of a transform's result, known before Spark starts.

    :param table: the target's name, for messages
    :param known: every column of the target, or None where it does not exist yet
    :param required: columns that the target cannot fill by itself
    """

    table: str
    known: tuple[str, ...] | None
    required: tuple[str, ...] = ()
