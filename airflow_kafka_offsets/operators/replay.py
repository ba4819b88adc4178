"""The operators that replay a bounded range of topics beside the loads of a group, and that cut a large range into
parts.

`replaying` does the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.core.parameters import MAX_RECORD_BYTES
from airflow_kafka_offsets.core.text import count, first_few
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.operators.base import GroupOperator, topics_of
from airflow_kafka_offsets.operators.batch import KafkaBatchOperator
from airflow_kafka_offsets.operators.on_spark import PipelineOperator
from airflow_kafka_offsets.operators.shared_docs import complete_docs
from airflow_kafka_offsets.sinks.fan_out import as_sink

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_kafka_offsets.core.planning import OnDataLoss
    from airflow_kafka_offsets.formats.header import MetadataColumns
    from airflow_kafka_offsets.formats.record_format import OnNewField, RecordFormat
    from airflow_kafka_offsets.ledger.batch_rows import Batch
    from airflow_kafka_offsets.loading.parameters import OnBadRecord
    from airflow_kafka_offsets.replaying.bounds import Bounds
    from airflow_kafka_offsets.sinks.fan_out import Sinks
    from airflow_kafka_offsets.transforms.transform import Transform

    OffsetsGiven = Mapping[str, Mapping[Any, Any]] | Sequence[Mapping[str, Any]] | str


@complete_docs(KafkaBatchOperator)
class KafkaReplayOperator(PipelineOperator):
    """Load a range of offsets, independent of the positions of the group and of its loads, which continue.

    The range is one of `offsets`, `since` with `until`, or `batch_id`. Into a table other than the group's, the rows
    are appended. Into the group's own table, a replay needs `replace=True` or a sink with an `upsert_key`, and a range
    below the stored positions; anything else is refused, because it would duplicate records.

    The tries of a task instance share the offsets that its first try planned. A retry, or a clear after success, does
    not repeat what is committed; a new DAG run does, and appends it again. `KafkaReplayPlanOperator` cuts a large range
    into parts for mapped tasks: `.partial(…).expand(offsets=plan.output)`.

    As for `KafkaBatchOperator`: `value_format`, `key_format`, `metadata_columns`, `transform`, `on_new_field`,
    `max_records`, `on_bad_record`, `max_dead_letters`, `also_to_topic`, `dead_letter_retention`, `max_record_bytes`,
    `isolation_level`, `staging_dir`, `spark_conf`, `slice_offsets`, `staging_retention`, `idle_timeout`,
    `offsets_schema`, `offsets_prefix`, `kafka_conn_id`, `spark_conn_id`, `assets`.

    :param group_id: the group that the records belong to; its history records the replay (templated)
    :param topics: the topics that may be replayed (templated)
    :param sink: the target, in the database that holds the positions of the group (templated)
    :param offsets: `{"orders": {0: [10, 20]}}`, start inclusive and end exclusive, or a list of mappings with topic,
        partition, start and end; either also as JSON text (templated)
    :param since: from the first record at or after this instant (templated)
    :param until: with `since`, up to the first record at or after this instant; None is the end of the log when the
        first try plans (templated)
    :param all_records: with `since`, read up to the end of the log, into the group's own table up to the stored
        positions, and take exactly the records whose timestamps in Kafka are within the span, wherever they lie
    :param batch_id: the ranges of this batch of the group's history (templated)
    :param replace: delete the rows and dead letters that batches of the group wrote for these offsets, in the same
        transaction; with `all_records`, only those of records within the span
    :param reason: a note for the history (templated)
    :param on_data_loss: what to do if records of the range were deleted: fail, or skip them and record the gap
    :raises ConfigurationError: a parameter that is not templated cannot work; raised when the DAG is parsed
    """

    template_fields: Sequence[str] = (
        *PipelineOperator.template_fields,
        "offsets",
        "since",
        "until",
        "batch_id",
        "reason",
    )
    _kind = "replay"

    def __init__(
        self,
        *,
        group_id: str,
        topics: Sequence[str],
        value_format: RecordFormat,
        sink: Sinks,
        offsets: OffsetsGiven | None = None,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        all_records: bool = False,
        batch_id: int | str | None = None,
        replace: bool = False,
        reason: str | None = None,
        key_format: RecordFormat | None = None,
        metadata_columns: MetadataColumns | None = None,
        transform: str | Transform | None = None,
        on_new_field: OnNewField = "ignore",
        max_records: int | str | None = None,
        on_data_loss: OnDataLoss = "fail",
        on_bad_record: OnBadRecord = "fail",
        max_dead_letters: int | float | str | None = 1000,
        also_to_topic: str | None = None,
        dead_letter_retention: timedelta | None = None,
        max_record_bytes: int | str = MAX_RECORD_BYTES,
        isolation_level: str = "read_committed",
        staging_dir: str | None = None,
        spark_conf: dict[str, Any] | None = None,
        slice_offsets: int | str = 250_000,
        staging_retention: timedelta = timedelta(days=7),
        idle_timeout: timedelta = timedelta(seconds=120),
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
        self.offsets = offsets
        self.since = since
        self.until = until
        self.all_records = all_records
        self.batch_id = batch_id
        self.replace = replace
        self.reason = reason
        self.key_format = key_format
        self.metadata_columns = metadata_columns
        self.transform = transform
        self.on_new_field = on_new_field
        self.max_records = max_records
        self.on_data_loss = on_data_loss
        self.on_bad_record = on_bad_record
        self.max_dead_letters = max_dead_letters
        self.also_to_topic = also_to_topic
        self.dead_letter_retention = dead_letter_retention
        self.max_record_bytes = max_record_bytes
        self.isolation_level = isolation_level
        self.staging_dir = staging_dir
        self.spark_conf = spark_conf
        self.slice_offsets = slice_offsets
        self.staging_retention = staging_retention
        self.idle_timeout = idle_timeout
        self.offsets_schema = offsets_schema
        self.offsets_prefix = offsets_prefix
        self.kafka_conn_id = kafka_conn_id
        self.spark_conn_id = spark_conn_id
        self.assets = assets
        self.check_parameters()

    def execute(self, context: Context) -> dict[str, Any]:
        """Replay.

        :return: what the task instance did in all its tries; see `operators.outcome`, for XCom
        """
        # Imported here because DAG files are parsed every few seconds.
        from airflow_kafka_offsets.replaying.replay import replay

        return self.run_on_spark(
            context,
            replay,
            _bounds(self, all_records=self.all_records),
            max_records=self.max_records,
            on_data_loss=self.on_data_loss,
            replace=self.replace,
            reason=self.reason or None,
        )


@complete_docs(KafkaBatchOperator, KafkaReplayOperator)
class KafkaReplayPlanOperator(GroupOperator):
    """Turn bounds into offsets, once, and cut them into parts for `KafkaReplayOperator`. It loads and writes nothing.

    The ends of logs move, and the first record after an instant may expire: mapped tasks that resolved bounds
    themselves could leave a hole between their parts, or overlap. They get offsets instead, with the ids of the topics.

    As for `KafkaReplayOperator`: `topics`, `offsets`, `since`, `until`, `batch_id`. As for `KafkaBatchOperator`:
    `offsets_schema`, `offsets_prefix`, `kafka_conn_id`.

    :param group_id: the group whose history has `batch_id` (templated)
    :param parts: how many parts with nearly equal numbers of offsets; fewer if there are fewer offsets (templated)
    :param conn_id: connection of the database with the history; only `batch_id` needs it (templated)
    :param isolation_level: the isolation level of the replay, which decides where a log ends
    :raises ConfigurationError: a parameter that is not templated cannot work; raised when the DAG is parsed
    """

    template_fields: Sequence[str] = (
        "group_id",
        "topics",
        "parts",
        "offsets",
        "since",
        "until",
        "batch_id",
        "conn_id",
        "offsets_schema",
        "offsets_prefix",
        "kafka_conn_id",
    )

    def __init__(
        self,
        *,
        group_id: str,
        topics: Sequence[str],
        parts: int | str,
        offsets: OffsetsGiven | None = None,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        batch_id: int | str | None = None,
        conn_id: str | None = None,
        isolation_level: str = "read_committed",
        offsets_schema: str | None = None,
        offsets_prefix: str = "",
        kafka_conn_id: str = "kafka_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.group_id = group_id
        self.topics = topics
        self.parts = parts
        self.offsets = offsets
        self.since = since
        self.until = until
        self.batch_id = batch_id
        self.conn_id = conn_id
        self.isolation_level = isolation_level
        self.offsets_schema = offsets_schema
        self.offsets_prefix = offsets_prefix
        self.kafka_conn_id = kafka_conn_id
        self.check_parameters()

    def execute(self, context: Context) -> list[list[dict[str, Any]]]:
        """Plan.

        :return: the parts, each for the parameter `offsets` of a mapped `KafkaReplayOperator`; none for an empty range
        """
        # Imported here because DAG files are parsed every few seconds.
        from airflow_kafka_offsets.hooks.connections import kafka_cluster
        from airflow_kafka_offsets.kafka.time_search import TimeSearch
        from airflow_kafka_offsets.replaying import bounds

        topics = topics_of(self.topics)
        if not str(self.parts).strip().isdecimal():
            raise ConfigurationError(f"parts must be a whole number of at least 1; got parts={self.parts!r}")
        wanted = bounds.check_bounds(_bounds(self), topics)
        if isinstance(wanted, bounds.BatchBounds) and self.conn_id is None:
            raise ConfigurationError("batch_id needs conn_id, the connection of the database that holds the history")
        search = TimeSearch(kafka_cluster(self.kafka_conn_id, self.isolation_level), self.group_id)
        ranges, logs = bounds.resolve_bounds(wanted, topics, search, self._batch)
        parts = [bounds.bounds_as_json(part, logs) for part in bounds.cut_into_parts(ranges, int(self.parts))]
        self.log.info(
            "%s in %s: %s", count(sum(map(len, ranges)), "offset"), count(len(parts), "part"), first_few(ranges)
        )
        return parts

    def _batch(self, batch_id: int) -> Batch:
        from airflow_kafka_offsets.database.errors import translated_errors
        from airflow_kafka_offsets.ledger.tables import Ledger
        from airflow_kafka_offsets.replaying.replay_batches import batch_of

        what = f"The history of group {self.group_id!r} could not be read"
        with self.database(self.conn_id) as engine, translated_errors(what, "Run the task again."):
            return batch_of(Ledger(engine, self.tables), self.group_id, batch_id)


def _bounds(given: KafkaReplayOperator | KafkaReplayPlanOperator, *, all_records: bool = False) -> Bounds:
    """Return the bounds that are given; a template that renders to an empty text gives none.

    :raises ConfigurationError: there are none, or of more than one kind
    """
    from airflow_kafka_offsets.replaying.bounds import BatchBounds, OffsetBounds, TimeBounds

    if sum(map(bool, (given.offsets, given.since, given.batch_id))) != 1 or (given.until and not given.since):
        raise ConfigurationError(
            "A replay has one of offsets, since (with until), and batch_id; "
            f"got offsets={given.offsets!r}, since={given.since!r}, until={given.until!r}, batch_id={given.batch_id!r}"
        )
    if all_records and not given.since:
        raise ConfigurationError("all_records takes the records of a span of time: it needs since")
    if given.offsets:
        return OffsetBounds(given.offsets)
    if given.since:
        return TimeBounds(given.since, given.until or None, all_records)
    if not str(given.batch_id).isdecimal():
        raise ConfigurationError(f"batch_id must be a number; got batch_id={given.batch_id!r}")
    return BatchBounds(int(str(given.batch_id)))
