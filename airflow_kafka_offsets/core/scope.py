"""Which partitions a command is about: all of a group, topics, or single partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.text import parse_unsigned
from airflow_kafka_offsets.exceptions import ConfigurationError, UnknownTopicError


def partitions_in(
    scope: Scope, positions: Iterable[TopicPartition], logs: Iterable[TopicPartition]
) -> list[TopicPartition]:
    """The partitions that a scope means: those of the log, and stored positions of partitions that are gone.

    :param positions: those that have a position
    :param logs: every partition of the topics that are meant
    :raises UnknownTopicError: the topics have no such partitions
    """
    logs = frozenset(logs)
    known = sorted({*positions, *logs})
    meant = [tp for tp in known if in_scope(scope, tp)]
    listed_all = [TopicPartition(topic, one) for topic, listed in scope.items() for one in listed or ()]
    missing = sorted(set(listed_all) - set(known))
    if missing:
        has = {tp.topic: sum(other.topic == tp.topic for other in logs) for tp in missing}
        raise UnknownTopicError(
            "There is no partition "
            + ", ".join(f"{tp} (the topic has {has[tp.topic]}: 0..{has[tp.topic] - 1})" for tp in missing)
        )
    return meant


def in_scope(scope: Scope, tp: TopicPartition) -> bool:
    """Whether a scope means a partition."""
    return not scope or (tp.topic in scope and ((listed := scope[tp.topic]) is None or tp.partition in listed))


Scope = Mapping[str, frozenset[int] | None]
"""Topics with the partitions that are meant, None for all of them; an empty scope is all topics of the group."""


def parse_scope(scopes: str | Iterable[str]) -> Scope:
    """A scope of `topic` and `topic:partition,partition`, as Kafka's tool has it. Later mentions of a topic add to earlier ones.

    :param scopes: several of them, or one
    :raises ConfigurationError: a partition is not a number
    """
    found: dict[str, frozenset[int] | None] = {}
    for one in [scopes] if isinstance(scopes, str) else scopes:
        topic, colon, listed = one.partition(":")
        if not topic:
            raise ConfigurationError(f"A scope is topic or topic:0,1; got {one!r}")
        if not colon:
            found[topic] = None
            continue
        try:
            partitions = frozenset(parse_unsigned(number) for number in listed.split(","))
        except ValueError:
            raise ConfigurationError(
                f"A scope is topic or topic:0,1, with partitions as numbers; got {one!r}"
            ) from None
        before = found.get(topic, frozenset())
        found[topic] = None if before is None else before | partitions
    return found
