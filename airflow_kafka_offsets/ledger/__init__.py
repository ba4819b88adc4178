"""The state in the user's database: who holds a group, its positions, and the history of its batches.

Airflow's metadata database is never touched.
"""

from airflow_kafka_offsets.ledger.batch_rows import OPEN_STATES, Batch, Recipe
from airflow_kafka_offsets.ledger.batches import (
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
from airflow_kafka_offsets.ledger.double_loads import refuse_double
from airflow_kafka_offsets.ledger.group_table import keep_to_table, same_table_names
from airflow_kafka_offsets.ledger.groups import Claim, TaskRun, check_claim, claim, generation, release
from airflow_kafka_offsets.ledger.heartbeat import Heartbeat
from airflow_kafka_offsets.ledger.history import bytes_per_offset
from airflow_kafka_offsets.ledger.install import create_missing, init
from airflow_kafka_offsets.ledger.positions import RangeRead, positions
from airflow_kafka_offsets.ledger.replacement import replace_output
from airflow_kafka_offsets.ledger.replays import (
    Replay,
    ReplayBatch,
    ReplayClaim,
    batch_of,
    plan_again,
    record_replay,
    take_replay,
)
from airflow_kafka_offsets.ledger.starts import positions_begun
from airflow_kafka_offsets.ledger.tables import Tables

__all__ = [
    "OPEN_STATES",
    "Batch",
    "Claim",
    "Heartbeat",
    "RangeRead",
    "Recipe",
    "Replay",
    "ReplayBatch",
    "ReplayClaim",
    "Tables",
    "TaskRun",
    "abandon",
    "batch_of",
    "begin_staging",
    "bytes_per_offset",
    "captured_targets",
    "check_claim",
    "claim",
    "commit",
    "create_missing",
    "generation",
    "init",
    "keep_to_table",
    "mark_staged",
    "now",
    "open_batch",
    "outages_told",
    "plan_again",
    "positions",
    "positions_begun",
    "record_plan",
    "record_replay",
    "refuse_double",
    "release",
    "replace_output",
    "same_table_names",
    "take_replay",
    "write_dead_letters",
]
