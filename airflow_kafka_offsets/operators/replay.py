"""Replay a bounded range of topics beside the loads of a group, in parts where it is large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.operators.base import GroupOperator, PipelineOperator, topics_of

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_kafka_offsets.core.planning import OnDataLoss
    from airflow_kafka_offsets.formats.record_format import RecordFormat
    from airflow_kafka_offsets.loading.parameters import OnBadRecord
    from airflow_kafka_offsets.replaying.bounds import Bounds
    from airflow_kafka_offsets.sinks.sink import Sink

    OffsetsGiven = Mapping[str, Mapping[Any, Any]] | Sequence[Mapping[str, Any]] | str


class KafkaReplayOperator(PipelineOperator):
    """Load a range of offsets; the positions of the group are neither read as a start nor moved, and its loads go on.

    The range is one of `offsets`, `since` with `until`, or `batch_id`. Into another table than the group's the rows are
    appended. Into its own they may only go with `replace=True`, or where the sink has an `upsert_key`, and only below the
    stored positions; anything else is refused, because records would be there twice.

    The tries of a task instance share the offsets that its first try planned. A retry, or a clear after success, never does
    again what is committed; a new DAG run does, and appends it again. For a large range, `KafkaReplayPlanOperator` cuts it
    into parts, each of which is replayed by a mapped task: `.partial(…).expand(offsets=plan.output)`.

    As for `KafkaBatchOperator`: `value_format`, `transform`, `max_records`, `on_bad_record`, `max_dead_letters`,
    `isolation_level`, `staging_dir`, `spark_conf`, `slice_offsets`, `staging_retention`, `idle_timeout`, `offsets_schema`,
    `offsets_prefix`, `kafka_conn_id`, `spark_conn_id`.

    :param group_id: the group that the records belong to; its history says what was replayed (templated)
    :param topics: the topics that may be replayed (templated)
    :param sink: the target, in the database that holds the positions of the group
    :param offsets: `{"orders": {0: [10, 20]}}`, start inclusive and end exclusive, or a list of mappings with topic, partition,
        start and end; either also as JSON text (templated)
    :param since: from the first record at or after this instant (templated)
    :param until: with `since`, up to the first record at or after this instant; None is the end of the log when the first try
        plans (templated)
    :param batch_id: the ranges of this batch of the group's history (templated)
    :param replace: remove the rows and dead letters that batches of the group left of these offsets, in the same transaction
    :param reason: for the history (templated)
    :param on_data_loss: fail, or skip records of the range that are gone, and record the gap
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

    def __init__(
        self,
        *,
        group_id: str,
        topics: Sequence[str],
        value_format: RecordFormat,
        sink: Sink,
        offsets: OffsetsGiven | None = None,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        batch_id: int | str | None = None,
        replace: bool = False,
        reason: str | None = None,
        transform: str | None = None,
        max_records: int | None = None,
        on_data_loss: OnDataLoss = "fail",
        on_bad_record: OnBadRecord = "fail",
        max_dead_letters: int | None = 1000,
        isolation_level: str = "read_committed",
        staging_dir: str | None = None,
        spark_conf: dict[str, Any] | None = None,
        slice_offsets: int = 250_000,
        staging_retention: timedelta = timedelta(days=7),
        idle_timeout: timedelta = timedelta(seconds=120),
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
        self.offsets = offsets
        self.since = since
        self.until = until
        self.batch_id = batch_id
        self.replace = replace
        self.reason = reason
        self.max_records = max_records
        self.on_data_loss = on_data_loss
        self.check_parameters()

    def execute(self, context: Context) -> dict[str, Any]:
        """Replay.

        :return: `batches` (ids), `records`, `rows` and `dead_letters` of all tries, for XCom
        """
        # Here and not above: DAG files are parsed every few seconds.
        from airflow_kafka_offsets.replaying.replay import replay

        return self.run_on_spark(
            context,
            replay,
            _bounds(self.offsets, self.since, self.until, self.batch_id),
            max_records=self.max_records,
            on_data_loss=self.on_data_loss,
            replace=self.replace,
            reason=self.reason or None,
        )


class KafkaReplayPlanOperator(GroupOperator):
    """Turn bounds into offsets, once, and cut them into parts for `KafkaReplayOperator`: nothing is read or written.

    The ends of logs move, and the first record after an instant may expire: mapped tasks that looked for themselves could
    leave a hole between their parts, or overlap. They get offsets instead, with the ids of the topics.

    As for `KafkaReplayOperator`: `topics`, `offsets`, `since`, `until`, `batch_id`. As for `KafkaBatchOperator`: `offsets_schema`,
    `offsets_prefix`, `kafka_conn_id`.

    :param group_id: whose history `batch_id` means (templated)
    :param parts: how many parts of nearly equal numbers of offsets; fewer where there are fewer offsets (templated)
    :param conn_id: connection of the database that holds the history; needed for `batch_id` alone
    :param isolation_level: that of the replay: decides where a log ends
    :raises ConfigurationError: a parameter that is not templated cannot work; raised when the DAG is parsed
    """

    template_fields: Sequence[str] = ("group_id", "topics", "parts", "offsets", "since", "until", "batch_id")

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
        super().__init__(
            group_id=group_id,
            isolation_level=isolation_level,
            offsets_schema=offsets_schema,
            offsets_prefix=offsets_prefix,
            kafka_conn_id=kafka_conn_id,
            **kwargs,
        )
        self.topics = topics
        self.parts = parts
        self.offsets = offsets
        self.since = since
        self.until = until
        self.batch_id = batch_id
        self.conn_id = conn_id
        self.check_parameters()

    def execute(self, context: Context) -> list[list[dict[str, Any]]]:
        """Plan.

        :return: the parts, each for the parameter `offsets` of one mapped `KafkaReplayOperator`; none where there is nothing
        """
        # Here and not above: DAG files are parsed every few seconds.
        from airflow_kafka_offsets.core.text import first_few
        from airflow_kafka_offsets.exceptions import ConfigurationError
        from airflow_kafka_offsets.kafka.cluster import Cluster
        from airflow_kafka_offsets.replaying.bounds import (
            BatchBounds,
            bounds_as_json,
            check_bounds,
            cut_into_parts,
            resolve_bounds,
        )

        topics = topics_of(self.topics)
        if not str(self.parts).strip().isdecimal():
            raise ConfigurationError(f"parts must be a whole number of at least 1; got parts={self.parts!r}")
        bounds = check_bounds(_bounds(self.offsets, self.since, self.until, self.batch_id), topics)
        if isinstance(bounds, BatchBounds) and self.conn_id is None:
            raise ConfigurationError("batch_id needs conn_id, the connection of the database that holds the history")
        cluster = Cluster(self.kafka_config(), isolation_level=self.isolation_level)
        ranges, logs = resolve_bounds(bounds, topics, cluster, self._batch)
        parts = [bounds_as_json(part, logs) for part in cut_into_parts(ranges, int(self.parts))]
        self.log.info("%s offsets in %d parts: %s", f"{sum(map(len, ranges)):,}", len(parts), first_few(ranges))
        return parts

    def _batch(self, batch_id: int) -> Any:
        from airflow_kafka_offsets.replaying.replay_batches import batch_of

        with self.database(self.conn_id) as engine:
            return batch_of(engine, self.tables, self.group_id, batch_id)


def _bounds(
    offsets: OffsetsGiven | None,
    since: str | datetime | None,
    until: str | datetime | None,
    batch_id: int | str | None,
) -> Bounds:
    """The one kind of bounds that is given; a template that renders to nothing is not.

    :raises ConfigurationError: there is none, or more than one
    """
    from airflow_kafka_offsets.exceptions import ConfigurationError
    from airflow_kafka_offsets.replaying.bounds import BatchBounds, OffsetBounds, TimeBounds

    given = [name for name, one in (("offsets", offsets), ("since", since), ("batch_id", batch_id)) if one]
    if len(given) != 1 or (until and not since):
        raise ConfigurationError(
            "A replay has one of offsets, since (with until), and batch_id; "
            f"got offsets={offsets!r}, since={since!r}, until={until!r}, batch_id={batch_id!r}"
        )
    if since:
        return TimeBounds(since, until or None)
    if batch_id:
        if not str(batch_id).isdecimal():
            raise ConfigurationError(f"A batch is known by its number; got batch_id={batch_id!r}")
        return BatchBounds(int(batch_id))
    assert offsets is not None
    return OffsetBounds(offsets)
