"""Measurements: seconds of each contender with each data set, and rates and ratios."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from benchmarks.datasets import Dataset

START = "empty Spark application"
PACKAGE = "this package"
TRANSFORM = "this package, DataFrame transform"
ARROW = "this package, ArrowTransform"
SQL = "this package, Sql"
SPARK = "hand-written Spark"
SPARK_TRANSFORM = "hand-written Spark, same transform"
AVAILABLE_NOW = "availableNow, foreachBatch"
OPERATOR = "ConsumeFromTopicOperator"
SCRIPT = "confluent-kafka script"
READING = "limit: ConsumerPerformance"
WRITING = "limit: binary COPY"

_ORDER = (
    START,
    PACKAGE,
    SQL,
    ARROW,
    TRANSFORM,
    SPARK,
    SPARK_TRANSFORM,
    AVAILABLE_NOW,
    OPERATOR,
    SCRIPT,
    READING,
    WRITING,
)

# Up to this number of records a data set is small: its loads take the time of starting and ending.
SMALL = 1_000


@dataclass(frozen=True, slots=True)
class Measured:
    """
    :param seconds: of each round, by contender
    :param processor: processor seconds of each round, by contender
    :param small: the measurements of the small data set; None for that data set itself
    """

    dataset: Dataset
    small: Measured | None = None
    seconds: dict[str, list[float]] = field(default_factory=dict)
    processor: dict[str, list[float]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The measured contenders, in the order of tables."""
        return [name for name in _ORDER if name in self.seconds]

    def add(self, name: str, seconds: float, processor: float | None = None) -> None:
        self.seconds.setdefault(name, []).append(seconds)
        if processor is not None:
            self.processor.setdefault(name, []).append(processor)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def rate(self, name: str, *, with_start: bool = True) -> float:
        """Return the median rows per second.

        :param with_start: False subtracts the time of the contender's own load of the small data set
        """
        seconds = self.median(name)
        if not with_start and self.small is not None and name in self.small.seconds:
            # Starts vary by more than the time of the smallest loads.
            seconds = max(seconds - self.small.median(name), 0.001)
        return self.dataset.records / seconds

    def ratio(self, name: str, other: str, *, with_start: bool = True) -> float:
        """Return how many times as fast a contender is as another."""
        return self.rate(name, with_start=with_start) / self.rate(other, with_start=with_start)

    def processor_ratio(self, name: str, other: str) -> float:
        """Return how many times the processor seconds of a contender another takes."""
        return statistics.median(self.processor[other]) / statistics.median(self.processor[name])
