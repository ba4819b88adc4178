"""What was measured: seconds of each contender with each data set, and what follows from them."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from benchmarks.datasets import Dataset

START = "empty Spark application"
PACKAGE = "this package"
TRANSFORM = "this package, DataFrame transform"
SPARK = "hand-written Spark"
OPERATOR = "ConsumeFromTopicOperator"
SCRIPT = "confluent-kafka script"
READING = "limit: ConsumerPerformance"
WRITING = "limit: binary COPY"

_ORDER = (START, PACKAGE, TRANSFORM, SPARK, OPERATOR, SCRIPT, READING, WRITING)

# At most so many records are a small data set: its loads take what starting and ending takes.
SMALL = 1_000


@dataclass(frozen=True, slots=True)
class Measured:
    """
    :param seconds: of each round, by contender
    :param small: the same of a small data set; None for a small one itself
    """

    dataset: Dataset
    small: Measured | None = None
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Those that were measured, in the order of tables."""
        return [name for name in _ORDER if name in self.seconds]

    def add(self, name: str, seconds: float) -> None:
        self.seconds.setdefault(name, []).append(seconds)

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def rate(self, name: str, *, with_start: bool = True) -> float:
        """Rows per second, of the median.

        :param with_start: False takes off what the contender's own load of a small data set took
        """
        seconds = self.median(name)
        if not with_start and self.small is not None and name in self.small.seconds:
            # Starts differ from each other by more than the smallest loads differ from them.
            seconds = max(seconds - self.small.median(name), 0.001)
        return self.dataset.records / seconds

    def ratio(self, name: str, other: str, *, with_start: bool = True) -> float:
        """How many times as fast one is as another."""
        return self.rate(name, with_start=with_start) / self.rate(other, with_start=with_start)
