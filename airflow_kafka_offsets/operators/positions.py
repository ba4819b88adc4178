"""The operators that move and verify the positions of a group: `KafkaRewindOperator` and `KafkaVerifyOperator`.

`rewinding` and `verification` do the work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperatorLink

from airflow_kafka_offsets.core.options import IsolationLevel, StateTables
from airflow_kafka_offsets.core.parameters import FLAG, NAME, Rule, or_none
from airflow_kafka_offsets.core.shared_docs import complete_docs
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.links import BatchLink, GroupLink, RewindLink
from airflow_kafka_offsets.hooks.named_errors import with_named_connections
from airflow_kafka_offsets.loading.parameters import SINK
from airflow_kafka_offsets.operators.base import RULES, GroupOperator, task_run
from airflow_kafka_offsets.operators.batch import KafkaBatchOperator
from airflow_kafka_offsets.sinks.fan_out import as_sink

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from airflow.sdk import Context

    from airflow_kafka_offsets.core.offsets import Scope
    from airflow_kafka_offsets.ledger.tables import Ledger
    from airflow_kafka_offsets.rewinding.preview import RewindPreview
    from airflow_kafka_offsets.rewinding.scenarios import Scenario
    from airflow_kafka_offsets.sinks.fan_out import Sinks
    from airflow_kafka_offsets.sinks.sink import Sink


@complete_docs(KafkaBatchOperator)
class KafkaRewindOperator(GroupOperator):
    """Move the stored positions of a group: preview, then all partitions in one transaction, with a row in the history.

    A retry, or a clear after success, does not rewind again, unless the scenario, the value, the scope or the rows to
    replace have changed. An error that no retry can help, such as an unknown partition or an open batch, fails the task
    at once.

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
    :param reason: why the positions move, for the history (templated)
    :param replace: the group's target: its rows of the offsets that will be read again, and their dead letters, are
        deleted in the same transaction; also where a position stays, and an earlier rewind left rows after it
        (templated)
    :param abandon_open_batch: abandon the group's open batch in the same transaction; without it, an open batch is an
        error
    :param new_group: whether the group may be missing in the state tables
    :param new_cluster: whether the group moves from the Kafka cluster of its positions to that of `kafka_conn_id`
    :param isolation_level: the isolation level of the loads
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

    @with_named_connections
    def execute(self, context: Context) -> dict[str, Any]:
        """Rewind, or preview it.

        :return: the preview, `executed`, and the fields of `RewindResult`, for XCom
        """
        # Here and not above: DAG files are parsed every few seconds.
        from airflow_kafka_offsets.core.offsets import parse_scope
        from airflow_kafka_offsets.core.text import count
        from airflow_kafka_offsets.database.errors import translated_errors
        from airflow_kafka_offsets.hooks.connections import sink_connections
        from airflow_kafka_offsets.rewinding.execution import RewindResult, execute_rewind, executed_by
        from airflow_kafka_offsets.rewinding.scenarios import Scenario

        # A template without a value renders to nothing.
        value = None if self.value == "" else self.value
        scenario = Scenario.of(self.scenario, value, group_id=self.group_id)
        scopes = [self.scope] if isinstance(self.scope, str) else self.scope
        scope = parse_scope([text for text in scopes if text != ""])
        run = task_run(context)
        with (
            self.ledger(self.conn_id) as ledger,
            translated_errors(f"Group {self.group_id!r} was not rewound", "Run the task again."),
        ):
            result: RewindResult | None = None
            done = executed_by(ledger, run, self.group_id, scenario, scope=scope, replace=self.replace)
            if done is not None:
                preview, result = done
                self.log.info("This task instance has rewound group %r already: %s", self.group_id, result)
            else:
                preview = self._preview(ledger, scenario, scope)
            if result is None and not self.preview_only:
                result = execute_rewind(
                    preview,
                    engine=ledger.engine,
                    tables=ledger.tables,
                    run=run,
                    who=str(run),
                    reason=self.reason or None,
                    abandon=preview.open_batch if self.abandon_open_batch else None,
                    replace=self.replace,
                    connections=sink_connections(self.replace) if self.replace is not None else None,
                )
        reread = count(preview.offsets_reread, "offset")
        if result is None:
            self.log.info("Nothing was changed: this is a preview. %s would be read again", reread)
        elif done is None:
            rows, dead_letters = count(result.rows_removed, "row"), count(result.dead_letters_removed, "dead letter")
            self.log.info("The next load reads %s again; %s and %s were removed", reread, rows, dead_letters)
        moved = asdict(result if result is not None else RewindResult(None))
        self._done = preview.as_dict() | {"executed": result is not None} | moved
        return self._done

    def _preview(self, ledger: Ledger, scenario: Scenario, scope: Scope) -> RewindPreview:
        from airflow_kafka_offsets.hooks.connections import kafka_config, sink_connections
        from airflow_kafka_offsets.rewinding.execution import check_removal
        from airflow_kafka_offsets.rewinding.previewing import preview_rewind

        preview = preview_rewind(
            self.group_id,
            scenario,
            engine=ledger.engine,
            kafka_config=kafka_config(self.kafka_conn_id),
            tables=ledger.tables,
            scope=scope,
            isolation_level=self.isolation_level,
            new_group=self.new_group,
            new_cluster=self.new_cluster,
        )
        for partition in preview.changed:
            self.log.info("%s", partition)
        if self.replace is not None and self.preview_only:
            removal = check_removal(preview, self.replace, ledger=ledger, connections=sink_connections(self.replace))
            self.log.info("Of the offsets that are read again would be removed: %s", removal.text)
        return preview

    @property
    def last_batch(self) -> int | None:
        """Return the rewind's batch id in the history; None if it moved nothing."""
        return self._done["batch_id"] if self._done is not None else None

    @property
    def rewind_choice(self) -> dict[str, Any]:
        """Return the default of the rewind form after this rewind."""
        return {"scenario": "undo"} if self.last_batch is not None else {}

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Return the target whose rows are removed, for OpenLineage; on completion, also how positions moved."""
        from airflow_kafka_offsets.operators.lineage import rewind_lineage

        return rewind_lineage(self, self._done)


@complete_docs(KafkaBatchOperator)
class KafkaVerifyOperator(GroupOperator):
    """Prove the coverage of a group: history, positions, rows and dead letters match, and no offset is missing or
    duplicated.

    Reads only, in one snapshot of the database; loads may run meanwhile. If something is wrong, the task fails at once
    with an error that names the first violation.

    As for `KafkaBatchOperator`: `state_tables`.

    :param group_id: the group to verify (templated)
    :param sink: the target that the group loads into; its database holds the positions. Without a column `_batch_id`,
        or with an `upsert_key`, its rows are not checked, and `output_checked` of the result is false (templated)
    :param kafka_conn_id: connection of the Kafka provider, to read all records that Kafka still has, and look up each
        in the target; None reads the database only (templated)
    :param isolation_level: the isolation level of the group's loads, for reading records again
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
        if kafka_conn_id is not None and self.sink.replaces_rows and len(self.sink.branch_numbers) == 1:
            raise ConfigurationError(
                f"Rows of {self.sink.name!r} are replaced by key: records of Kafka cannot be looked up in it. Leave "
                "out kafka_conn_id"
            )

    @with_named_connections
    def execute(self, context: Context) -> dict[str, Any]:
        """Verify.

        :return: the fields of `Coverage`, for XCom
        """
        # Here and not above: DAG files are parsed every few seconds.
        from airflow_kafka_offsets.hooks.connections import kafka_config, sink_connections
        from airflow_kafka_offsets.verification.verify import verify

        config = kafka_config(self.kafka_conn_id) if self.kafka_conn_id is not None else None
        with self.ledger(self.sink.conn_id) as ledger:
            coverage = verify(
                self.group_id,
                sink=self.sink,
                connections=sink_connections(self.sink),
                engine=ledger.engine,
                tables=ledger.tables,
                kafka_config=config,
                isolation_level=self.isolation_level,
            )
        self._done = asdict(coverage)
        return self._done

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """Return the target, which the task reads, for OpenLineage; on completion, also what was proved."""
        from airflow_kafka_offsets.operators.lineage import verify_lineage

        return verify_lineage(self.group_id, self.sink, self._done)
