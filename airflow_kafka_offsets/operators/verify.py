"""The operator that proves that a group loaded every record exactly once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.core.options import IsolationLevel, StateTables
from airflow_kafka_offsets.core.parameters import NAME, Rule, or_none
from airflow_kafka_offsets.operators.base import RULES, GroupOperator
from airflow_kafka_offsets.operators.batch import KafkaBatchOperator
from airflow_kafka_offsets.operators.shared_docs import complete_docs

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_kafka_offsets.sinks.fan_out import Sinks
    from airflow_kafka_offsets.sinks.sink import Sink


@complete_docs(KafkaBatchOperator)
class KafkaVerifyOperator(GroupOperator):
    """Prove the coverage of a group: history, positions, rows and dead letters fit together without a hole or an
    overlap.

    Reads only, in one snapshot of the database; loads may run meanwhile. Where something is wrong, the task fails at
    once with an error that names the first violation.

    As for `KafkaBatchOperator`: `state_tables`.

    :param group_id: the group to verify (templated)
    :param sink: the target that the group loads into; its database holds the positions. Where it has no column
        `_batch_id`, or an `upsert_key`, its rows are not looked at, and `output_checked` of the result is false
        (templated)
    :param kafka_conn_id: connection of the Kafka provider, to read again all records that Kafka still has and look for
        each in the target; None reads the database alone (templated)
    :param isolation_level: the one that the group is loaded with, for reading again
    :raises ConfigurationError: a parameter that is not templated cannot work; raised when the DAG is parsed
    """

    template_fields: Sequence[str] = ("group_id", "sink", "kafka_conn_id", "state_tables")
    rules: ClassVar[Mapping[str, Rule]] = RULES | {"kafka_conn_id": or_none(NAME)}
    sink: Sink
    isolation_level: IsolationLevel
    _done: dict[str, Any] | None = None

    def __init__(
        self,
        *,
        group_id: str,
        sink: Sinks,
        kafka_conn_id: str | None = None,
        isolation_level: IsolationLevel = "read_committed",
        state_tables: StateTables = StateTables(),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.take(locals())

    def execute(self, context: Context) -> dict[str, Any]:
        """Verify.

        :return: the fields of `Coverage`, for XCom
        """
        # Here and not above: DAG files are parsed every few seconds.
        from airflow_kafka_offsets.hooks.connections import kafka_config, sink_connections
        from airflow_kafka_offsets.verification.verify import verify

        config = kafka_config(self.kafka_conn_id) if self.kafka_conn_id is not None else None
        with self.database(self.sink.conn_id) as engine:
            coverage = verify(
                self.group_id,
                sink=self.sink,
                connections=sink_connections(self.sink),
                engine=engine,
                tables=self.tables,
                kafka_config=config,
                isolation_level=self.isolation_level,
            )
        self._done = asdict(coverage)
        return self._done

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Return the target, which the task reads, for OpenLineage."""
        from airflow_kafka_offsets.operators.lineage import verify_lineage

        return verify_lineage(self.group_id, self.sink, self._done)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the target, with what was proved of it, for OpenLineage."""
        return self.get_openlineage_facets_on_start()
