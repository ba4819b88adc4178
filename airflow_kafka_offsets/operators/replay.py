"""Replay a bounded range of topics beside the loads of a group, in parts where it is large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_kafka_offsets.operators.pipeline import PipelineOperator, topics_of
from airflow_kafka_offsets.retry_policy import KafkaOffsetsRetryPolicy

if TYPE_CHECKING:
    from datetime import datetime

    from airflow.sdk import Context

    from airflow_kafka_offsets.replay_bounds import Bounds

    OffsetsGiven = Mapping[str, Mapping[Any, Any]] | Sequence[Mapping[str, Any]] | str


class KafkaReplayOperator(PipelineOperator):
    """Load a range of offsets; the positions of the group are neither read as a start nor moved, and its loads go on.

    The range is one of `offsets`, `since` with `until`, or `batch_id`. Into another table than the group's the rows are
    appended. Into its own they may only go with `replace=True`, or where the sink has an `upsert_key`, and only below the
    stored positions; anything else is refused, because records would be there twice.

    The tries of a task instance share the offsets that its first try planned. A retry, or a clear after success, never does
    again what is committed; a new DAG run does, and appends it again. For a large range, `KafkaReplayPlanOperator` cuts it
    into parts, each of which is replayed by a mapped task: `.partial(…).expand(offsets=plan.output)`.

    :param group_id: the group that the records belong to; its history says what was replayed (templated)
    :param topics: the topics that may be replayed (templated)
    :param value_format: which columns a record becomes: `Json("id BIGINT, …")` or `Raw()`
    :param sink: the target, in the database that holds the positions of the group
    :param offsets: `{"orders": {0: [10, 20]}}`, start inclusive and end exclusive, or a list of mappings with topic, partition,
        start and end; either also as JSON text (templated)
    :param since: from the first record at or after this instant (templated)
    :param until: with `since`, up to the first record at or after this instant; None is the end of the log when the first try
        plans (templated)
    :param batch_id: the ranges of this batch of the group's history (templated)
    :param replace: remove the rows and dead letters that batches of the group left of these offsets, in the same transaction
    :param reason: for the history (templated)
    :param transform: import path of a function from DataFrame to DataFrame, or None (templated)
    :param max_records: the most offsets of one batch; more than that is replayed in several, one after the other
    :param on_data_loss: fail, or skip records of the range that are gone, and record the gap
    :param on_bad_record: fail at a record that does not decode, or set it aside in the table `dead_letters`: dead_letter
    :param max_dead_letters: the most dead letters of one batch; more of them fail it, None allows any number
    :param isolation_level: read_committed or read_uncommitted
    :param staging_dir: what workers and executors share for staged files; not needed for a local master (templated)
    :param spark_conf: Spark properties (templated)
    :param slice_offsets: the most offsets that one Spark task reads
    :param staging_retention: age at which staged files that no open batch names are removed
    :param idle_timeout: how long a read may go without a record and without an end of log
    :param offsets_schema: database schema of the state tables; None is the connection's default
    :param offsets_prefix: put before the names of the state tables
    :param kafka_conn_id: connection of the Kafka provider
    :param spark_conn_id: connection of the Spark provider
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
        offsets: OffsetsGiven | None = None,
        since: str | datetime | None = None,
        until: str | datetime | None = None,
        batch_id: int | str | None = None,
        replace: bool = False,
        reason: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.offsets = offsets
        self.since = since
        self.until = until
        self.batch_id = batch_id
        self.replace = replace
        self.reason = reason
        self.check_parameters()

    def execute(self, context: Context) -> dict[str, Any]:
        """Replay.

        :return: `batches` (ids), `records`, `rows` and `dead_letters` of all tries, for XCom
        """
        # Here and not above: DAG files are parsed every few seconds.
        from airflow_kafka_offsets.replaying import replay

        return self.run_on_spark(
            context,
            replay,
            self.pipeline(),
            _bounds(self.offsets, self.since, self.until, self.batch_id),
            replace=self.replace,
            reason=self.reason or None,
        )


class KafkaReplayPlanOperator(BaseOperator):
    """Turn bounds into offsets, once, and cut them into parts for `KafkaReplayOperator`: nothing is read or written.

    The ends of logs move, and the first record after an instant may expire: mapped tasks that looked for themselves could
    leave a hole between their parts, or overlap. They get offsets instead, with the ids of the topics.

    :param group_id: whose history `batch_id` means (templated)
    :param topics: the topics that may be replayed (templated)
    :param parts: how many parts of nearly equal numbers of offsets; fewer where there are fewer offsets (templated)
    :param offsets: as for `KafkaReplayOperator`, as are `since`, `until` and `batch_id` (templated)
    :param conn_id: connection of the database that holds the history; needed for `batch_id` alone
    :param isolation_level: that of the replay: decides where a log ends
    :param offsets_schema: database schema of the state tables; None is the connection's default
    :param offsets_prefix: put before the names of the state tables
    :param kafka_conn_id: connection of the Kafka provider
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
        super().__init__(**kwargs)
        if self.retry_policy is None:
            self.retry_policy = KafkaOffsetsRetryPolicy()
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

    def execute(self, context: Context) -> list[list[dict[str, Any]]]:
        """Plan.

        :return: the parts, each for the parameter `offsets` of one mapped `KafkaReplayOperator`; none where there is nothing
        """
        # Here and not above: DAG files are parsed every few seconds.
        from airflow_kafka_offsets.exceptions import ConfigurationError
        from airflow_kafka_offsets.hooks.kafka import kafka_config
        from airflow_kafka_offsets.kafka import Cluster
        from airflow_kafka_offsets.listing import listed
        from airflow_kafka_offsets.replay_bounds import OfBatch, as_json, check, cut, resolve

        topics = topics_of(self.topics)
        if not str(self.parts).strip().isdecimal():
            raise ConfigurationError(f"parts must be a whole number of at least 1; got parts={self.parts!r}")
        bounds = check(_bounds(self.offsets, self.since, self.until, self.batch_id), topics)
        if isinstance(bounds, OfBatch) and self.conn_id is None:
            raise ConfigurationError("batch_id needs conn_id, the connection of the database that holds the history")
        cluster = Cluster(kafka_config(self.kafka_conn_id), isolation_level=self.isolation_level)
        ranges, logs = resolve(bounds, topics, cluster, self._batch)
        parts = [as_json(part, logs) for part in cut(ranges, int(self.parts))]
        self.log.info("%s offsets in %d parts: %s", f"{sum(map(len, ranges)):,}", len(parts), listed(ranges))
        return parts

    def _batch(self, batch_id: int) -> Any:
        from airflow_kafka_offsets import ledger
        from airflow_kafka_offsets.hooks.database import database_engine

        assert self.conn_id is not None  # see `execute`
        engine = database_engine(self.conn_id)
        try:
            tables = ledger.Tables(self.offsets_schema, self.offsets_prefix)
            return ledger.batch_of(engine, tables, self.group_id, batch_id)
        finally:
            engine.dispose()


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
    from airflow_kafka_offsets.replay_bounds import Between, OfBatch, Offsets

    given = [name for name, one in (("offsets", offsets), ("since", since), ("batch_id", batch_id)) if one]
    if len(given) != 1 or (until and not since):
        raise ConfigurationError(
            "A replay has one of offsets, since (with until), and batch_id; "
            f"got offsets={offsets!r}, since={since!r}, until={until!r}, batch_id={batch_id!r}"
        )
    if since:
        return Between(since, until or None)
    if batch_id:
        if not str(batch_id).isdecimal():
            raise ConfigurationError(f"A batch is known by its number; got batch_id={batch_id!r}")
        return OfBatch(int(batch_id))
    assert offsets is not None
    return Offsets(offsets)
