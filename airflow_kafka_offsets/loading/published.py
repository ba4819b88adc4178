"""An open batch whose rows the target has already: asked for, and committed without files where these and its records
are gone.
"""

from __future__ import annotations

import logging

from airflow_kafka_offsets.core.planning import OnDataLoss, can_still_be_read
from airflow_kafka_offsets.core.text import count
from airflow_kafka_offsets.ledger.batch_rows import Batch
from airflow_kafka_offsets.ledger.positions import without_dead_letters
from airflow_kafka_offsets.ledger.publications import published_reads
from airflow_kafka_offsets.loading.context import LoadContext
from airflow_kafka_offsets.loading.stage import StagedBatch
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest

log = logging.getLogger(__name__)


def is_published(context: LoadContext, kind: str, batch: Batch) -> bool:
    """Return whether the target has the rows of an open batch already."""
    return batch.is_publishing and context.publication(batch, kind).is_published()


def find_published(context: LoadContext, batch: Batch, on_data_loss: OnDataLoss) -> StagedBatch | None:
    """Return a batch that the target has, where neither its files nor its records are there any more: these rows are
    the only copy, and the positions follow them. What its dead letters held is lost.

    :return: None where the batch can be staged again, or `on_data_loss` is "fail" and it had dead letters
    :raises PlanningError: a log is not the one that the batch was planned from
    """
    if can_still_be_read(batch.ranges, context.cluster.logs(sorted({each.topic for each in batch.ranges})), "skip"):
        return None
    reads = published_reads(context.ledger, batch.batch_id)
    lost = sum(read.dead_letters for read in reads.values())
    if lost and on_data_loss == "fail":
        return None
    log.warning(
        "The files of batch %d are lost, and its records expired: its rows are in %s, and the positions move after "
        "them%s",
        batch.batch_id,
        context.pipeline.sink.name,
        f"; its {count(lost, 'dead letter')} cannot be had any more" if lost else "",
    )
    directory = StagingDirectory(batch.staging_uri or "/")
    return StagedBatch(directory, Manifest(batch.batch_id, "", (), ()), without_dead_letters(reads), is_lost=True)
