"""The targets of the benchmarks, and whether they are met."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.measured import (
    ARROW,
    AVAILABLE_NOW,
    OPERATOR,
    PACKAGE,
    READING,
    SCRIPT,
    SMALL,
    SPARK,
    SPARK_TRANSFORM,
    SQL,
    START,
    TRANSFORM,
    WRITING,
    Measured,
)

_START_SECONDS = 3.0
_OF_LIMIT = 0.65
_PROCESSOR = 2.5
# Of small loads the start is nearly all.
_PROCESSOR_RECORDS = 5_000_000
_TIMES = (
    (PACKAGE, SPARK, 3.0),
    (PACKAGE, AVAILABLE_NOW, 3.0),
    (PACKAGE, OPERATOR, 5.0),
    (PACKAGE, SCRIPT, 2.5),
    # At most 1.15 times the seconds.
    (SQL, PACKAGE, 1 / 1.15),
    (ARROW, PACKAGE, 1 / 1.15),
    (TRANSFORM, SPARK_TRANSFORM, 2.0),
    (TRANSFORM, OPERATOR, 4.0),
)


class Bar(NamedTuple):
    """
    :param found: of whole loads
    :param without_start: the same without the time of a small load; None if the bar is about that time, or about
        processor seconds
    """

    title: str
    asked: float
    found: float
    without_start: float | None
    at_most: bool = False

    @property
    def met(self) -> bool:
        return self.found <= self.asked if self.at_most else self.found >= self.asked


def judge(measured: Measured) -> list[Bar]:
    """Return the bars to which the measurements apply."""
    seconds = measured.seconds
    if measured.dataset.records <= SMALL:
        more = measured.median(PACKAGE) - measured.median(START)
        return [Bar("seconds over an empty Spark application", _START_SECONDS, more, None, at_most=True)]
    bars = [
        Bar(
            f"{name} : {other}",
            asked,
            measured.ratio(name, other),
            measured.ratio(name, other, with_start=False),
        )
        for name, other, asked in _TIMES
        if name in seconds and other in seconds
    ]
    orders = measured.dataset.name == "orders" and measured.dataset.records >= _PROCESSOR_RECORDS
    if orders and PACKAGE in measured.processor and SPARK in measured.processor:
        found = measured.processor_ratio(PACKAGE, SPARK)
        bars.append(Bar(f"{PACKAGE} : {SPARK}, processor seconds", _PROCESSOR, found, None))
    if READING in seconds and WRITING in seconds:
        slower = max(READING, WRITING, key=measured.median)
        whole, without = (measured.ratio(PACKAGE, slower, with_start=start) for start in (True, False))
        bars.append(Bar(f"{PACKAGE} : {slower}", _OF_LIMIT, whole, without))
    return bars
