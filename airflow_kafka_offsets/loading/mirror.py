"""Positions that Kafka's own tools can see: committed to a consumer group that nobody consumes with.

The database alone decides what is loaded. The mirror goes one way, is never read back into it, and may be missing: lag
tools and autoscalers look at it. Positions are mirrored as they are, also where they went back.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby

from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.database.errors import database_message
from airflow_kafka_offsets.exceptions import MirrorError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.positions import read_positions
from airflow_kafka_offsets.loading.pipeline import Pipeline

log = logging.getLogger(__name__)


# What a load that has committed may wait for the mirror. A coordinator that is just moving is there again by then.
AFTER_COMMIT_SECONDS = 5.0

_SHOWN = 10

Positions = Mapping[TopicPartition, Position]


@dataclass(frozen=True, slots=True)
class Mirrored:
    """What a consumer group in Kafka shows after its positions were mirrored.

    :param committed: for how many partitions it shows the position
    :param refused: the other partitions, with the reason
    """

    committed: int
    refused: Mapping[TopicPartition, str]


def mirror(cluster: Cluster, kafka_group: str, positions: Positions, *, timeout: float = 30.0) -> Mirrored:
    """Commit positions to a consumer group in Kafka, and read back what it shows.

    :param kafka_group: its name; a new name is a new group, one with active members refuses
    :param timeout: seconds for all of it
    :raises KafkaUnavailableError: the group's coordinator did not answer in time; some positions may be committed
    """
    deadline = time.monotonic() + timeout
    refused = cluster.commit(kafka_group, positions, timeout=timeout)
    taken = [tp for tp in positions if tp not in refused]
    # The broker's word for each partition is not enough: whoever else commits to the group may have come in between.
    shown = cluster.committed(kafka_group, taken, timeout=_left(deadline)) if taken else {}
    for tp in taken:
        if shown.get(tp) != positions[tp].offset:
            refused[tp] = (
                f"it was committed, but the group shows {shown.get(tp, 'nothing')} instead of {positions[tp].offset}: "
                "somebody else commits to it; choose another name"
            )
    return Mirrored(len(positions) - len(refused), refused)


def mirror_stored(
    cluster: Cluster, kafka_group: str, stored: Callable[[], Positions], *, timeout: float = 30.0
) -> Mirrored:
    """Mirror the stored positions, and again while they move: what was written last is what is stored.

    An attempt that slept between its own look at the positions and the commit would otherwise put the mirror back behind a
    later attempt's. Whoever writes here looks at the positions after that, so the last one to write wrote the latest.

    :param stored: reads the positions to mirror from the database
    :param timeout: seconds for all of it
    :raises MirrorError: the group does not show every position; names partitions and reasons
    :raises KafkaUnavailableError: the group's coordinator did not answer in time
    """
    deadline = time.monotonic() + timeout
    latest = stored()
    while True:
        positions = latest
        done = mirror(cluster, kafka_group, positions, timeout=_left(deadline))
        latest = stored()
        if _offsets(latest) == _offsets(positions):
            break
    if done.refused:
        raise MirrorError(
            f"{len(done.refused)} of {len(positions)} positions are not mirrored to consumer group {kafka_group!r} in Kafka: "
            f"{_reasons(done.refused)}. The positions in the database are not touched by that."
        )
    return done


def mirror_after_commit(cluster: Cluster, kafka_group: str | None, engine: Engine, pipeline: Pipeline) -> None:
    """Mirror a pipeline's positions to a consumer group where one is named, in at most `AFTER_COMMIT_SECONDS`.

    Whatever goes wrong is a warning: the rows and the positions are committed, and the next load mirrors again.
    """
    if kafka_group is None:
        return
    positions: Positions = {}

    def stored() -> Positions:
        nonlocal positions
        every = read_positions(engine, pipeline.tables, pipeline.group_id)
        positions = {tp: one for tp, one in every.items() if tp.topic in pipeline.topics}
        return positions

    try:
        done = mirror_stored(cluster, kafka_group, stored, timeout=AFTER_COMMIT_SECONDS)
    except MirrorError as error:
        log.warning("%s The next load mirrors them again.", error)
    except Exception as error:
        log.warning(
            "The positions of group %r are not mirrored to consumer group %r in Kafka (%s); the next load mirrors them again: %s",
            pipeline.group_id,
            kafka_group,
            first_few(f"{tp} {one.offset}" for tp, one in sorted(positions.items())) or "they could not be read",
            database_message(error) if isinstance(error, DBAPIError) else error,
        )
    else:
        log.info("Consumer group %r in Kafka shows the positions of %d partitions", kafka_group, done.committed)


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)


def _offsets(positions: Positions) -> dict[TopicPartition, int]:
    return {tp: one.offset for tp, one in positions.items()}


def _reasons(refused: Mapping[TopicPartition, str]) -> str:
    """The first partitions, those of one reason together."""
    shown = sorted(refused.items(), key=lambda one: (one[1], one[0]))[:_SHOWN]
    told = [
        f"{', '.join(str(tp) for tp, _ in those)}: {reason}" for reason, those in groupby(shown, lambda one: one[1])
    ]
    more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
    return "; ".join(told) + more
