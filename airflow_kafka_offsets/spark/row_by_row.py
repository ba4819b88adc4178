"""Find DataFrame transforms that `Sql` could do, from the plan that Spark made of them."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SECTION = re.compile(r"== Optimized Logical Plan ==\n(.*?)\n== ", re.DOTALL)

_NODE = re.compile(r"^[\s:+-]*(\w+)")

# Between the rows that are decoded, and the result: what makes rows of each row by itself.
_SIMPLE = {"Project", "Filter"}

# What reads the records, and what writes the rows.
_IN_ARROW = ("MapInArrow", "PythonMapInArrow")

# Functions of the user's, and those that `Sql` refuses. Spark replaces the current time by a value.
_OTHER = re.compile(
    r"\b(?:\w*udf|rand|randn|uuid|shuffle|monotonically_increasing_id|spark_partition_id)\(", re.IGNORECASE
)

_CLOCK = re.compile(r"\bcurrent_(?:date|timestamp|time)\b|\bnow\(", re.IGNORECASE)


def advice(rows: DataFrame, name: str) -> str | None:
    """Return the line of the log for a transform that `Sql` could do; None for another one.

    :param rows: the files that are written of what the transform returned. Spark plans them once, for this and for the
        job
    :param name: of the transform
    """
    text = io.StringIO()
    # All versions, and Spark Connect, can print it, and have no other public way.
    with redirect_stdout(text):
        rows.explain(extended=True)
    if not is_simple(text.getvalue()):
        return None
    return (
        f"Transform {name!r} is one that Sql(…) can do: it only selects, computes and filters. Sql does so in the pass "
        "that decodes the records, in a fraction of the time; the rows of a DataFrame go through the JVM and back"
    )


def is_simple(plan: str) -> bool:
    """Return whether a plan writes rows that it makes of each decoded row by itself, with Spark's own expressions.

    :param plan: what `DataFrame.explain` prints
    """
    optimized = _SECTION.search(plan)
    if optimized is None or _CLOCK.search(plan):
        return False
    writes, *nodes = optimized[1].splitlines()
    if (node := _NODE.match(writes)) is None or node[1] not in _IN_ARROW:
        return False
    for number, line in enumerate(nodes):
        node = _NODE.match(line)
        if node is None or _OTHER.search(line):
            return False
        if node[1] not in _SIMPLE:
            return node[1] in _IN_ARROW and number > 0
    return False
