"""What is loaded, how, and into what: the parameters of loads and replays, and whether they can work."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import urlsplit

import pyarrow as pa

from airflow_kafka_offsets.core import planning
from airflow_kafka_offsets.core.parameters import check
from airflow_kafka_offsets.core.start import Start, check_start, check_until
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.record_format import RecordFormat
from airflow_kafka_offsets.formats.row_columns import row_columns
from airflow_kafka_offsets.ledger.tables import NAME_LENGTH, Tables
from airflow_kafka_offsets.loading.parameters import PIPELINE_RULES, OnBadRecord, OnBusy
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.spark.transforms import load_transform


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What rows the records of topics become, and where they go: for `load` and `replay` alike.

    Plain data; nothing is read or checked before it is used. As for `KafkaBatchOperator`: `group_id`, `topics`, `value_format`,
    `sink`, `transform`, `on_bad_record`, `max_dead_letters`, `isolation_level`, `slice_offsets`, `staging_dir`,
    `staging_retention`, `idle_timeout`. The connection of the sink is not used: its database is the engine's.

    :param tables: where the state tables are
    """

    group_id: str
    topics: tuple[str, ...]
    value_format: RecordFormat
    sink: Sink
    transform: str | None = None
    on_bad_record: OnBadRecord = "fail"
    max_dead_letters: int | None = 1000
    isolation_level: str = "read_committed"
    slice_offsets: int = 250_000
    staging_dir: str | None = None
    staging_retention: timedelta = timedelta(days=7)
    idle_timeout: timedelta = timedelta(seconds=120)
    tables: Tables = field(default_factory=Tables)

    def check(self) -> pa.Schema:
        """Refuse what cannot work, before anything is asked or launched.

        :return: the columns of a decoded row
        :raises ConfigurationError: a parameter is wrong; says which value was received
        :raises TransformError: the transform cannot be imported
        """
        check(vars(self), PIPELINE_RULES)
        if len(self.group_id) > NAME_LENGTH or "\0" in self.group_id:
            raise ConfigurationError(
                f"group_id must have at most {NAME_LENGTH} characters, and no NUL among them; got {len(self.group_id)}, which begin "
                f"with {self.group_id[:40]!r}"
            )
        if not isinstance(self.tables, Tables):
            raise ConfigurationError(f"tables must be Tables(…); got tables={self.tables!r}")
        _check_staging_dir(self.staging_dir)
        columns = row_columns(self.value_format)
        if self.transform is not None:
            load_transform(self.transform)
        return columns


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Where a load begins, how far it goes, and what it does about other runs: what a replay has no use for.

    As for `KafkaBatchOperator`: `start`, `until`, `max_records`, `max_bytes`, `time_budget`, `on_data_loss`, `lease`,
    `mirror_to`.

    :param on_busy: while another run holds the group: wait, or fail
    """

    start: Start = "earliest"
    until: str | datetime | None = None
    max_records: int | None = None
    max_bytes: int | None = None
    time_budget: timedelta | None = None
    on_data_loss: planning.OnDataLoss = "fail"
    on_busy: OnBusy = "wait"
    lease: timedelta = timedelta(seconds=60)
    mirror_to: str | None = None

    def check(self) -> None:
        """Refuse what cannot work, before anything is asked or launched.

        :raises ConfigurationError: an option is wrong; says which value was received
        """
        check(vars(self), PIPELINE_RULES)
        check_start(self.start)
        check_until(self.until)


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
