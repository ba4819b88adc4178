"""The operator that loads Kafka topics into a table, exactly once. `loading.load` does the work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from airflow_kafka_offsets.core.options import Coordination, Limits, Reading, Staging, StateTables
from airflow_kafka_offsets.core.parameters import from_attributes
from airflow_kafka_offsets.exceptions import ConfigurationError, GroupBusyError
from airflow_kafka_offsets.formats.extra_columns import ExtraColumns
from airflow_kafka_offsets.operators.base import NO_INTERVAL
from airflow_kafka_offsets.operators.on_spark import PipelineOperator
from airflow_kafka_offsets.spark.properties import Spark

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_kafka_offsets.core.instants import Start
    from airflow_kafka_offsets.core.planning import OnDataLoss
    from airflow_kafka_offsets.formats.record_format import RecordFormat
    from airflow_kafka_offsets.loading.parameters import OnBadRecord
    from airflow_kafka_offsets.sinks.fan_out import Sinks
    from airflow_kafka_offsets.transforms.transform import Transform


class KafkaBatchOperator(PipelineOperator):
    """Load new records of Kafka topics into a table, each of them exactly once.

    Rows and positions move in one transaction where the sink is in the database of the positions, and else in two
    commits.

    A run loads up to the ends of the logs that its first try has read. A retry, or a clear after success, continues
    from the stored positions: it never loads a record twice. Without new records, the task succeeds and does not start
    Spark. An error that a retry cannot help, such as data loss or a record that cannot be decoded, fails the task at
    once, unless the task has a `retry_policy` of its own.

    :param group_id: the group whose positions are used; they are in the database of the sink, not in Kafka, unless
        `Coordination.mirror_to` copies them there (templated)
    :param topics: the topics to load (templated)
    :param value_format: the columns of a decoded value: `Json("id BIGINT, …")`, `Avro(…)`, `Protobuf(…)`,
        `JsonSchema(…)`, `Text()` or `Raw()` (templated)
    :param extra_columns: columns of the key and of the record itself, and what to do with new fields (templated)
    :param sink: the target, for example `SqlTable("orders", conn_id="warehouse")`; its database holds the positions; or
        a list of several sinks of one database, which may be `Branch(sink, transform=…)` (templated)
    :param transform: import path of a function from DataFrame to DataFrame,
        `ArrowTransform("package.module.function")`, `Sql("SELECT … FROM records")`, or None; of `@task.kafka_batch` it
        is the body of the function (templated)
    :param start: where a topic without a position begins: `earliest`, `latest`, `none` to fail, a timestamp (ISO 8601),
        a timedelta back from now, or `CommittedBy("group")`: the offsets that a consumer group in Kafka has committed
        (templated)
    :param until: load up to the first record at or after this instant, for example `{{ data_interval_end }}`, which a
        run that an asset triggered does not have; the next run loads older records that arrive after it (templated)
    :param limits: how much a batch holds, and how long a run begins new ones: `Limits(max_records=1_000_000)`
        (templated)
    :param on_data_loss: what to do if records were deleted before they were loaded: fail, or skip them and record the
        gap
    :param on_bad_record: what to do with a record that cannot be decoded, or whose row the target refuses for one of
        its values: fail, or write it to the table `dead_letters`: `DeadLetters()` (templated)
    :param coordination: what to do while another run holds the group, and which consumer group in Kafka gets the
        positions: `Coordination(on_busy="skip")` (templated)
    :param reading: the isolation level, and the limits of a single read (templated)
    :param staging: where staged files are, which workers and executors share: `Staging(dir="s3a://…")` (templated)
    :param state_tables: the database schema and the prefix of the state tables (templated)
    :param kafka_conn_id: connection of the Kafka provider (templated)
    :param spark: connection of the Spark provider, and properties of the application: `Spark("spark_default")`
        (templated)
    :param assets: whether the topics are inlets and the target is an outlet of the task, with an event after each run
        that loaded something; assets that the task is given stay in either case
    :raises ConfigurationError: a parameter that is not templated cannot work; raised when the DAG is parsed
    """

    template_fields: Sequence[str] = (*PipelineOperator.template_fields, "start", "until", "coordination")

    until: str | datetime | None
    coordination: Coordination

    def __init__(
        self,
        *,
        group_id: str,
        topics: Sequence[str],
        value_format: RecordFormat,
        sink: Sinks,
        extra_columns: ExtraColumns = ExtraColumns(),
        transform: str | Transform | None = None,
        start: Start = "earliest",
        until: str | datetime | None = None,
        limits: Limits = Limits(),
        on_data_loss: OnDataLoss = "fail",
        on_bad_record: OnBadRecord = "fail",
        coordination: Coordination = Coordination(),
        reading: Reading = Reading(),
        staging: Staging = Staging(),
        state_tables: StateTables = StateTables(),
        kafka_conn_id: str = "kafka_default",
        spark: Spark = Spark(),
        assets: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.take(locals())

    @property
    def rewind_choice(self) -> dict[str, Any]:
        """Return what the form of a rewind offers after this load: the state before its first batch."""
        done = self._done["batches"] if self._done is not None else []
        return {"scenario": "to-batch", "value": done[0]} if done else {}

    def execute(self, context: Context) -> dict[str, Any]:
        """Load.

        :return: what the task instance did in all its tries; see `operators.outcome`, for XCom
        """
        # Imported here because DAG files are parsed every few seconds.
        from airflow_kafka_offsets.loading.load import load
        from airflow_kafka_offsets.loading.pipeline import LoadOptions

        if self.until == "None" and context.get("data_interval_end") is None:
            raise ConfigurationError(f"until is rendered to {self.until!r}: {NO_INTERVAL}")
        # A template may render to an empty text.
        options = from_attributes(LoadOptions, self, until=self.until or None)
        try:
            return self.run_on_spark(context, load, options)
        except GroupBusyError as busy:
            if self.coordination.on_busy == "skip":
                raise AirflowSkipException(str(busy)) from busy
            raise
