"""Value types: partitions, positions, ranges, slices, spans and scopes.

Ranges and spans are half open: start inclusive, end exclusive. Which offsets a range has is decided in `core.planning`;
how ranges are split for Spark, in `core.slices`; here is the arithmetic of spans. A scope limits a rewind or a lag to
topics, or to some of their partitions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from airflow_kafka_offsets.core.text import first_few, parse_unsigned
from airflow_kafka_offsets.escaping import printable
from airflow_kafka_offsets.exceptions import ConfigurationError, UnknownTopicError


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{printable(self.topic)}[{self.partition}]"


@dataclass(frozen=True, slots=True)
class OfPartition:
    """Something of a single partition: its topic and its number are the first fields."""

    topic: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Position:
    """The stored position of a partition: the next offset to read, and the identity of the log it belongs to.

    :param topic_id: None if the broker reported none (Kafka before 2.8)
    :param leader_epoch: that of a leader whose log reached the offset (KIP-320); None if it is not known
    """

    offset: int
    topic_id: str | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """The log of a partition as the cluster reports it: [beginning, end) are the offsets that can be read now.

    :param leader_epoch: that of the leader that reported the end
    """

    beginning: int
    end: int
    topic_id: str | None = None
    leader_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetRange(OfPartition):
    """Offsets of one partition that a batch loads; or a move of its position by a user, which may go back.

    :param start: the stored position, or the offset that `how` decided on; of a move, the old position
    :param end: becomes the stored position when the batch is committed; of a move, the new position
    :param target: the offset that the task instance wants to reach; the range of a capped batch ends before it
    :param how: how the start was decided: stored, earliest, latest, timestamp, group, new-partition, or skipped-gap; of
        a replay, replay; of a move, rewind, or chosen (there was no position), removed (there is none now), recreated
        (of another topic)
    :param leader_epoch: that of the stored position; None without one, or after a gap
    :param end_epoch: that of the leader that reported the log's end, when the range was planned; stored with the
        position
    """

    start: int
    end: int
    target: int
    topic_id: str | None = None
    how: str = "stored"
    leader_epoch: int | None = None
    end_epoch: int | None = None

    @property
    def continues(self) -> bool:
        """Whether a load starts at the stored position of its group, or after a gap there."""
        return self.how in ("stored", "skipped-gap")

    @property
    def epoch_after(self) -> int | None:
        """Return the leader epoch that is stored with the position when the batch is committed.

        An empty range is not read, so that no broker checks whether the log was truncated before it: it keeps the older
        epoch.
        """
        return self.end_epoch if len(self) or self.leader_epoch is None else self.leader_epoch

    def __len__(self) -> int:
        """Return how many offsets are read."""
        return self.end - self.start

    def __str__(self) -> str:
        return f"{TopicPartition(self.topic, self.partition)} {self.start}..{self.end}"


@dataclass(frozen=True, slots=True)
class Gap(OfPartition):
    """Offsets [start, end) of a partition that no batch will ever load, and the reason."""

    start: int
    end: int
    cause: str
    decision: str


@dataclass(frozen=True, slots=True)
class Slice:
    """A part of a range that one Spark task reads with one consumer.

    :param leader_epoch: that of a leader whose log reached the start; with None, the broker does not check it
    """

    index: int
    topic: str
    partition: int
    start: int
    end: int
    leader_epoch: int | None = None

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{TopicPartition(self.topic, self.partition)} {self.start}..{self.end}"


Span = tuple[int, int]


def subtract(spans: Iterable[Span], removed: Iterable[Span]) -> list[Span]:
    """Return what is left of each span without the offsets of others; spans that touch stay apart."""
    left = list(spans)
    for start, end in removed:
        if start >= end:
            continue  # an empty span would split another in two
        left = [
            piece
            for first, last in left
            for piece in ((first, min(last, start)), (max(first, end), last))
            if piece[0] < piece[1]
        ]
    return left


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return the same offsets in the fewest spans, in ascending order; none of them is empty."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif start < end:
            merged.append((start, end))
    return merged


def intersect(left: Span, right: Span) -> Span | None:
    """Return the offsets that two spans have in common, or None."""
    start, end = max(left[0], right[0]), min(left[1], right[1])
    return (start, end) if start < end else None


def first_common(spans: Iterable[Span], others: Iterable[Span]) -> Span | None:
    """Return the first offsets that two collections of spans have in common, or None.

    The spans of one collection do not overlap once they are merged. Of both together in ascending order, the first two
    that overlap are therefore neighbours, and long collections are compared in n log n.
    """
    neighbours = pairwise(sorted([*merge(spans), *merge(others)]))
    return next(filter(None, (intersect(before, after) for before, after in neighbours)), None)


def partitions_in(
    scope: Scope, positions: Iterable[TopicPartition], logs: Iterable[TopicPartition]
) -> list[TopicPartition]:
    """Return the partitions in a scope: those of the log, and those that have a position but do not exist any more.

    :param positions: the partitions that have a position
    :param logs: every partition of the topics in the scope
    :raises UnknownTopicError: the topics have no such partitions
    """
    logs = frozenset(logs)
    known = {*positions, *logs}
    named = {TopicPartition(topic, number) for topic, numbers in scope.items() for number in numbers or ()}
    if missing := sorted(named - known):
        has = Counter(tp.topic for tp in logs)
        raise UnknownTopicError(
            "There is no partition "
            + first_few(f"{tp} (the topic has {has[tp.topic]}: 0..{has[tp.topic] - 1})" for tp in missing)
        )
    return sorted(tp for tp in known if in_scope(scope, tp))


def in_scope(scope: Scope, tp: TopicPartition) -> bool:
    """Return whether a partition is in a scope."""
    return not scope or (tp.topic in scope and ((numbers := scope[tp.topic]) is None or tp.partition in numbers))


Scope = Mapping[str, frozenset[int] | None]
"""Topics with the numbers of their partitions, None for all partitions; an empty scope is all topics of the group."""


_AS_LOGGED = re.compile(r"\[([\d, ]+)\]$")


def parse_scope(scopes: str | Iterable[str]) -> Scope:
    """Parse `topic` and `topic:partition,partition`, as in Kafka's tool, and `topic[partition]`, as in logs. Later
    mentions of a topic add to earlier ones.

    Blanks around names, numbers, colons and commas mean nothing.

    :param scopes: one, or several
    :raises ConfigurationError: a topic is missing, or a partition is not a number
    """
    parsed: dict[str, set[int] | None] = {}
    for text in [scopes] if isinstance(scopes, str) else scopes:
        name, colon, listed = _AS_LOGGED.sub(r":\1", text.strip()).partition(":")
        topic = name.strip()
        # A blank within a name: several scopes were written as one text.
        if not topic or "[" in topic or any(map(str.isspace, topic)):
            raise ConfigurationError(f"A scope is topic or topic:0,1, several of them are a list; got {text!r}")
        try:
            numbers = {parse_unsigned(number.strip()) for number in listed.split(",")} if colon else None
        except ValueError:
            raise ConfigurationError(
                f"A scope is topic or topic:0,1, with partitions as numbers; got {text!r}"
            ) from None
        before = parsed.setdefault(topic, set())
        if before is None or numbers is None:
            parsed[topic] = None
        else:
            before |= numbers
    return {topic: None if numbers is None else frozenset(numbers) for topic, numbers in parsed.items()}
