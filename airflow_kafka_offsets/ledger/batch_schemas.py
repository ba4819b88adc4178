"""What schema ids meant when batches read them: stored with each batch, for replays whose registry does not know them
any more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from airflow_kafka_offsets.formats.read_schemas import ReadSchema
from airflow_kafka_offsets.ledger.tables import Tables


def store_schemas(conn: Connection, tables: Tables, batch_id: int, schemas: Sequence[ReadSchema]) -> None:
    """Store the schemas that a batch read, but for those that are stored of it already. A text is stored once, for all
    batches.
    """
    if not schemas:
        return
    rows = {
        (schema.part, schema.schema_id): {
            "digest": hashlib.sha256(json.dumps([schema.type, schema.text]).encode()).hexdigest(),
            "type": schema.type,
            "texts": json.dumps(schema.text),
        }
        for schema in schemas
    }
    texts, read = tables.schema_texts, tables.batch_schemas
    by_digest = {row["digest"]: row for row in rows.values()}
    stored = set(conn.scalars(sa.select(texts.c.digest).where(texts.c.digest.in_(by_digest))))
    for digest in sorted(by_digest.keys() - stored):
        try:
            with conn.begin_nested():
                conn.execute(texts.insert().values(**by_digest[digest]))
        except IntegrityError:
            # A batch of another group has stored it meanwhile.
            continue
    of_batch = sa.select(read.c.part, read.c.schema_id).where(read.c.batch_id == batch_id)
    earlier = {tuple(row) for row in conn.execute(of_batch)}
    new = [
        {"batch_id": batch_id, "part": part, "schema_id": number, "digest": row["digest"]}
        for (part, number), row in rows.items()
        if (part, number) not in earlier
    ]
    if new:
        conn.execute(read.insert(), new)


def schemas_of_group(conn: Connection, tables: Tables, group_id: str) -> list[ReadSchema]:
    """Return what the batches of a group read; of an id that meant different schemas, what the latest batch read."""
    read, batches = tables.batch_schemas.c, tables.offset_batches.c
    latest = (
        sa.select(read.part, read.schema_id, sa.func.max(read.batch_id).label("batch_id"))
        .join(tables.offset_batches, batches.batch_id == read.batch_id)
        .where(batches.consumer_group == group_id)
        .group_by(read.part, read.schema_id)
        .subquery()
    )
    is_latest = (
        (read.batch_id == latest.c.batch_id) & (read.part == latest.c.part) & (read.schema_id == latest.c.schema_id)
    )
    texts = tables.schema_texts.c
    query = (
        sa.select(read.part, read.schema_id, texts.type, texts.texts)
        .join(latest, is_latest)
        .join(tables.schema_texts, texts.digest == read.digest)
    )
    return [ReadSchema(part, number, type_, json.loads(text)) for part, number, type_, text in conn.execute(query)]
