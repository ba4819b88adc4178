"""A page of the dead letters of a group, with the beginnings of what they hold: one may have tens of megabytes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.ledger.tables import Tables

SHOWN_BYTES = 4_096
"""How much of a key, a value, headers or an error is read."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of bytes or text, and how long all of it is."""

    beginning: bytes | str
    length: int


@dataclass(frozen=True, slots=True)
class DeadLetterExcerpt:
    """A dead letter.

    :param headers: JSON, as `letters.selection.DeadLetter` has it
    """

    batch_id: int
    topic: str
    partition: int
    offset: int
    timestamp: datetime | None
    error_class: str | None
    schema_id: int | None
    error: Excerpt
    key: Excerpt | None
    value: Excerpt | None
    headers: Excerpt | None


def letters_page(
    conn: Connection, tables: Tables, group_id: str, *, batch_id: int | None, offset: int, limit: int
) -> list[DeadLetterExcerpt]:
    """Return dead letters of a group, those of the latest batch first.

    :param batch_id: of one batch; None is all
    :param offset: how many are before the page
    """
    letters = tables.dead_letters.c
    place = (letters.batch_id, letters.topic, letters.partition, letters.offset_value)
    plain = (letters.record_timestamp, letters.error_class, letters.schema_id)
    excerpts = (letters.error, letters.key, letters.value, letters.headers)
    columns: list[sa.ColumnElement[Any]] = [*place, *plain]
    for column in excerpts:
        # The type says how the database's answer is read: as the column's own.
        columns += [sa.func.substr(column, 1, SHOWN_BYTES, type_=column.type), sa.func.length(column)]
    query = sa.select(*columns).where(letters.consumer_group == group_id)
    if batch_id is not None:
        query = query.where(letters.batch_id == batch_id)
    query = query.order_by(letters.batch_id.desc(), *place[1:]).limit(limit).offset(offset)
    rows = []
    for row in conn.execute(query):
        texts = [
            None if row[index] is None else Excerpt(row[index], int(row[index + 1]))
            for index in range(len(place) + len(plain), len(columns), 2)
        ]
        rows.append(DeadLetterExcerpt(*row[: len(place) + len(plain)], *texts))
    return rows
