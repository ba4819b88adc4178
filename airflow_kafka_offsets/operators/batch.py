"""The operators that load Kafka topics: `KafkaBatchOperator` continues from the positions of a group, exactly once;
`KafkaReplayOperator` loads a bounded range and moves no position; `KafkaReplayPlanOperator` cuts a large range into
parts.

`loading` and `replaying` do the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowSkipException

from airflow_kafka_offsets.core.instants import check_start, check_until
from airflow_kafka_offsets.core.options import Coordination, IsolationLevel, Limits, Reading, Staging, StateTables
from airflow_kafka_offsets.core.parameters import COUNT, NAME, Rule, from_attributes, or_none
from airflow_kafka_offsets.core.shared_docs import complete_docs
from airflow_kafka_offsets.core.templates import is_rendered_later
from airflow_kafka_offsets.core.text import count, first_few
from airflow_kafka_offsets.exceptions import ConfigurationError, GroupBusyError
from airflow_kafka_offsets.formats.extra_columns import ExtraColumns
from airflow_kafka_offsets.hooks.named_errors import with_named_connections
from airflow_kafka_offsets.operators.base import NO_INTERVAL, RULES, GroupOperator, PipelineOperator, topics_of
from airflow_kafka_offsets.replaying.bounds import BOUNDS, BoundsGiven
from airflow_kafka_offsets.spark.properties import Spark

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_kafka_offsets.core.instants import Start
    from airflow_kafka_offsets.core.planning import OnDataLoss
    from airflow_kafka_offsets.formats.record_format import RecordFormat
    from airflow_kafka_offsets.ledger.batch_rows import Batch
    from airflow_kafka_offsets.loading.parameters import OnBadRecord
    from airflow_kafka_offsets.sinks.fan_out import Sinks
    from airflow_kafka_offsets.transforms.transform import Transform


# Airflow maps a task to 1,024, if its default is not raised.
_MOST_PARTS = 10_000

_PARTS = COUNT._replace(
    expected=f"an int from 1 to {_MOST_PARTS:,}", fits=lambda value: COUNT.fits(value) and value <= _MOST_PARTS
)


class KafkaBatchOperator(PipelineOperator):
    """Load new records of Kafka topics into a table, each of them exactly once.

    Rows and positions are committed in one transaction if the sink is in the database of the positions, otherwise in
    two commits.

    A run loads up to the end offsets that its first try has read. A retry, or a clear after success, continues from the
    stored positions: it never loads a record twice. Without new records, the task succeeds and does not start Spark. An
    error that a retry cannot help, such as data loss or a record that cannot be decoded, fails the task at once, unless
    the task has its own `retry_policy`.

    :param group_id: the group whose positions are used; they are in the database of the sink, not in Kafka, unless
        `Coordination.mirror_to` copies them there (templated)
    :param topics: the topics to load (templated)
    :param value_format: the columns of a decoded value: `Json("id BIGINT, …")`, `Avro(…)`, `Protobuf(…)`,
        `JsonSchema(…)`, `Text()` or `Raw()` (templated)
    :param extra_columns: columns of the key and of the record itself, and what to do with new fields (templated)
    :param sink: the target, for example `SqlTable("orders", conn_id="warehouse")`; its database holds the positions; or
        a list of several sinks of one database, which may be `Branch(sink, transform=…)` (templated)
    :param transform: import path of a function from DataFrame to DataFrame,
        `ArrowTransform("package.module.function")`, `Sql("SELECT … FROM records")`, or None; for `@task.kafka_batch` it
        is the decorated function (templated)
    :param start: where a topic without a position begins: `earliest`, `latest`, `none` to fail, an instant (ISO
        8601; no zone is UTC), a timedelta back from now, or `CommittedBy("group")`: the offsets that a consumer group
        in Kafka has committed (templated)
    :param until: load up to the first record at or after this instant, for example `{{ data_interval_end }}`; a run
        that an asset triggered has no data interval. Older records that arrive later are loaded by the next run
        (templated)
    :param limits: the size of a batch, which otherwise depends on the target, and how long a run plans new ones:
        `Limits(max_records=1_000_000)` (templated)
    :param on_data_loss: what to do if records were deleted before they were loaded: fail, or skip them and record the
        gap
    :param on_bad_record: what to do with a record that cannot be decoded, or has a value that the target refuses:
        "fail", or `DeadLetters()` to write it to the table `dead_letters` (templated)
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
        if not is_rendered_later(start):
            check_start(start)
        if until and not is_rendered_later(until):
            check_until(until)

    @property
    def rewind_choice(self) -> dict[str, Any]:
        """Return the default of the rewind form after this load: the state before its first batch."""
        done = self._done["batches"] if self._done is not None else []
        return {"scenario": "to-batch", "value": done[0]} if done else {}

    @with_named_connections
    def execute(self, context: Context) -> dict[str, Any]:
        """Load.

        :return: what the task instance did in all its tries; see `operators.results.outcome`, for XCom
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


@complete_docs(KafkaBatchOperator)
class KafkaReplayOperator(PipelineOperator):
    """Load a range of offsets. The positions of the group do not move, and its loads continue.

    A replay appends its rows to a table other than the group's. Into the group's own table, it needs `replace=True` or
    a sink with an `upsert_key`, and a range before the stored positions; otherwise it would duplicate records, and is
    refused.

    The tries of a task instance share the offsets that its first try planned. A retry, or a clear after success, does
    not load committed batches again; a new DAG run does, and appends their rows again. `KafkaReplayPlanOperator` cuts a
    large range into parts for mapped tasks: `.partial(…).expand(bounds=plan.output)`.

    As for `KafkaBatchOperator`: `value_format`, `extra_columns`, `transform`, `on_bad_record`, `reading`, `staging`,
    `state_tables`, `kafka_conn_id`, `spark`, `assets`.

    :param group_id: the group that the records belong to; its history records the replay (templated)
    :param topics: the topics that may be replayed (templated)
    :param sink: the target, in the database that holds the positions of the group (templated)
    :param bounds: the range: `OffsetBounds`, `TimeBounds` or `BatchBounds`. Any other value is taken as the ranges of
        `OffsetBounds`: `{"orders": {0: [10, 20]}}`, start inclusive and end exclusive, or a list of mappings with
        topic, partition, start and end; either also as JSON text (templated)
    :param replace: delete the rows and dead letters that batches of the group wrote for these offsets, in the same
        transaction; with `all_records` of `TimeBounds`, only those of records within the span
    :param reason: a note for the history (templated)
    :param limits: `max_records` is the maximum number of offsets in a batch, by default as for a load; one batch with
        `replace`, so that nobody sees half of it; a replay has no other limits (templated)
    :param on_data_loss: what to do if records of the range were deleted: fail, or skip them and record the gap
    :raises ConfigurationError: a parameter that is not templated cannot work; raised when the DAG is parsed
    """

    template_fields: Sequence[str] = (*PipelineOperator.template_fields, "bounds", "reason")
    rules: ClassVar[Mapping[str, Rule]] = RULES | {"bounds": BOUNDS}
    _kind = "replay"

    bounds: BoundsGiven
    limits: Limits
    on_data_loss: OnDataLoss
    replace: bool
    reason: str | None

    def __init__(
        self,
        *,
        group_id: str,
        topics: Sequence[str],
        value_format: RecordFormat,
        sink: Sinks,
        bounds: BoundsGiven,
        replace: bool = False,
        reason: str | None = None,
        extra_columns: ExtraColumns = ExtraColumns(),
        transform: str | Transform | None = None,
        limits: Limits = Limits(),
        on_data_loss: OnDataLoss = "fail",
        on_bad_record: OnBadRecord = "fail",
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

    @with_named_connections
    def execute(self, context: Context) -> dict[str, Any]:
        """Replay.

        :return: what the task instance did in all its tries; see `operators.results.outcome`, for XCom
        """
        # Imported here because DAG files are parsed every few seconds.
        from airflow_kafka_offsets.replaying.replay import replay

        return self.run_on_spark(
            context,
            replay,
            self.bounds,
            limits=self.limits,
            on_data_loss=self.on_data_loss,
            replace=self.replace,
            reason=self.reason or None,
        )


@complete_docs(KafkaBatchOperator, KafkaReplayOperator)
class KafkaReplayPlanOperator(GroupOperator):
    """Resolve bounds to offsets once, and split them into parts for `KafkaReplayOperator`. Loads and writes nothing.

    End offsets grow, and the first record after an instant may expire: mapped tasks that resolve bounds themselves
    could miss offsets between their parts, or overlap. With this operator they get offsets, and the ids of the topics.

    As for `KafkaReplayOperator`: `topics`, `bounds`. As for `KafkaBatchOperator`: `state_tables`, `kafka_conn_id`.

    :param group_id: the group whose history has the batch of `BatchBounds` (templated)
    :param parts: the number of parts, up to 10,000, which have nearly equal numbers of offsets; fewer if there are
        fewer offsets (templated)
    :param conn_id: connection of the database with the history; only `BatchBounds` need it (templated)
    :param isolation_level: the isolation level of the replay, which decides where a log ends
    :raises ConfigurationError: a parameter that is not templated cannot work; raised when the DAG is parsed
    """

    template_fields: Sequence[str] = (
        "group_id",
        "topics",
        "parts",
        "bounds",
        "conn_id",
        "state_tables",
        "kafka_conn_id",
    )
    rules: ClassVar[Mapping[str, Rule]] = RULES | {"parts": _PARTS, "bounds": BOUNDS, "conn_id": or_none(NAME)}

    topics: Sequence[str]
    parts: int
    bounds: BoundsGiven
    conn_id: str | None
    isolation_level: IsolationLevel

    def __init__(
        self,
        *,
        group_id: str,
        topics: Sequence[str],
        parts: int | str,
        bounds: BoundsGiven,
        conn_id: str | None = None,
        isolation_level: IsolationLevel = "read_committed",
        state_tables: StateTables = StateTables(),
        kafka_conn_id: str = "kafka_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.take(locals())

    @with_named_connections
    def execute(self, context: Context) -> list[list[dict[str, Any]]]:
        """Plan.

        :return: the parts, each for the parameter `bounds` of a mapped `KafkaReplayOperator`; none for an empty range
        """
        # Imported here because DAG files are parsed every few seconds.
        from airflow_kafka_offsets.hooks.connections import kafka_cluster
        from airflow_kafka_offsets.kafka.start_offsets import TimeSearch
        from airflow_kafka_offsets.replaying import bounds

        topics = topics_of(self.topics)
        wanted = bounds.check_bounds(self.bounds, topics)
        if isinstance(wanted, bounds.BatchBounds) and self.conn_id is None:
            raise ConfigurationError("BatchBounds need conn_id, the connection of the database that holds the history")
        search = TimeSearch(kafka_cluster(self.kafka_conn_id, self.isolation_level), self.group_id)
        ranges, logs = bounds.resolve_bounds(wanted, topics, search, self._batch)
        parts = [bounds.bounds_as_json(part, logs) for part in bounds.cut_into_parts(ranges, self.parts)]
        self.log.info(
            "%s in %s: %s", count(sum(map(len, ranges)), "offset"), count(len(parts), "part"), first_few(ranges)
        )
        return parts

    def _batch(self, batch_id: int) -> Batch:
        from airflow_kafka_offsets.database.errors import translated_errors
        from airflow_kafka_offsets.replaying.replay_batches import batch_of

        what = f"The history of group {self.group_id!r} could not be read"
        with self.ledger(self.conn_id) as ledger, translated_errors(what, "Run the task again."):
            return batch_of(ledger, self.group_id, batch_id)
