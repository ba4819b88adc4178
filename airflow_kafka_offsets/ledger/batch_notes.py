"""The notes of a commit with its batch: the rows in each of several sinks and the added columns, as JSON; and the
schemas that it read, for replays whose registry has lost them.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from airflow_kafka_offsets.core.chunks import portions
from airflow_kafka_offsets.database.tables import ExactText, octets
from airflow_kafka_offsets.formats.read_schemas import ReadSchema
from airflow_kafka_offsets.ledger.batch_rows import update_batch
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.sinks.table import Target
from airflow_kafka_offsets.sinks.target_names import TargetNames
from airflow_kafka_offsets.sinks.target_rows import BranchOutput

log = logging.getLogger(__name__)

# Characters of the schemas that a replay takes along to Spark: each job has them.
_MOST_STORED = 16 << 20

# Digests that a statement names.
_AT_ONCE = 1_000


def note_outputs(conn: Connection, tables: Tables, batch_id: int, target: Target) -> None:
    """Add the rows that a batch wrote into each branch of a fan-out to the earlier ones, and store those that it
    removed.

    Called within the transaction, under the group's lock.

    :param batch_id: of the batch; one that moves positions writes nothing
    :param target: only a fan-out needs a note
    """
    if target.written:
        _change(conn, tables, batch_id, target.written)
    for (replaced, name), rows in target.removed.items():
        _change(conn, tables, replaced, {name: BranchOutput(-rows, True)})


def outputs_of(text: str | None, called: Callable[[str], str] = str) -> dict[str, BranchOutput]:
    """Return the rows of a batch by branch.

    :param text: as it is stored
    :param called: returns the name by which the caller knows the target of a stored name
    """
    outputs: dict[str, BranchOutput] = {}
    for name, output in json.loads(text or "{}").items():
        _add(outputs, called(name), BranchOutput(**output))
    return outputs


def _add(outputs: dict[str, BranchOutput], name: str, output: BranchOutput) -> None:
    before = outputs.get(name, BranchOutput(0, True))
    outputs[name] = BranchOutput(before.rows + output.rows, before.is_each and output.is_each)


def _change(conn: Connection, tables: Tables, batch_id: int, added: Mapping[str, BranchOutput]) -> None:
    batches, names = tables.offset_batches.c, TargetNames(conn, tables.offset_batches)
    outputs = outputs_of(conn.scalar(sa.select(batches.outputs).where(batches.batch_id == batch_id)))
    for name, output in added.items():
        _add(outputs, names.among(outputs, name), output)
    text = json.dumps({name: output._asdict() for name, output in outputs.items()})
    update_batch(conn, tables, batch_id, outputs=text)


def note_added_columns(conn: Connection, tables: Tables, batch_id: int, names: Sequence[str]) -> None:
    """Append the columns that its target got for a batch to its history, as JSON."""
    batches = tables.offset_batches.c
    # Whole: there may be thousands.
    text = sa.type_coerce(batches.added_columns, ExactText)
    before = json.loads(conn.scalar(sa.select(text).where(batches.batch_id == batch_id)) or "[]")
    update_batch(conn, tables, batch_id, added_columns=json.dumps([*before, *names]))


def store_schemas(conn: Connection, tables: Tables, batch_id: int, schemas: Sequence[ReadSchema]) -> None:
    """Store the schemas that a batch read, unless they are stored. A text is stored once for all batches."""
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
    stored: set[str] = set()
    for some in portions(sorted(by_digest), _AT_ONCE):
        stored |= set(conn.scalars(sa.select(texts.c.digest).where(texts.c.digest.in_(some))))
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
    """Return the schemas that batches of a group read, the latest ones first, as many as there is room for in each
    job; if an id had different schemas in the same registry and context, that of the latest batch.
    """
    read, batches, texts = tables.batch_schemas.c, tables.offset_batches.c, tables.schema_texts.c
    latest = (
        sa.select(read.part, read.schema_id, sa.func.max(read.batch_id).label("batch_id"))
        .join(tables.offset_batches, batches.batch_id == read.batch_id)
        .join(tables.schema_texts, texts.digest == read.digest)
        .where(batches.consumer_group == group_id)
        .group_by(read.part, read.schema_id, texts.type)
        .subquery()
    )
    is_latest = (
        (read.batch_id == latest.c.batch_id) & (read.part == latest.c.part) & (read.schema_id == latest.c.schema_id)
    )
    query = (
        sa.select(read.part, read.schema_id, texts.digest, texts.type, octets(texts.texts, conn.dialect).label("size"))
        .join(latest, is_latest)
        .join(tables.schema_texts, texts.digest == read.digest)
        .order_by(read.batch_id.desc(), read.part, read.schema_id)
    )
    found: list[ReadSchema] = []
    size = 0
    for row in conn.execute(query).all():
        size += row.size
        if size > _MOST_STORED:
            log.warning(
                "Group %r has read more schemas than %d MiB: if the registry does not know those before, records of "
                "them are bad",
                group_id,
                _MOST_STORED >> 20,
            )
            break
        text = conn.execute(sa.select(texts.texts).where(texts.digest == row.digest)).scalar_one()
        found.append(ReadSchema(row.part, row.schema_id, row.type, json.loads(text)))
    return found
