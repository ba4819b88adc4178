"""The partitions that a rewind is limited to: all of a group, topics, or single partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.core.text import parse_unsigned
from airflow_kafka_offsets.exceptions import ConfigurationError, UnknownTopicError


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
        has = {tp.topic: sum(other.topic == tp.topic for other in logs) for tp in missing}
        raise UnknownTopicError(
            "There is no partition "
            + ", ".join(f"{tp} (the topic has {has[tp.topic]}: 0..{has[tp.topic] - 1})" for tp in missing)
        )
    return sorted(tp for tp in known if in_scope(scope, tp))


def in_scope(scope: Scope, tp: TopicPartition) -> bool:
    """Return whether a partition is in a scope."""
    return not scope or (tp.topic in scope and ((numbers := scope[tp.topic]) is None or tp.partition in numbers))


Scope = Mapping[str, frozenset[int] | None]
"""Topics with the numbers of their partitions, None for all partitions; an empty scope is all topics of the group."""


def parse_scope(scopes: str | Iterable[str]) -> Scope:
    """Parse `topic` and `topic:partition,partition`, as in Kafka's tool. Later mentions of a topic add to earlier ones.

    :param scopes: one, or several
    :raises ConfigurationError: a topic is missing, or a partition is not a number
    """
    parsed: dict[str, frozenset[int] | None] = {}
    for text in [scopes] if isinstance(scopes, str) else scopes:
        topic, colon, listed = text.partition(":")
        if not topic:
            raise ConfigurationError(f"A scope is topic or topic:0,1; got {text!r}")
        try:
            numbers = frozenset(map(parse_unsigned, listed.split(","))) if colon else None
        except ValueError:
            raise ConfigurationError(
                f"A scope is topic or topic:0,1, with partitions as numbers; got {text!r}"
            ) from None
        before = parsed.get(topic, frozenset())
        parsed[topic] = None if before is None or numbers is None else before | numbers
    return parsed
