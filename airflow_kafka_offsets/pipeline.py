"""What is loaded, how, and into what: the parameters of a load, and whether they can work."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, get_args
from urllib.parse import urlsplit

import pyarrow as pa

from airflow_kafka_offsets import bounds, parameters, planning
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats import ValueFormat, row_columns
from airflow_kafka_offsets.ledger import Tables
from airflow_kafka_offsets.ledger.tables import NAME_LENGTH
from airflow_kafka_offsets.sinks import SqlTable
from airflow_kafka_offsets.spark.application import load_transform

OnBusy = Literal["wait", "fail"]


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What is loaded, how, and into what. Plain data; nothing is read or checked before `load`.

    :param group_id: names the positions in the database; no consumer group is made in Kafka, unless `mirror_to`
    :param topics: the topics to load; their positions move together
    :param value_format: which columns a record becomes: `Json(…)` or `Raw()`
    :param sink: where the rows go, in the database that holds the positions
    :param transform: `package.module.function` from DataFrame to DataFrame, or None
    :param start: where a topic without a stored position begins: `earliest`, `latest`, `none` to refuse, a timestamp, a
        timedelta back from now, or `CommittedBy("group")` for the commits of a consumer group of Kafka's
    :param until: load up to the first record at or after this instant, None for all there is; no zone means UTC. Older records
        that arrive after that record are the next load's
    :param max_records: the most offsets of one batch; a load is then as many batches as it takes
    :param max_bytes: the most bytes of keys and values of one batch, estimated from the batches before it
    :param time_budget: no batch is begun later than this after the load began; what is left is the next load's
    :param on_data_loss: what to do about records that are gone before they were loaded: fail, or skip and record the gap
    :param on_bad_record: what to do about a record that does not decode: fail, or set it aside in `dead_letters`
    :param max_dead_letters: the most dead letters of one batch; more of them fail it, None allows any number
    :param isolation_level: read_committed or read_uncommitted, for planning and reading alike
    :param slice_offsets: the most offsets that one Spark task reads
    :param staging_dir: a directory, or a URI that pyarrow knows, that this process and Spark's executors share; None is a
        directory of the user's on this machine, which is enough for a local master
    :param staging_retention: age at which staging directories that no open batch names are removed: those of attempts that
        died on another machine
    :param on_busy: what to do while another run holds the group: wait, or fail
    :param lease: how long others believe that a silent attempt lives
    :param idle_timeout: how long a read may go without a record and without an end of log
    :param mirror_to: a consumer group in Kafka, of this load alone and without consumers, that shows the positions after each
        commit, for tools that look at lag; what goes wrong there is a warning. None mirrors to none
    :param tables: where the state tables are
    """

    group_id: str
    topics: tuple[str, ...]
    value_format: ValueFormat
    sink: SqlTable
    transform: str | None = None
    start: bounds.Start = "earliest"
    until: str | datetime | None = None
    max_records: int | None = None
    max_bytes: int | None = None
    time_budget: timedelta | None = None
    on_data_loss: planning.OnDataLoss = "fail"
    on_bad_record: parameters.OnBadRecord = "fail"
    max_dead_letters: int | None = 1000
    isolation_level: str = "read_committed"
    slice_offsets: int = 250_000
    staging_dir: str | None = None
    staging_retention: timedelta = timedelta(days=7)
    on_busy: OnBusy = "wait"
    lease: timedelta = timedelta(seconds=60)
    idle_timeout: timedelta = timedelta(seconds=120)
    mirror_to: str | None = None
    tables: Tables = field(default_factory=Tables)

    def check(self) -> pa.Schema:
        """Refuse what cannot work, before anything is asked or launched.

        :return: the columns of a decoded row
        :raises ConfigurationError: a parameter is wrong; says which value was received
        :raises TransformError: the transform cannot be imported
        """
        parameters.check(vars(self))
        if len(self.group_id) > NAME_LENGTH or "\0" in self.group_id:
            raise ConfigurationError(
                f"group_id must have at most {NAME_LENGTH} characters, and no NUL among them; got {len(self.group_id)}, which begin "
                f"with {self.group_id[:40]!r}"
            )
        if self.on_busy not in get_args(OnBusy):
            raise ConfigurationError(
                f"on_busy must be one of {', '.join(get_args(OnBusy))}; got on_busy={self.on_busy!r}"
            )
        if not isinstance(self.tables, Tables):
            raise ConfigurationError(f"tables must be Tables(…); got tables={self.tables!r}")
        bounds.check_start(self.start)
        bounds.check_until(self.until)
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
