"""The topic beside the table `dead_letters`: after a commit, the dead letters of the batch are written to it, at least
once.

The commit marks the batch as one whose letters are to be sent. The mark is removed when Kafka has acknowledged all of
them. So a process that ends between the two leaves the mark, and the next run of the group sends them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.database.errors import database_message
from airflow_kafka_offsets.kafka.producer import Outgoing, send
from airflow_kafka_offsets.ledger.dead_letters import mark_sent, unsent_batches, unsent_dead_letters
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.loading.context import LoadContext
from airflow_kafka_offsets.staging.dead_letters import headers_of

log = logging.getLogger(__name__)

PREFIX = "__kafka_offsets.errors."
"""What the names of the headers begin with that say what a dead letter is."""


def send_dead_letters(context: LoadContext) -> None:
    """Write the dead letters of the group that are to be sent to the topics of their batches, if the pipeline has one.

    Errors are logged: what was loaded is committed, and the next run sends what is left. A topic that cannot be
    written, such as one of an earlier name, keeps back only its own letters.
    """
    dead_letters = context.pipeline.dead_letters
    if dead_letters is None or dead_letters.topic is None:
        return
    unsent: dict[str, list[int]] = defaultdict(list)
    with _logged_errors(context, dead_letters.topic), context.ledger.connect() as conn:
        for batch_id, topic in unsent_batches(conn, context.ledger.tables, context.pipeline.group_id):
            unsent[topic].append(batch_id)
    for topic, batch_ids in unsent.items():
        with _logged_errors(context, topic):
            for batch_id in batch_ids:
                _send(context, batch_id, topic)


@contextmanager
def _logged_errors(context: LoadContext, topic: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log.error(
            "Dead letters of group %r are not written to topic %r, and stay in the table dead_letters; the next run "
            "writes them again: %s",
            context.pipeline.group_id,
            topic,
            database_message(error) if isinstance(error, DBAPIError) else error,
        )


def _send(context: LoadContext, batch_id: int, topic: str) -> None:
    ledger, group_id = context.ledger, context.pipeline.group_id
    sent = 0

    def outgoing(conn: Connection, tables: Tables) -> Iterator[Outgoing]:
        nonlocal sent
        for letter in unsent_dead_letters(conn, tables, batch_id):
            sent += 1
            notes = {
                "group": group_id,
                "batch": batch_id,
                "topic": letter.topic,
                "partition": letter.partition,
                "offset": letter.offset_value,
                "class": letter.error_class,
                "message": letter.error,
            }
            yield Outgoing(
                letter.key,
                letter.value,
                headers_of(letter.headers),
                [(f"{PREFIX}{name}", str(value).encode()) for name, value in notes.items()],
            )

    with ledger.connect() as conn:
        left_out = send(context.kafka_config, topic, outgoing(conn, ledger.tables), (f"{PREFIX}contents", b"left out"))
    mark_sent(ledger, batch_id)
    log.info("Wrote %s of batch %d to topic %r", count(sent, "dead letter"), batch_id, topic)
    if left_out:
        log.warning(
            "%s of batch %d without key, value and headers: with them they are larger than max.message.bytes of topic "
            "%r allows",
            count(left_out, "dead letter was written", "dead letters were written"),
            batch_id,
            topic,
        )
