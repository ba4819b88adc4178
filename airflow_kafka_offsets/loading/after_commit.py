"""What a load writes to Kafka after a commit: the stored positions, and dead letters. An error there does not fail the
load.

* The positions are mirrored to a consumer group, for lag tools and autoscalers. The database alone decides what is
  loaded: no load reads the mirror, and it may be missing. Rewound positions are mirrored, too.
* The dead letters of the batch are written to a topic beside the table `dead_letters`, at least once. The commit marks
  the batch as one whose dead letters are to be sent. The mark is removed when Kafka has acknowledged all of them. So a
  process that ends between the two leaves the mark, and the next run of the group sends them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from airflow_kafka_offsets.core.offsets import Position, TopicPartition
from airflow_kafka_offsets.core.text import count, first_few, shortened
from airflow_kafka_offsets.database.errors import database_message
from airflow_kafka_offsets.escaping import command_line, printable
from airflow_kafka_offsets.exceptions import MirrorError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.producer import Outgoing, send
from airflow_kafka_offsets.ledger.dead_letters import (
    DROPPED,
    mark_sent,
    unsent_batches,
    unsent_dead_letters,
    with_contents,
)
from airflow_kafka_offsets.ledger.positions import read_positions
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.loading.context import LoadContext, LoadResult
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.staging.dead_letters import headers_of
from airflow_kafka_offsets.staging.rows import Record

log = logging.getLogger(__name__)

# How long a load waits for the mirror after a commit: long enough for a coordinator to move to another broker.
AFTER_COMMIT_SECONDS = 5.0

_SHOWN = 10

Positions = Mapping[TopicPartition, Position]


def mirror(
    cluster: Cluster, kafka_group: str, positions: Positions, *, timeout: float = 30.0
) -> dict[TopicPartition, str]:
    """Commit positions to a consumer group in Kafka, and read them back.

    :param kafka_group: its name; a new name creates a group, a group with active members refuses
    :param timeout: seconds for both requests
    :return: the partitions without the mirrored position, with the reason
    :raises KafkaUnavailableError: the group's coordinator did not answer in time; some positions may be committed
    """
    deadline = time.monotonic() + timeout
    refused = cluster.commit(kafka_group, positions, timeout=timeout)
    accepted = [tp for tp in positions if tp not in refused]
    # The broker's answer is not enough: another client may have committed to the group since.
    committed = cluster.committed(kafka_group, accepted, timeout=_left(deadline)) if accepted else {}
    for tp in accepted:
        if committed.get(tp) != positions[tp].offset:
            refused[tp] = (
                f"the position was committed, but the group shows {committed.get(tp, 'nothing')} instead of "
                f"{positions[tp].offset}: another client commits to it; choose another name"
            )
    return refused


def mirror_stored(cluster: Cluster, kafka_group: str, stored: Callable[[], Positions], *, timeout: float = 30.0) -> int:
    """Mirror the stored positions, and repeat this until they have not moved since they were read.

    Otherwise an attempt that paused between reading and committing could overwrite a later attempt's positions with
    earlier ones. Each attempt reads the positions after its last commit, so that the last commit of all has the latest
    positions.

    :param stored: reads the positions from the database
    :param timeout: seconds for all requests
    :return: the number of partitions
    :raises MirrorError: the group does not show every position; names partitions and reasons
    :raises KafkaUnavailableError: the group's coordinator did not answer in time
    """
    deadline = time.monotonic() + timeout
    latest = stored()
    while True:
        positions = latest
        refused = mirror(cluster, kafka_group, positions, timeout=_left(deadline))
        latest = stored()
        if _offsets(latest) == _offsets(positions):
            break
    if refused:
        raise MirrorError(
            f"{len(refused)} of {count(len(positions), 'position')} {'is' if len(refused) == 1 else 'are'} not "
            f"mirrored to consumer group {kafka_group!r} in Kafka: "
            f"{_reasons(refused)}. The positions in the database are not affected."
        )
    return len(positions)


def mirror_after_commit(cluster: Cluster, kafka_group: str | None, ledger: Ledger, pipeline: Pipeline) -> None:
    """Mirror a pipeline's positions to a consumer group where one is named, in at most `AFTER_COMMIT_SECONDS`.

    Errors are logged as warnings: the rows and the positions are committed, and the next load mirrors again.
    """
    if kafka_group is None:
        return
    positions: Positions = {}

    def stored() -> Positions:
        nonlocal positions
        of_group = read_positions(ledger, pipeline.group_id)
        positions = {tp: position for tp, position in of_group.items() if tp.topic in pipeline.topics}
        return positions

    try:
        partitions = mirror_stored(cluster, kafka_group, stored, timeout=AFTER_COMMIT_SECONDS)
    except MirrorError as error:
        log.warning("%s The next load mirrors them again.", error)
    except Exception as error:
        log.warning(
            "The positions of group %r are not mirrored to consumer group %r in Kafka (%s); the next load mirrors them "
            "again: %s",
            pipeline.group_id,
            kafka_group,
            first_few(f"{tp} {position.offset}" for tp, position in sorted(positions.items()))
            or "they could not be read",
            database_message(error) if isinstance(error, DBAPIError) else error,
        )
    else:
        log.info("Consumer group %r in Kafka shows the positions of %s", kafka_group, count(partitions, "partition"))


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.0)


def _offsets(positions: Positions) -> dict[TopicPartition, int]:
    return {tp: position.offset for tp, position in positions.items()}


def _reasons(refused: Mapping[TopicPartition, str]) -> str:
    """Return the first refused partitions, grouped by reason."""
    first = sorted(refused.items(), key=lambda item: (item[1], item[0]))[:_SHOWN]
    reasons = [
        f"{', '.join(str(tp) for tp, _ in items)}: {reason}" for reason, items in groupby(first, lambda item: item[1])
    ]
    more = f"; and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
    return "; ".join(reasons) + more


PREFIX = "__kafka_offsets.errors."
"""What the names of the headers begin with that say what a dead letter is."""


def send_dead_letters(context: LoadContext) -> None:
    """Write the dead letters of the group that are to be sent, also those of earlier runs, if the pipeline has a topic.

    The pipeline names the topic: the one in the state tables is what an earlier run was to write to. Errors are logged:
    what was loaded is committed, and the next run sends what is left.
    """
    dead_letters, group_id = context.pipeline.dead_letters, context.pipeline.group_id
    if dead_letters is None or dead_letters.topic is None:
        return
    try:
        with context.ledger.connect() as conn:
            unsent = unsent_batches(conn, context.ledger.tables, group_id)
        for batch_id in unsent:
            _send(context, batch_id, dead_letters.topic)
    except Exception as error:
        log.error(
            "Dead letters of group %r are not written to topic %r, and stay in the table dead_letters; the next run "
            "writes them again: %s",
            group_id,
            dead_letters.topic,
            database_message(error) if isinstance(error, DBAPIError) else error,
        )


def warn_of_dead_letters(context: LoadContext, result: LoadResult) -> None:
    """Log the first dead letter of a run, and the command that lists all of the group."""
    if not result.dead_letters:
        return
    pipeline, tables = context.pipeline, context.ledger.tables
    dead_letters, group_id = tables.dead_letters.c, pipeline.group_id
    of_run = dead_letters.batch_id.between(min(result.batches), max(result.batches))
    is_kept = dead_letters.error_class.is_distinct_from(DROPPED)
    is_meant = sa.and_(dead_letters.consumer_group == group_id, of_run, is_kept)
    columns = [*tables.dead_letters.primary_key, dead_letters.error]
    options = {"conn-id": pipeline.sink.conn_id or "CONN_ID", **vars(pipeline.state_tables)}
    words = [word for name, value in options.items() if value for word in (f"--{name}", value)]
    with context.ledger.connect() as conn:
        for batch_id, topic, partition, offset, error in with_contents(conn, tables, columns, is_meant, 1):
            log.warning(
                "%s of group %r; the first one is %s offset %d of batch %d: %s. '%s' lists all",
                count(result.dead_letters, "new dead letter"),
                group_id,
                TopicPartition(topic, partition),
                offset,
                batch_id,
                printable(shortened(error)),
                command_line("dead-letters", "list", group_id, *words),
            )


def _send(context: LoadContext, batch_id: int, topic: str) -> None:
    ledger, group_id = context.ledger, context.pipeline.group_id
    sent = 0

    def outgoing(conn: Connection, tables: Tables) -> Iterator[Outgoing]:
        nonlocal sent
        for dead_letter in unsent_dead_letters(conn, tables, batch_id):
            sent += 1
            record = Record(dead_letter.topic, dead_letter.partition, dead_letter.offset_value)
            notes = {
                "group": group_id,
                "batch": batch_id,
                "topic": dead_letter.topic,
                "partition": dead_letter.partition,
                "offset": dead_letter.offset_value,
                "class": dead_letter.error_class,
                "message": dead_letter.error,
            }
            yield Outgoing(
                dead_letter.key,
                dead_letter.value,
                [header for header in headers_of(dead_letter.headers, *record) if not header[0].startswith(PREFIX)],
                [(f"{PREFIX}{name}", str(value).encode()) for name, value in notes.items()],
            )

    with ledger.connect() as conn:
        left_out = send(context.kafka_config, topic, outgoing(conn, ledger.tables), (f"{PREFIX}contents", b"left out"))
    mark_sent(ledger, batch_id, topic)
    log.info("Wrote %s of batch %d to topic %r", count(sent, "dead letter"), batch_id, topic)
    if left_out:
        log.warning(
            "%s of batch %d without key, value and headers: with these they exceed max.message.bytes of topic %r, or "
            "100,000 headers",
            count(left_out, "dead letter was written", "dead letters were written"),
            batch_id,
            topic,
        )
