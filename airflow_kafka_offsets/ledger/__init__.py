"""The state in the user's database: who holds a group, its positions, and the history of its batches.

Airflow's metadata database is never touched.
"""

from airflow_kafka_offsets.ledger.batches import (
    Batch,
    abandon,
    begin_staging,
    captured_targets,
    mark_staged,
    open_batch,
    record_plan,
)
from airflow_kafka_offsets.ledger.commit import commit
from airflow_kafka_offsets.ledger.groups import Claim, TaskRun, claim, release
from airflow_kafka_offsets.ledger.heartbeat import Heartbeat
from airflow_kafka_offsets.ledger.install import init
from airflow_kafka_offsets.ledger.positions import RangeRead, positions
from airflow_kafka_offsets.ledger.tables import Tables

__all__ = [
    "Batch",
    "Claim",
    "Heartbeat",
    "RangeRead",
    "Tables",
    "TaskRun",
    "abandon",
    "begin_staging",
    "captured_targets",
    "claim",
    "commit",
    "init",
    "mark_staged",
    "open_batch",
    "positions",
    "record_plan",
    "release",
]
