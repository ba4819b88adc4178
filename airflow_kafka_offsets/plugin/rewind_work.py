"""What the pages of rewinds do with state tables and Kafka: read a form, preview what it asks for, and execute a
preview.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.engine import Connection

from airflow_kafka_offsets.core.offsets import Scope, parse_scope
from airflow_kafka_offsets.exceptions import ConfigurationError, KafkaOffsetsError, NoPositionError
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.overview import GroupSummary, group_summaries
from airflow_kafka_offsets.ledger.replaced_output import count_output
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.plugin.group_request import GroupRequest
from airflow_kafka_offsets.plugin.group_targets import GroupTarget
from airflow_kafka_offsets.plugin.sources import tables_of
from airflow_kafka_offsets.rewinding.execution import RewindResult, execute_rewind
from airflow_kafka_offsets.rewinding.history import state_before_last_rewind
from airflow_kafka_offsets.rewinding.preview import RewindPreview
from airflow_kafka_offsets.rewinding.previewing import preview_rewind
from airflow_kafka_offsets.rewinding.scenarios import SCENARIOS, Scenario
from airflow_kafka_offsets.sinks.fan_out import of_tables
from airflow_kafka_offsets.sinks.sink import DatabaseTable
from airflow_kafka_offsets.sinks.sql.rows import count_replaced
from airflow_kafka_offsets.sinks.target_rows import ReplacedOffsets

ISOLATION_LEVELS = ("read_committed", "read_uncommitted")


@dataclass(frozen=True, slots=True)
class RewindForm:
    """What the form of a rewind asks for, as it was typed.

    :param kafka_conn_id: empty is the connection that leads to the cluster of the group
    """

    scenario: str = ""
    value: str = ""
    scope: str = ""
    kafka_conn_id: str = ""
    isolation_level: str = ISOLATION_LEVELS[0]
    replace: bool = False
    abandon: bool = False
    new_cluster: bool = False

    def parsed(self, group_id: str) -> tuple[Scenario, Scope]:
        """Return the scenario and the scope.

        :raises ConfigurationError: they are none
        """
        if self.scenario not in SCENARIOS:
            raise ConfigurationError("Choose where the positions move to")
        if self.isolation_level not in ISOLATION_LEVELS:
            raise ConfigurationError(f"The isolation level is one of {', '.join(ISOLATION_LEVELS)}")
        return Scenario.of(self.scenario, self.value or None, group_id=group_id), parse_scope(self.scope.split())


@dataclass(frozen=True, slots=True)
class FormState:
    """What the form shows of a group.

    :param undo: the reason why the last rewind cannot be undone; None where it can be
    """

    target: GroupTarget = field(default_factory=GroupTarget)
    undo: str | None = None


@dataclass(frozen=True, slots=True)
class RewindEstimate:
    """A preview, and what it costs.

    :param target: of the group
    :param kafka_conn_id: the connection that was used
    :param rows: how many rows are removed; None where none are to be
    :param tables: from which they are removed
    """

    preview: RewindPreview
    target: GroupTarget
    kafka_conn_id: str
    rows: int | None = None
    dead_letters: int | None = None
    tables: tuple[DatabaseTable, ...] = ()

    @property
    def is_nothing(self) -> bool:
        """Return whether there is nothing to execute."""
        return not (self.preview.replacing if self.tables else self.preview.changed)

    @property
    def leaves_rows(self) -> bool:
        """Return whether rows of offsets that will be read again stay in the target."""
        return bool(not self.target.tables and self.preview.offsets_reread and not self.preview.moves_cluster)


def form_state(conn: Connection, tables: Tables, request: GroupRequest) -> FormState:
    """Return what the form shows."""
    try:
        state_before_last_rewind(Ledger(conn.engine, tables), request.group_id, {})
        undo = None
    except KafkaOffsetsError as error:
        undo = str(error)
    return FormState(request.target(conn, tables), undo)


def kafka_conn_ids(request: GroupRequest) -> list[str]:
    """Return the connections of Kafka that the group may be loaded through, and that the user may use."""
    known = request.readings.sources(0.0)[request.source].kafka_conn_ids
    return sorted(conn_id for conn_id in known if request.caller.shares_team(conn_id))


def estimate(ledger: Ledger, request: GroupRequest, group: GroupSummary, form: RewindForm) -> RewindEstimate:
    """Return the preview of what a form asks for. Nothing is written.

    :raises KafkaOffsetsError: see `preview_rewind`
    """
    scenario, scope = form.parsed(group.group_id)
    if scenario.name == "to-group":
        _check_other_group(ledger, request, str(scenario.value))
    kafka_conn_id = _kafka_conn_id(request, group, form)
    preview = preview_rewind(
        group.group_id,
        scenario,
        engine=ledger.engine,
        kafka_config=request.readings.connections.kafka_config(kafka_conn_id),
        tables=ledger.tables,
        scope=scope,
        isolation_level=form.isolation_level,
        new_cluster=form.new_cluster,
    )
    with ledger.connect() as conn:
        target = request.target(conn, ledger.tables)
        if not form.replace:
            return RewindEstimate(preview, target, kafka_conn_id)
        preview.refuse_replace()
        if not target.tables:
            raise ConfigurationError(
                f"{target.unknown}: its rows cannot be removed here. Rewind with KafkaRewindOperator(replace=…), or "
                "with 'airflow kafka-offsets rewind --replace --dag-id … --task-id …'"
            )

        def count_rows(replaced: ReplacedOffsets) -> int:
            return sum(count_replaced(conn, table, replaced) for table in target.tables)

        reread = {move.topic_partition: move.reread for move in preview.replacing if move.reread is not None}
        topic_ids = {move.topic_partition: move.new.topic_id for move in preview.replacing if move.new is not None}
        name = of_tables(target.tables).name
        rows, letters = count_output(conn, ledger.tables, group.group_id, name, reread, topic_ids, count_rows)
    return RewindEstimate(preview, target, kafka_conn_id, rows, letters, target.tables)


def execute(ledger: Ledger, content: Mapping[str, Any], number: str, who: str, reason: str) -> RewindResult:
    """Execute the preview that a ticket holds.

    :param content: see `ticket_content`
    :param number: of the ticket: a form that is sent twice is executed once
    :raises KafkaOffsetsError: see `execute_rewind`
    """
    preview = RewindPreview.from_dict(content["preview"])
    tables = tables_of(content["tables"])
    return execute_rewind(
        preview,
        engine=ledger.engine,
        tables=ledger.tables,
        run=TaskRun(f"web interface:{number}"),
        who=who,
        reason=reason,
        abandon=preview.open_batch if content["abandon"] else None,
        replace=of_tables(tables) if tables else None,
    )


def ticket_content(estimate: RewindEstimate, form: RewindForm) -> dict[str, Any]:
    """Return what the ticket of a preview holds."""
    return {
        "preview": estimate.preview.as_dict(),
        "tables": [table._asdict() for table in estimate.tables],
        "abandon": form.abandon,
    }


def _check_other_group(ledger: Ledger, request: GroupRequest, group_id: str) -> None:
    """Raise if the user may not see the group whose positions are copied, as if there were none."""
    with ledger.connect() as conn:
        _, groups = group_summaries(conn, ledger.tables, [group_id])
    if not groups or not request.caller.sees_group(request.source, groups[0]):
        raise NoPositionError(f"There is no group {group_id!r} in {request.source}, or you may not see it")


def _kafka_conn_id(request: GroupRequest, group: GroupSummary, form: RewindForm) -> str:
    """Return the connection that the form names, or the one that leads to the group's cluster."""
    allowed = kafka_conn_ids(request)
    if form.kafka_conn_id:
        if form.kafka_conn_id not in allowed:
            raise ConfigurationError(f"The group is not loaded through connection {form.kafka_conn_id!r}")
        return form.kafka_conn_id
    if len(allowed) == 1:
        return allowed[0]
    for conn_id in allowed:
        try:
            if request.readings.connections.cluster(conn_id).cluster_id() == group.cluster_id:
                return conn_id
        except KafkaOffsetsError:
            # Another one may lead there; the message below names those that do not.
            continue
    raise ConfigurationError(
        f"No connection leads to the Kafka cluster of the group ({', '.join(allowed) or 'none is yours to use'}): "
        "choose one"
    )
