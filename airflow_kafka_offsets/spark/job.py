"""What the Spark application is told, and what it leaves behind: the job and the manifest, as files."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pyarrow as pa

from airflow_kafka_offsets.core.offsets import Slice, pack
from airflow_kafka_offsets.staging.manifest import from_dicts
from airflow_kafka_offsets.staging.target_columns import TargetColumns


@dataclass(frozen=True)
class StageJob:
    """One attempt to stage a batch.

    :param kafka_config: librdkafka configuration; holds secrets, and travels in a file that only its owner can read
    :param value_format: `json` or `raw`
    :param columns: the decoded columns with the audit columns, as Arrow sees them
    :param columns_ddl: the same columns as Spark sees them
    :param transform: `package.module.function` from DataFrame to DataFrame, or None
    :param target: what the sink can take, to check the transform's result against before anything is read
    :param fingerprint: of everything that decides what the rows are; comes back in the manifest
    :param staging_uri: an empty directory that belongs to this attempt alone
    :param python_path: directories in which the driver finds the transform
    :param task_offsets: slices of no more offsets than this share a Spark task
    :param on_bad_record: `fail`, or `dead_letter`: a record that does not decode is set aside
    :param max_dead_letters: of the batch, so that no slice needs to set aside more; None for any number
    :param idle_timeout: seconds after which a read without any record or end of log is given up
    """

    batch_id: int
    group_id: str
    slices: tuple[Slice, ...]
    kafka_config: Mapping[str, Any] = field(repr=False)
    isolation_level: str
    value_format: str
    columns: pa.Schema
    columns_ddl: str
    transform: str | None
    target: TargetColumns
    fingerprint: str
    staging_uri: str
    python_path: tuple[str, ...] = ()
    idle_timeout: float = 120.0
    on_bad_record: str = "fail"
    max_dead_letters: int | None = None
    task_offsets: int = 0
    progress_interval: float = 5.0

    @property
    def offsets(self) -> int:
        """How many offsets the slices span."""
        return sum(map(len, self.slices))

    @property
    def tasks(self) -> list[tuple[Slice, ...]]:
        """The slices of each Spark task, in order."""
        return pack(self.slices, self.task_offsets)

    def to_json(self) -> str:
        plain = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        plain["slices"] = [asdict(one) for one in self.slices]
        plain["target"] = asdict(self.target)
        plain["kafka_config"] = dict(self.kafka_config)
        plain["columns"] = base64.b64encode(self.columns.serialize().to_pybytes()).decode()
        return json.dumps(plain)

    @classmethod
    def from_json(cls, text: str) -> StageJob:
        plain = json.loads(text)
        known = plain["target"]["known"]
        plain["slices"] = from_dicts(Slice, plain["slices"])
        plain["target"] = TargetColumns(
            plain["target"]["table"], None if known is None else tuple(known), tuple(plain["target"]["required"])
        )
        plain["columns"] = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(plain["columns"])))
        plain["python_path"] = tuple(plain["python_path"])
        return cls(**plain)
