"""`KafkaRewindOperator`: a rewind as a task. What a rewind does is decided in `rewinding`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperatorLink

from airflow_kafka_offsets.core.options import IsolationLevel, StateTables
from airflow_kafka_offsets.core.parameters import FLAG, Rule, or_none
from airflow_kafka_offsets.hooks.links import BatchLink, GroupLink, RewindLink
from airflow_kafka_offsets.loading.parameters import SINK
from airflow_kafka_offsets.operators.base import RULES, GroupOperator, task_run
from airflow_kafka_offsets.operators.batch import KafkaBatchOperator
from airflow_kafka_offsets.operators.shared_docs import complete_docs
from airflow_kafka_offsets.sinks.fan_out import as_sink

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_kafka_offsets.sinks.fan_out import Sinks
    from airflow_kafka_offsets.sinks.sink import Sink


@complete_docs(KafkaBatchOperator)
class KafkaRewindOperator(GroupOperator):
    """Move the stored positions of a group: preview, then all partitions in one transaction, with a row in the history.

    A retry, or a clear after success, does not rewind again: the history says what the task instance did last. With
    another scenario, value or scope, or with other rows to replace, it is another rewind. An error that no retry can
    help, such as an unknown partition or an open batch, fails the task at once.

    As for `KafkaBatchOperator`: `state_tables`, `kafka_conn_id`.

    :param group_id: the group whose positions are moved (templated)
    :param scenario: where the positions move to, named as `kafka-consumer-groups --reset-offsets` names it:
        `to-earliest`, `to-latest`, `to-current`, `to-offset`, `shift-by`, `to-datetime`, `by-duration`, `from-file`;
        and `to-batch`, `to-group`, `import`, `undo` (templated)
    :param value: the offset, instant (ISO 8601, no zone means UTC), duration (`P1DT12H`), text of a CSV file, id of the
        batch, or name of the group (templated)
    :param scope: `topic` or `topic:0,1`, several of them; empty, or nothing but empty text, is all topics of the group
        (templated)
    :param conn_id: connection of the database that holds the positions (templated)
    :param preview_only: only preview (a dry run); text such as `{{ params.preview_only }}` is read as true or false
        (templated)
    :param reason: for the history (templated)
    :param replace: the group's target: its rows of the offsets that will be read again, and their dead letters, are
        deleted in the same transaction; also where a position stays, and an earlier rewind left rows after it
        (templated)
    :param abandon_open_batch: abandon the group's open batch in the same transaction; without it, an open batch is an
        error
    :param new_group: whether the group may be one that nothing is stored of yet
    :param new_cluster: whether the group moves from the Kafka cluster that its positions belong to, to that of
        `kafka_conn_id`
    :param isolation_level: that of the loads
    :raises ConfigurationError: a parameter that is not templated cannot work; raised when the DAG is parsed
    """

    template_fields: Sequence[str] = (
        "group_id",
        "scenario",
        "value",
        "scope",
        "conn_id",
        "preview_only",
        "reason",
        "replace",
        "state_tables",
        "kafka_conn_id",
    )
    operator_extra_links: Collection[BaseOperatorLink] = (GroupLink(), BatchLink(), RewindLink())
    rules: ClassVar[Mapping[str, Rule]] = RULES | {"preview_only": FLAG, "replace": or_none(SINK)}
    scenario: str
    value: Any
    scope: str | Sequence[str]
    conn_id: str
    preview_only: bool | str
    reason: str | None
    replace: Sink | None
    abandon_open_batch: bool
    new_group: bool
    new_cluster: bool
    isolation_level: IsolationLevel
    _done: dict[str, Any] | None = None

    def __init__(
        self,
        *,
        group_id: str,
        scenario: str,
        value: Any = None,
        scope: str | Sequence[str] = (),
        conn_id: str,
        preview_only: bool | str = False,
        reason: str | None = None,
        replace: Sinks | None = None,
        abandon_open_batch: bool = False,
        new_group: bool = False,
        new_cluster: bool = False,
        isolation_level: IsolationLevel = "read_committed",
        state_tables: StateTables = StateTables(),
        kafka_conn_id: str = "kafka_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.take(locals() | {"replace": as_sink(replace)})

    def execute(self, context: Context) -> dict[str, Any]:
        """Rewind, or preview it.

        :return: the preview, `executed`, and the fields of `RewindResult`, for XCom
        """
        self._done = self._rewind(context)
        return self._done

    @property
    def last_batch(self) -> int | None:
        """Return the rewind's number in the history; None where it moved nothing."""
        return self._done["batch_id"] if self._done is not None else None

    @property
    def rewind_choice(self) -> dict[str, Any]:
        """Return what the form of a rewind offers after this one."""
        return {"scenario": "undo"} if self.last_batch is not None else {}

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Return the target whose rows are removed, for OpenLineage."""
        from airflow_kafka_offsets.operators.lineage import rewind_lineage

        return rewind_lineage(
            self.group_id,
            kafka_conn_id=self.kafka_conn_id,
            replace=self.replace,
            conn_id=self.conn_id,
            done=self._done,
        )

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any]:
        """Return the topics and the target, with how the positions moved, for OpenLineage."""
        return self.get_openlineage_facets_on_start()

    def _rewind(self, context: Context) -> dict[str, Any]:
        # Here and not above: DAG files are parsed every few seconds.
        from airflow_kafka_offsets.core.offsets import parse_scope
        from airflow_kafka_offsets.database.errors import translated_errors
        from airflow_kafka_offsets.hooks.connections import kafka_config, sink_connections
        from airflow_kafka_offsets.ledger.tables import Ledger
        from airflow_kafka_offsets.rewinding.execution import RewindResult, execute_rewind, executed_by
        from airflow_kafka_offsets.rewinding.previewing import preview_rewind
        from airflow_kafka_offsets.rewinding.scenarios import Scenario

        # A template without a value renders to nothing.
        value = None if self.value == "" else self.value
        scenario = Scenario.of(self.scenario, value, group_id=self.group_id)
        scopes = [self.scope] if isinstance(self.scope, str) else self.scope
        scope = parse_scope([text for text in scopes if text != ""])
        run = task_run(context)
        config = kafka_config(self.kafka_conn_id)
        with (
            self.database(self.conn_id) as engine,
            translated_errors(f"Group {self.group_id!r} was not rewound", "Run the task again."),
        ):
            ledger = Ledger(engine, self.tables)
            done = executed_by(ledger, run, self.group_id, scenario, scope=scope, replace=self.replace)
            if done is not None:
                preview, result = done
                self.log.info("This task instance has rewound group %r already: %s", self.group_id, result)
                return preview.as_dict() | {"executed": True} | asdict(result)
            preview = preview_rewind(
                self.group_id,
                scenario,
                engine=engine,
                kafka_config=config,
                tables=self.tables,
                scope=scope,
                isolation_level=self.isolation_level,
                new_group=self.new_group,
                new_cluster=self.new_cluster,
            )
            for partition in preview.changed:
                self.log.info("%s", partition)
            if self.replace is not None:
                preview.refuse_replace()
            if self.preview_only:
                return preview.as_dict() | {"executed": False} | asdict(RewindResult(None))
            result = execute_rewind(
                preview,
                engine=engine,
                tables=self.tables,
                run=run,
                who=str(run),
                reason=self.reason or None,
                abandon=preview.open_batch if self.abandon_open_batch else None,
                replace=self.replace,
                connections=sink_connections(self.replace) if self.replace is not None else None,
            )
        return preview.as_dict() | {"executed": True} | asdict(result)
