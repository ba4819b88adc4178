"""Load Kafka topics into a table, exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from airflow_kafka_offsets.retry_policy import KafkaOffsetsRetryPolicy

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_kafka_offsets.bounds import Start
    from airflow_kafka_offsets.formats import ValueFormat
    from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
    from airflow_kafka_offsets.sinks import SqlTable


class KafkaBatchOperator(BaseOperator):
    """Load what is new in Kafka topics into a SQL table; rows and positions move in one transaction.

    A run loads up to the ends of the logs that its first try saw. A retry, or a clear after success, carries on from the
    stored positions: it never loads a record twice. Where nothing is new, Spark is not started and the task succeeds.
    An error that no retry can help, such as data loss or a record that does not decode, fails the task at once, unless the
    task has a `retry_policy` of its own.

    :param group_id: the group whose positions are used; lives in the database of the sink, not in Kafka (templated)
    :param topics: the topics to load (templated)
    :param value_format: which columns a record becomes: `Json("id BIGINT, …")` or `Raw()`
    :param sink: the target, for example `SqlTable("orders", conn_id="warehouse")`; its database holds the positions
    :param transform: import path of a function from DataFrame to DataFrame, or None (templated)
    :param start: where a topic without a position begins: `earliest`, `latest`, `none` to refuse, a timestamp (ISO 8601), a
        timedelta back from now, or `CommittedBy("group")`: where a consumer group of Kafka's stands (templated)
    :param until: load up to the first record at or after this instant, for example `{{ data_interval_end }}` (templated)
    :param lateness: with `until`, how far to read on for older records that arrived late; newer ones are left to the next run
    :param max_records: the most offsets of one batch; more than that is loaded in several
    :param max_bytes: the most bytes of keys and values of one batch, estimated from the batches before it
    :param time_budget: no batch is begun later than this after the load began; what is left is the next run's
    :param on_data_loss: fail, or skip records that are gone before they were loaded, and record the gap
    :param on_bad_record: fail at a record that does not decode, or set it aside in the table `dead_letters`: dead_letter
    :param max_dead_letters: the most dead letters of one batch; more of them fail it, None allows any number
    :param on_busy: while another run holds the group: wait, skip this task, or fail
    :param isolation_level: read_committed or read_uncommitted
    :param staging_dir: what workers and executors share for staged files; not needed for a local master (templated)
    :param spark_conf: Spark properties (templated)
    :param slice_offsets: the most offsets that one Spark task reads
    :param staging_retention: age at which staged files that no open batch names are removed
    :param lease: how long other runs believe that a silent run lives
    :param idle_timeout: how long a read may go without a record and without an end of log
    :param offsets_schema: database schema of the state tables; None is the connection's default
    :param offsets_prefix: put before the names of the state tables
    :param kafka_conn_id: connection of the Kafka provider
    :param spark_conn_id: connection of the Spark provider
    """

    template_fields: Sequence[str] = (
        "group_id",
        "topics",
        "transform",
        "start",
        "until",
        "staging_dir",
        "spark_conf",
    )

    def __init__(
        self,
        *,
        group_id: str,
        topics: Sequence[str],
        value_format: ValueFormat,
        sink: SqlTable,
        transform: str | None = None,
        start: Start = "earliest",
        until: str | datetime | None = None,
        lateness: timedelta = timedelta(0),
        max_records: int | None = None,
        max_bytes: int | None = None,
        time_budget: timedelta | None = None,
        on_data_loss: str = "fail",
        on_bad_record: str = "fail",
        max_dead_letters: int | None = 1000,
        on_busy: str = "wait",
        isolation_level: str = "read_committed",
        staging_dir: str | None = None,
        spark_conf: dict[str, Any] | None = None,
        slice_offsets: int = 250_000,
        staging_retention: timedelta = timedelta(days=7),
        lease: timedelta = timedelta(seconds=60),
        idle_timeout: timedelta = timedelta(seconds=120),
        offsets_schema: str | None = None,
        offsets_prefix: str = "",
        kafka_conn_id: str = "kafka_default",
        spark_conn_id: str = "spark_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if self.retry_policy is None:
            self.retry_policy = KafkaOffsetsRetryPolicy()
        self.group_id = group_id
        self.topics = topics
        self.value_format = value_format
        self.sink = sink
        self.transform = transform
        self.start = start
        self.until = until
        self.lateness = lateness
        self.max_records = max_records
        self.max_bytes = max_bytes
        self.time_budget = time_budget
        self.on_data_loss = on_data_loss
        self.on_bad_record = on_bad_record
        self.max_dead_letters = max_dead_letters
        self.on_busy = on_busy
        self.isolation_level = isolation_level
        self.staging_dir = staging_dir
        self.spark_conf = spark_conf
        self.slice_offsets = slice_offsets
        self.staging_retention = staging_retention
        self.lease = lease
        self.idle_timeout = idle_timeout
        self.offsets_schema = offsets_schema
        self.offsets_prefix = offsets_prefix
        self.kafka_conn_id = kafka_conn_id
        self.spark_conn_id = spark_conn_id
        self._launcher: SparkSubmitLauncher | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Load.

        :return: `batches` (ids), `records`, `rows`, `dead_letters` and `complete`, for XCom
        """
        # Here and not above: DAG files are parsed every few seconds.
        from airflow_kafka_offsets.exceptions import GroupBusyError

        try:
            return self._load(context)
        except GroupBusyError as busy:
            if self.on_busy == "skip":
                raise AirflowSkipException(str(busy)) from busy
            raise

    def on_kill(self) -> None:
        """Stop Spark when Airflow stops the task; what was staged is replayed by the next try."""
        if self._launcher is not None:
            self._launcher.on_kill()

    def _load(self, context: Context) -> dict[str, Any]:
        from airflow_kafka_offsets.batch import load
        from airflow_kafka_offsets.exceptions import ConfigurationError
        from airflow_kafka_offsets.hooks.database import database_engine
        from airflow_kafka_offsets.hooks.kafka import kafka_config
        from airflow_kafka_offsets.hooks.spark import SparkSubmitLauncher
        from airflow_kafka_offsets.ledger import Tables
        from airflow_kafka_offsets.pipeline import Pipeline

        if self.on_busy not in ("wait", "skip", "fail"):
            raise ConfigurationError(f"on_busy must be one of wait, skip, fail; got on_busy={self.on_busy!r}")
        if self.sink.conn_id is None:
            raise ConfigurationError(f"The sink {self.sink.name!r} has no conn_id: name the connection of its database")
        pipeline = Pipeline(
            group_id=self.group_id,
            topics=(self.topics,) if isinstance(self.topics, str) else tuple(self.topics),
            value_format=self.value_format,
            sink=self.sink,
            transform=self.transform,
            start=self.start,
            until=self.until or None,  # a template may render to nothing
            lateness=self.lateness,
            max_records=self.max_records,
            max_bytes=self.max_bytes,
            time_budget=self.time_budget,
            on_data_loss=self.on_data_loss,  # type: ignore[arg-type]
            on_bad_record=self.on_bad_record,  # type: ignore[arg-type]
            max_dead_letters=self.max_dead_letters,
            isolation_level=self.isolation_level,
            slice_offsets=self.slice_offsets,
            staging_dir=self.staging_dir or None,
            staging_retention=self.staging_retention,
            on_busy="fail" if self.on_busy == "skip" else self.on_busy,  # type: ignore[arg-type]
            lease=self.lease,
            idle_timeout=self.idle_timeout.total_seconds(),
            tables=Tables(self.offsets_schema, self.offsets_prefix),
        )
        run = _task_run(context)
        self._launcher = SparkSubmitLauncher(
            self.spark_conn_id, conf=self.spark_conf, name=f"{run.dag_id}.{run.task_id}"
        )
        config = kafka_config(self.kafka_conn_id)
        engine = database_engine(self.sink.conn_id)
        try:
            result = load(pipeline, kafka_config=config, engine=engine, launcher=self._launcher, run=run)
        finally:
            engine.dispose()
        return asdict(result) | {"batches": list(result.batches)}


def _task_run(context: Context) -> Any:
    from airflow_kafka_offsets.ledger import TaskRun

    instance = context["ti"]
    return TaskRun(
        dag_id=instance.dag_id,
        task_id=instance.task_id,
        run_id=instance.run_id,
        map_index=instance.map_index,
        try_number=instance.try_number,
    )
