"""Rows of batches that the state tables do not know: then the state tables are older than the table."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow.compute as pc
import sqlalchemy as sa
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.types import LongType, PrimitiveType
from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.origin import BATCH_ID
from airflow_kafka_offsets.exceptions import OlderLedgerError
from airflow_kafka_offsets.sinks.iceberg.publication import publications
from airflow_kafka_offsets.sinks.iceberg.source import plan, read, since

_READ_AT_ONCE = 16

_MOST_MANIFESTS = 20_000

_last_batches: dict[str, int] = {}
"""By the path of a manifest, the highest batch that it names: manifests never change, and a process reads each once."""


def refuse_unknown_rows(conn: Connection, name: str, table: Table, batches: sa.Table, batch_id: int) -> None:
    """Raise if a table holds rows of a batch that the state tables do not know; see `Table.refuse_unknown_rows`."""
    # This batch may have its rows there once it began to be published.
    is_known = sa.or_(batches.c.batch_id != batch_id, batches.c.publish_started_at.is_not(None))
    candidates = sorted({*_published(conn, table, batches, batch_id), *_with_rows(table, batch_id)})
    if not candidates:
        return
    known = set(conn.scalars(sa.select(batches.c.batch_id).where(batches.c.batch_id >= batch_id, is_known)))
    unknown = next((number for number in candidates if number not in known), None)
    if unknown is not None:
        raise OlderLedgerError(
            f"{name} holds rows of batch {unknown}, which the state tables do not know; the next batch would be "
            f"{batch_id}. The state tables were restored from an older backup than the table, or created again. "
            "Nothing was written: their records would be loaded again. Restore both to the same moment, or delete the "
            f"rows with {BATCH_ID} >= {batch_id}, which this load then brings back, and the properties "
            "'kafka-offsets.…' of the table."
        )


def _published(conn: Connection, table: Table, batches: sa.Table, batch_id: int) -> set[int]:
    """Return the batches of the same group that the table says were published, from this one on."""
    group_id = conn.scalar(sa.select(batches.c.consumer_group).where(batches.c.batch_id == batch_id))
    found = (publication for _, publication in publications(table))
    return {each.batch for each in found if each.group == group_id and each.batch >= batch_id}


def _with_rows(table: Table, batch_id: int) -> set[int]:
    """Return the batches with rows in the table, from this one on. Only files are read whose statistics allow for
    one.
    """
    snapshot = table.current_snapshot()
    if snapshot is None or BATCH_ID not in table.schema().column_names:
        return set()
    manifests = [each for each in snapshot.manifests(table.io) if each.content == ManifestContent.DATA]
    if len(_last_batches) > _MOST_MANIFESTS:
        _last_batches.clear()
    unread = [manifest for manifest in manifests if manifest.manifest_path not in _last_batches]
    with ThreadPoolExecutor(_READ_AT_ONCE, thread_name_prefix="iceberg-manifests") as pool:
        for manifest, last in zip(unread, pool.map(lambda each: _last_batch(table, each), unread), strict=True):
            _last_batches[manifest.manifest_path] = last
    if max((_last_batches[manifest.manifest_path] for manifest in manifests), default=-1) < batch_id:
        return set()
    found: set[int] = set()
    schema = table.schema().select(BATCH_ID)
    for rows in read(table, schema, plan(table, since(batch_id))):
        found |= set(pc.unique(rows.column(0)).to_pylist())
    return {number for number in found if number is not None and number >= batch_id}


def _last_batch(table: Table, manifest: ManifestFile) -> int:
    """Return the highest batch of which a manifest names rows; -1 where its statistics name none."""
    column = table.schema().find_field(BATCH_ID)
    kind = column.field_type if isinstance(column.field_type, PrimitiveType) else LongType()
    bounds = (entry.data_file.upper_bounds or {} for entry in manifest.fetch_manifest_entry(table.io))
    return max((int(from_bytes(kind, each[column.field_id])) for each in bounds if column.field_id in each), default=-1)
