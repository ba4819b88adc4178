"""A DataFrame transform that `Sql` could do is known by the plan that Spark made of it."""

from __future__ import annotations

import pytest

from airflow_kafka_offsets.spark.driver import is_simple

PLAN = """\
== Parsed Logical Plan ==
'Project [unresolvedstarwithcolumns(x, ('id * 2), None)]
{analyzed}
== Optimized Logical Plan ==
{optimized}
== Physical Plan ==
AdaptiveSparkPlan isFinalPlan=false
"""

SOURCE = """\
{indent}+- MapInArrow read_arrow(id#0L)#2, [id#3L, name#4], false
{indent}   +- Range (0, 4, step=1, splits=Some(4))"""


WRITES = "MapInArrow write_arrow(id#3L)#5, [name#6], false"


def plan(*made: str, source: str = SOURCE, analyzed: str = "", writes: str = WRITES) -> str:
    nodes = [writes, *made]
    lines = [f"{'   ' * (depth - 1)}+- {node}" if depth else node for depth, node in enumerate(nodes)]
    return PLAN.format(analyzed=analyzed, optimized="\n".join([*lines, source.format(indent="   " * (len(nodes) - 1))]))


@pytest.mark.parametrize(
    "nodes",
    [
        ["Project [id#3L, (id#3L * 2) AS x#9L]"],
        ["Filter (isnotnull(id#3L) AND (id#3L > 5))"],
        ["Project [id#3L]", "Filter (id#3L > 5)"],
    ],
)
def test_projections_and_filters_are_simple(nodes: list[str]) -> None:
    assert is_simple(plan(*nodes))
    assert is_simple(plan(*nodes).replace("MapInArrow", "PythonMapInArrow"))  # Spark 3.5's name of it


@pytest.mark.parametrize(
    "nodes",
    [
        ["Project [pythonUDF0#12 AS x#9]", "BatchEvalPython [shout(name#4)#8], [pythonUDF0#12]"],
        ["Project [pythonUDF0#12 AS x#9]", "ArrowEvalPython [shout(name#4)#8], [pythonUDF0#12], 200"],
        ["Project [UDF(id#3L) AS x#9]"],
        ["Project [id#3L, rand(7) AS x#9]"],
        ["Project [uuid(Some(7)) AS x#9]"],
        ["Aggregate [name#4], [name#4, count(1) AS n#9L]"],
        ["Project [id#3L]", "Window [row_number() windowspecdefinition(id#3L ASC) AS n#9]"],
        ["Generate explode(tags#5), false, [tag#9]"],
        ["Union false, false"],
        ["GlobalLimit 3", "LocalLimit 3"],
        ["Sort [id#3L ASC NULLS FIRST], true"],
    ],
)
def test_anything_else_is_not(nodes: list[str]) -> None:
    assert not is_simple(plan(*nodes))


def test_the_clock_is_none_of_it() -> None:
    analyzed = "== Analyzed Logical Plan ==\nProject [id#3L, current_timestamp() AS at#9]"
    assert not is_simple(plan("Project [id#3L, 2026-01-01 00:00:00 AS at#9]", analyzed=analyzed))


def test_neither_are_other_rows_than_those_of_kafka_and_those_alone() -> None:
    assert not is_simple(plan("Project [id#3L]", source="{indent}+- LocalRelation [id#3L]"))
    assert not is_simple(plan("MapInArrow read_arrow(id#0L)#2, [id#3L]"))
    assert not is_simple(plan("Project [id#3L]", writes="Project [id#3L]"))
    assert not is_simple("something else")
