"""How many rows a batch has in each of several sinks: stored with the batch, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.sinks.table import Target
from airflow_kafka_offsets.sinks.target_rows import BranchOutput


def note_outputs(conn: Connection, tables: Tables, batch_id: int, target: Target) -> None:
    """Store what a batch wrote into each branch of a fan-out, beside what it wrote before, and what it removed of other
    batches.

    Called within the transaction, under the group's lock.

    :param batch_id: of the batch; one that moves positions writes nothing
    :param target: one that is no fan-out needs no note
    """
    if target.written:
        _change(conn, tables, batch_id, target.written)
    for (replaced, name), rows in target.removed.items():
        _change(conn, tables, replaced, {name: BranchOutput(-rows, True)})


def outputs_of(text: str | None) -> dict[str, BranchOutput]:
    """Return the rows of a batch by branch.

    :param text: as it is stored
    """
    return {name: BranchOutput(**output) for name, output in json.loads(text or "{}").items()}


def _change(conn: Connection, tables: Tables, batch_id: int, added: Mapping[str, BranchOutput]) -> None:
    batches = tables.offset_batches
    of_batch = batches.c.batch_id == batch_id
    outputs = outputs_of(conn.scalar(sa.select(batches.c.outputs).where(of_batch)))
    for name, output in added.items():
        before = outputs.get(name, BranchOutput(0, True))
        outputs[name] = BranchOutput(before.rows + output.rows, before.is_each and output.is_each)
    conn.execute(
        batches.update()
        .where(of_batch)
        .values(outputs=json.dumps({name: output._asdict() for name, output in outputs.items()}))
    )
