"""The operator that loads Kafka topics into a table, exactly once. `loading.load` does the work."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from airflow.sdk.exceptions import AirflowSkipException

from airflow_kafka_offsets.core.parameters import MAX_RECORD_BYTES, from_attributes
from airflow_kafka_offsets.exceptions import ConfigurationError, GroupBusyError
from airflow_kafka_offsets.operators.base import NO_INTERVAL
from airflow_kafka_offsets.operators.on_spark import PipelineOperator
from airflow_kafka_offsets.sinks.fan_out import as_sink

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_kafka_offsets.core.instants import Start
    from airflow_kafka_offsets.core.planning import OnDataLoss
    from airflow_kafka_offsets.formats.header import MetadataColumns
    from airflow_kafka_offsets.formats.record_format import OnNewField, RecordFormat
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
        `mirror_to` copies them there (templated)
    :param topics: the topics to load (templated)
    :param value_format: the columns of a decoded value: `Json("id BIGINT, …")`, `Avro(…)`, `Protobuf(…)`,
        `JsonSchema(…)`, `Text()` or `Raw()` (templated)
    :param key_format: the columns of a decoded key; None where the key is no column (templated)
    :param metadata_columns: columns of the record itself: the names, each with `"timestamp"` or a `Header` (templated)
    :param sink: the target, for example `SqlTable("orders", conn_id="warehouse")`; its database holds the positions; or
        a list of several sinks of one database, which may be `Branch(sink, transform=…)` (templated)
    :param transform: import path of a function from DataFrame to DataFrame,
        `ArrowTransform("package.module.function")`, `Sql("SELECT … FROM records")`, or None; of `@task.kafka_batch` it
        is the body of the function (templated)
    :param on_new_field: what to do with fields of records that are no columns, where the format knows their schemas:
        ignore them, fail, or add the columns to the target in the transaction of the commit
    :param start: where a topic without a position begins: `earliest`, `latest`, `none` to fail, a timestamp (ISO 8601),
        a timedelta back from now, or `CommittedBy("group")`: the offsets that a consumer group in Kafka has committed
        (templated)
    :param until: load up to the first record at or after this instant, for example `{{ data_interval_end }}`, which a
        run that an asset triggered does not have; the next run loads older records that arrive after it (templated)
    :param max_records: the most offsets of a batch; a larger range is loaded in several batches (templated)
    :param max_bytes: the most bytes of keys and values of a batch, estimated from earlier batches (templated)
    :param time_budget: how long after its start a run plans further batches; it finishes those that are planned, and
        the next run loads the rest
    :param on_data_loss: what to do if records were deleted before they were loaded: fail, or skip them and record the
        gap
    :param on_bad_record: what to do with a record that cannot be decoded, or whose row the target refuses for one of
        its values: fail, or write it to the table `dead_letters`: dead_letter
    :param max_dead_letters: the most dead letters of a batch, as a number, or as a share of its records such as 0.01;
        more of them fail it, None allows any number (templated)
    :param also_to_topic: a topic in Kafka to which dead letters are written after the commit, at least once, beside the
        table; an error there is logged, and the next run writes them (templated)
    :param dead_letter_retention: how long what dead letters hold is kept; a later commit deletes it; None is for ever
    :param max_record_bytes: the most bytes of a record's key, value and headers, uncompressed; a larger record is a bad
        one, of which the dead letter keeps neither (templated)
    :param on_busy: what to do while another run holds the group: wait, skip this task, or fail
    :param isolation_level: read_committed or read_uncommitted
    :param staging_dir: a location for staged files that workers and executors share; not needed where Spark runs on the
        machine of the worker (templated)
    :param spark_conf: Spark properties (templated)
    :param slice_offsets: the most offsets that a Spark task reads; up to eight times as many of a large batch for a
        lake table (templated)
    :param staging_retention: the age at which staged files are deleted, unless an open batch needs them
    :param lease: after how long without a renewal other runs take a run for dead
    :param idle_timeout: how long a read may wait for a record or the end of the log
    :param mirror_to: a consumer group in Kafka, for this load only and without consumers, to which the positions are
        committed after each batch, for tools that monitor lag; an error there is logged as a warning (templated)
    :param offsets_schema: database schema of the state tables; None is the connection's default (templated)
    :param offsets_prefix: prefix of the names of the state tables (templated)
    :param kafka_conn_id: connection of the Kafka provider (templated)
    :param spark_conn_id: connection of the Spark provider, of type `spark` or `spark_connect` (templated)
    :param assets: whether the topics are inlets and the target is an outlet of the task, with an event after each run
        that loaded something; assets that the task is given stay in either case
    :raises ConfigurationError: a parameter that is not templated cannot work; raised when the DAG is parsed
    """

    template_fields: Sequence[str] = (
        *PipelineOperator.template_fields,
        "start",
        "until",
        "max_bytes",
        "mirror_to",
    )

    def __init__(
        self,
        *,
        group_id: str,
        topics: Sequence[str],
        value_format: RecordFormat,
        sink: Sinks,
        key_format: RecordFormat | None = None,
        metadata_columns: MetadataColumns | None = None,
        transform: str | Transform | None = None,
        on_new_field: OnNewField = "ignore",
        start: Start = "earliest",
        until: str | datetime | None = None,
        max_records: int | str | None = None,
        max_bytes: int | str | None = None,
        time_budget: timedelta | None = None,
        on_data_loss: OnDataLoss = "fail",
        on_bad_record: OnBadRecord = "fail",
        max_dead_letters: int | float | str | None = 1000,
        also_to_topic: str | None = None,
        dead_letter_retention: timedelta | None = None,
        max_record_bytes: int | str = MAX_RECORD_BYTES,
        on_busy: Literal["wait", "skip", "fail"] = "wait",
        isolation_level: str = "read_committed",
        staging_dir: str | None = None,
        spark_conf: dict[str, Any] | None = None,
        slice_offsets: int | str = 250_000,
        staging_retention: timedelta = timedelta(days=7),
        idle_timeout: timedelta = timedelta(seconds=120),
        lease: timedelta = timedelta(seconds=60),
        mirror_to: str | None = None,
        offsets_schema: str | None = None,
        offsets_prefix: str = "",
        kafka_conn_id: str = "kafka_default",
        spark_conn_id: str = "spark_default",
        assets: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.group_id = group_id
        self.topics = topics
        self.value_format = value_format
        self.sink = as_sink(sink)
        self.key_format = key_format
        self.metadata_columns = metadata_columns
        self.transform = transform
        self.on_new_field = on_new_field
        self.start = start
        self.until = until
        self.max_records = max_records
        self.max_bytes = max_bytes
        self.time_budget = time_budget
        self.on_data_loss = on_data_loss
        self.on_bad_record = on_bad_record
        self.max_dead_letters = max_dead_letters
        self.also_to_topic = also_to_topic
        self.dead_letter_retention = dead_letter_retention
        self.max_record_bytes = max_record_bytes
        self.on_busy = on_busy
        self.isolation_level = isolation_level
        self.staging_dir = staging_dir
        self.spark_conf = spark_conf
        self.slice_offsets = slice_offsets
        self.staging_retention = staging_retention
        self.idle_timeout = idle_timeout
        self.lease = lease
        self.mirror_to = mirror_to
        self.offsets_schema = offsets_schema
        self.offsets_prefix = offsets_prefix
        self.kafka_conn_id = kafka_conn_id
        self.spark_conn_id = spark_conn_id
        self.assets = assets
        self.check_parameters()

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
        on_busy = "fail" if self.on_busy == "skip" else self.on_busy
        # A template may render to an empty text.
        options = from_attributes(LoadOptions, self, until=self.until or None, on_busy=on_busy)
        try:
            return self.run_on_spark(context, load, options)
        except GroupBusyError as busy:
            if self.on_busy == "skip":
                raise AirflowSkipException(str(busy)) from busy
            raise
