"""What is loaded, how, and into what: the parameters of a load, and whether they can work."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, get_args
from urllib.parse import urlsplit

import pyarrow as pa

from airflow_kafka_offsets import planning
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats import ValueFormat, row_columns
from airflow_kafka_offsets.ledger import Tables
from airflow_kafka_offsets.sinks import SqlTable
from airflow_kafka_offsets.spark.application import load_transform

OnBusy = Literal["wait", "fail"]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What is loaded, how, and into what. Plain data; nothing is read or checked before `load`.

    :param group_id: names the positions in the database; no consumer group is made in Kafka
    :param topics: the topics to load; their positions move together
    :param value_format: which columns a record becomes: `Json(…)` or `Raw()`
    :param sink: where the rows go, in the database that holds the positions
    :param transform: `package.module.function` from DataFrame to DataFrame, or None
    :param start: where a topic without a stored position begins: earliest, latest, or none to refuse
    :param max_records: the most offsets of one batch; a load is then as many batches as it takes
    :param on_data_loss: what to do about records that are gone before they were loaded: fail, or skip and record the gap
    :param isolation_level: read_committed or read_uncommitted, for planning and reading alike
    :param slice_offsets: the most offsets that one Spark task reads
    :param staging_dir: a directory, or a URI that pyarrow knows, that this process and Spark's executors share; None is a
        directory of the user's on this machine, which is enough for a local master
    :param on_busy: what to do while another run holds the group: wait, or fail
    :param lease: how long others believe that a silent attempt lives
    :param idle_timeout: seconds without a record and without an end of log after which a read is given up
    :param tables: where the state tables are
    """

    group_id: str
    topics: tuple[str, ...]
    value_format: ValueFormat
    sink: SqlTable
    transform: str | None = None
    start: planning.Start = "earliest"
    max_records: int | None = None
    on_data_loss: planning.OnDataLoss = "fail"
    isolation_level: str = "read_committed"
    slice_offsets: int = 250_000
    staging_dir: str | None = None
    on_busy: OnBusy = "wait"
    lease: timedelta = timedelta(seconds=60)
    idle_timeout: float = 120.0
    tables: Tables = field(default_factory=Tables)

    def check(self) -> pa.Schema:
        """Refuse what cannot work, before anything is asked or launched.

        :return: the columns of a decoded row
        :raises ConfigurationError: a parameter is wrong; says which value was received
        :raises TransformError: the transform cannot be imported
        """
        planning.check_options(self.start, self.on_data_loss, self.max_records)
        if not self.group_id:
            raise ConfigurationError("group_id must not be empty")
        if not self.topics or len(set(self.topics)) != len(self.topics):
            raise ConfigurationError(f"topics must be a list of different topic names; got topics={self.topics!r}")
        if self.on_busy not in get_args(OnBusy):
            raise ConfigurationError(
                f"on_busy must be one of {', '.join(get_args(OnBusy))}; got on_busy={self.on_busy!r}"
            )
        if self.slice_offsets < 1:
            raise ConfigurationError(f"slice_offsets must be at least 1; got slice_offsets={self.slice_offsets}")
        if self.lease <= timedelta(0):
            raise ConfigurationError(f"lease must be a positive duration; got lease={self.lease!r}")
        _check_staging_dir(self.staging_dir)
        columns = row_columns(self.value_format)
        if self.transform is not None:
            load_transform(self.transform)
        return columns


def _check_staging_dir(staging_dir: str | None) -> None:
    """
    :raises ConfigurationError: it is no absolute path or URI, or holds credentials, which would end up in the ledger
    """
    if not staging_dir:
        return
    parts = urlsplit(staging_dir)
    if parts.username or parts.password:
        raise ConfigurationError(
            "staging_dir must not hold credentials: they would be stored in the history of batches"
        )
    if not parts.scheme and not staging_dir.startswith("/"):
        raise ConfigurationError(f"staging_dir must be an absolute path or a URI; got staging_dir={staging_dir!r}")
