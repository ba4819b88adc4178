"""Load Kafka topics into a table, exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk.exceptions import AirflowSkipException

from airflow_kafka_offsets.exceptions import ConfigurationError, GroupBusyError
from airflow_kafka_offsets.operators.base import NO_INTERVAL, PipelineOperator

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_kafka_offsets.core.planning import OnDataLoss
    from airflow_kafka_offsets.core.start import Start
    from airflow_kafka_offsets.formats.record_format import RecordFormat
    from airflow_kafka_offsets.loading.parameters import OnBadRecord
    from airflow_kafka_offsets.sinks.sink import Sink


class KafkaBatchOperator(PipelineOperator):
    """Load what is new in Kafka topics into a SQL table; rows and positions move in one transaction.

    A run loads up to the ends of the logs that its first try saw. A retry, or a clear after success, carries on from the
    stored positions: it never loads a record twice. Where nothing is new, Spark is not started and the task succeeds.
    An error that no retry can help, such as data loss or a record that does not decode, fails the task at once, unless the
    task has a `retry_policy` of its own.

    :param group_id: the group whose positions are used; lives in the database of the sink, not in Kafka, unless
        `mirror_to` says so (templated)
    :param topics: the topics to load (templated)
    :param value_format: which columns a record becomes: `Json("id BIGINT, …")` or `Raw()`
    :param sink: the target, for example `SqlTable("orders", conn_id="warehouse")`; its database holds the positions
    :param transform: import path of a function from DataFrame to DataFrame, or None (templated)
    :param start: where a topic without a position begins: `earliest`, `latest`, `none` to refuse, a timestamp (ISO 8601), a
        timedelta back from now, or `CommittedBy("group")`: where a consumer group of Kafka's stands (templated)
    :param until: load up to the first record at or after this instant, for example `{{ data_interval_end }}`, which a run that
        an asset triggered has not; older records that arrive after it are the next run's (templated)
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
    :param mirror_to: a consumer group in Kafka, of this load alone and without consumers, that shows the positions after each
        commit, for tools that look at lag; what goes wrong there is a warning (templated)
    :param offsets_schema: database schema of the state tables; None is the connection's default
    :param offsets_prefix: put before the names of the state tables
    :param kafka_conn_id: connection of the Kafka provider
    :param spark_conn_id: connection of the Spark provider
    :raises ConfigurationError: a parameter that is not templated cannot work; raised when the DAG is parsed
    """

    template_fields: Sequence[str] = (*PipelineOperator.template_fields, "start", "until", "mirror_to")

    def __init__(
        self,
        *,
        group_id: str,
        topics: Sequence[str],
        value_format: RecordFormat,
        sink: Sink,
        transform: str | None = None,
        start: Start = "earliest",
        until: str | datetime | None = None,
        max_records: int | None = None,
        max_bytes: int | None = None,
        time_budget: timedelta | None = None,
        on_data_loss: OnDataLoss = "fail",
        on_bad_record: OnBadRecord = "fail",
        max_dead_letters: int | None = 1000,
        on_busy: Literal["wait", "skip", "fail"] = "wait",
        isolation_level: str = "read_committed",
        staging_dir: str | None = None,
        spark_conf: dict[str, Any] | None = None,
        slice_offsets: int = 250_000,
        staging_retention: timedelta = timedelta(days=7),
        idle_timeout: timedelta = timedelta(seconds=120),
        lease: timedelta = timedelta(seconds=60),
        mirror_to: str | None = None,
        offsets_schema: str | None = None,
        offsets_prefix: str = "",
        kafka_conn_id: str = "kafka_default",
        spark_conn_id: str = "spark_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            group_id=group_id,
            topics=topics,
            value_format=value_format,
            sink=sink,
            transform=transform,
            on_bad_record=on_bad_record,
            max_dead_letters=max_dead_letters,
            isolation_level=isolation_level,
            staging_dir=staging_dir,
            spark_conf=spark_conf,
            slice_offsets=slice_offsets,
            staging_retention=staging_retention,
            idle_timeout=idle_timeout,
            offsets_schema=offsets_schema,
            offsets_prefix=offsets_prefix,
            kafka_conn_id=kafka_conn_id,
            spark_conn_id=spark_conn_id,
            **kwargs,
        )
        self.start = start
        self.until = until
        self.max_records = max_records
        self.max_bytes = max_bytes
        self.time_budget = time_budget
        self.on_data_loss = on_data_loss
        self.on_busy = on_busy
        self.lease = lease
        self.mirror_to = mirror_to
        self.check_parameters()

    def execute(self, context: Context) -> dict[str, Any]:
        """Load.

        :return: `batches` (ids), `records`, `rows`, `dead_letters` and `complete`, for XCom
        """
        # Here and not above: DAG files are parsed every few seconds.
        from airflow_kafka_offsets.loading.load import load
        from airflow_kafka_offsets.loading.pipeline import LoadOptions

        if self.until == "None" and context.get("data_interval_end") is None:
            raise ConfigurationError(f"until is rendered to {self.until!r}: {NO_INTERVAL}")
        options = LoadOptions(
            start=self.start,
            until=self.until or None,  # a template may render to nothing
            max_records=self.max_records,
            max_bytes=self.max_bytes,
            time_budget=self.time_budget,
            on_data_loss=self.on_data_loss,
            on_busy="fail" if self.on_busy == "skip" else self.on_busy,
            lease=self.lease,
            mirror_to=self.mirror_to,
        )
        try:
            return self.run_on_spark(context, load, options)
        except GroupBusyError as busy:
            if self.on_busy == "skip":
                raise AirflowSkipException(str(busy)) from busy
            raise
