"""Prove that a group loaded every record exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_kafka_offsets.retry_policy import KafkaOffsetsRetryPolicy

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_offsets.sinks import SqlTable


class KafkaVerifyOperator(BaseOperator):
    """Prove the coverage of a group: history, positions, rows and dead letters fit together without a hole or an overlap.

    Reads only, in one snapshot of the database; loads may run meanwhile. Where something is wrong, the task fails at once
    with an error that names the first violation.

    :param group_id: the group to verify (templated)
    :param sink: the target that the group loads into; its database holds the positions. Where it has no column `_batch_id`,
        or an `upsert_key`, its rows are not looked at, and `output_checked` of the result is false
    :param kafka_conn_id: connection of the Kafka provider, to read again all records that Kafka still has and look for each
        in the target; None asks the database alone
    :param isolation_level: the one that the group is loaded with, for reading again
    :param offsets_schema: database schema of the state tables; None is the connection's default
    :param offsets_prefix: put before the names of the state tables
    """

    template_fields: Sequence[str] = ("group_id",)

    def __init__(
        self,
        *,
        group_id: str,
        sink: SqlTable,
        kafka_conn_id: str | None = None,
        isolation_level: str = "read_committed",
        offsets_schema: str | None = None,
        offsets_prefix: str = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if self.retry_policy is None:
            self.retry_policy = KafkaOffsetsRetryPolicy()
        self.group_id = group_id
        self.sink = sink
        self.kafka_conn_id = kafka_conn_id
        self.isolation_level = isolation_level
        self.offsets_schema = offsets_schema
        self.offsets_prefix = offsets_prefix

    def execute(self, context: Context) -> dict[str, Any]:
        """Verify.

        :return: the fields of `Coverage`, for XCom
        """
        # Here and not above: DAG files are parsed every few seconds.
        from airflow_kafka_offsets.exceptions import ConfigurationError
        from airflow_kafka_offsets.hooks.database import database_engine
        from airflow_kafka_offsets.hooks.kafka import kafka_config
        from airflow_kafka_offsets.ledger import Tables
        from airflow_kafka_offsets.verification import verify

        if self.sink.conn_id is None:
            raise ConfigurationError(f"The sink {self.sink.name!r} has no conn_id: name the connection of its database")
        config = kafka_config(self.kafka_conn_id) if self.kafka_conn_id is not None else None
        engine = database_engine(self.sink.conn_id)
        try:
            coverage = verify(
                self.group_id,
                sink=self.sink,
                engine=engine,
                tables=Tables(self.offsets_schema, self.offsets_prefix),
                kafka_config=config,
                isolation_level=self.isolation_level,
            )
        finally:
            engine.dispose()
        return asdict(coverage)
