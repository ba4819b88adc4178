"""The state in the user's database: who holds a group, its positions, and the history of its batches.

Airflow's metadata database is never touched.
"""

from airflow_kafka_offsets.ledger.batches import (
    OPEN_STATES,
    Batch,
    Recipe,
    abandon,
    begin_staging,
    captured_targets,
    mark_staged,
    open_batch,
    record_plan,
)
from airflow_kafka_offsets.ledger.commit import commit
from airflow_kafka_offsets.ledger.connection import now, outages_told
from airflow_kafka_offsets.ledger.dead_letters import write_dead_letters
from airflow_kafka_offsets.ledger.groups import Claim, TaskRun, check_claim, claim, generation, release
from airflow_kafka_offsets.ledger.heartbeat import Heartbeat
from airflow_kafka_offsets.ledger.history import bytes_per_offset
from airflow_kafka_offsets.ledger.install import init
from airflow_kafka_offsets.ledger.positions import RangeRead, positions
from airflow_kafka_offsets.ledger.tables import Tables

__all__ = [
    "OPEN_STATES",
    "Batch",
    "Claim",
    "Heartbeat",
    "RangeRead",
    "Recipe",
    "Tables",
    "TaskRun",
    "abandon",
    "begin_staging",
    "bytes_per_offset",
    "captured_targets",
    "check_claim",
    "claim",
    "commit",
    "generation",
    "init",
    "mark_staged",
    "now",
    "open_batch",
    "outages_told",
    "positions",
    "record_plan",
    "release",
    "write_dead_letters",
]
