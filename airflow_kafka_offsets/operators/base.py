"""The base class of operators: `GroupOperator` has parameters, connections and state tables.

Operators that run Spark have the base class of `on_spark`. What an operator does is in the module that is named for it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, BaseOperatorLink
from jinja2 import UndefinedError

from airflow_kafka_offsets.core.options import ISOLATION_LEVEL, StateTables, group_of
from airflow_kafka_offsets.core.parameters import FLAG, NAME, Rule, assign, check_parsed, from_attributes, read_rendered
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks.links import GroupLink, RewindLink
from airflow_kafka_offsets.loading.parameters import PIPELINE_RULES
from airflow_kafka_offsets.operators.retry_policy import KafkaOffsetsRetryPolicy
from airflow_kafka_offsets.sinks.fan_out import as_sink
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.spark.properties import Spark

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from airflow.sdk import Context
    from jinja2 import Environment
    from sqlalchemy.engine import Engine

    from airflow_kafka_offsets.ledger.batch_rows import TaskRun
    from airflow_kafka_offsets.ledger.tables import Tables


NO_INTERVAL = (
    "this run has no data interval, because an asset triggered it, or a user without a logical date. Nothing was "
    "done. Trigger it with a logical date, let a timetable with data intervals run the DAG "
    "(CronDataIntervalTimetable), or choose another instant"
)

RULES = PIPELINE_RULES | {
    "conn_id": NAME,
    "kafka_conn_id": NAME,
    "spark": group_of(Spark),
    "isolation_level": ISOLATION_LEVEL,
    "abandon_open_batch": FLAG,
    "new_group": FLAG,
    "new_cluster": FLAG,
    "assets": FLAG,
}


class GroupOperator(BaseOperator):
    """An operator for a group, with state tables in a SQL database and records in Kafka.

    The constructor of a subclass calls `take` with its parameters, among them those below. What Airflow renders is
    checked once it is rendered, everything else when the DAG is parsed. The default of `retry_policy` is
    `KafkaOffsetsRetryPolicy`.
    """

    rules: ClassVar[Mapping[str, Rule]] = RULES
    operator_extra_links: Collection[BaseOperatorLink] = (GroupLink(), RewindLink())

    # Where the page Rendered Templates shows more than text.
    template_fields_renderers: ClassVar[dict[str, str]] = dict.fromkeys(
        (
            *("sink", "value_format", "extra_columns", "on_bad_record", "limits", "coordination", "reading", "staging"),
            *("state_tables", "spark", "bounds", "replace"),
        ),
        "json",
    )

    group_id: str
    kafka_conn_id: Any
    state_tables: StateTables

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.retry_policy is None:
            self.retry_policy = KafkaOffsetsRetryPolicy()

    def take(self, given: Mapping[str, Any]) -> None:
        """Assign parameters to attributes, and check them, but for templates.

        :param given: the local variables of the constructor
        :raises ConfigurationError: a parameter cannot work; names it and the value received
        """
        assign(self, {**given, "sink": as_sink(given["sink"])} if "sink" in given else given)
        self.check_parameters()

    def check_parameters(self) -> None:
        """Check the parameters, but for templates.

        :raises ConfigurationError: a parameter cannot work; names it and the value received
        """
        check_parsed(self._given(), self.rules, self.template_fields)
        sink = getattr(self, "sink", None)
        if isinstance(sink, Sink) and sink.conn_id is None:
            raise ConfigurationError(f"The sink {sink.name!r} has no conn_id: name the connection of its database")

    def _given(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in self.rules if hasattr(self, name)}
        # A template may render to a single topic.
        return given | {"topics": topics_of(given["topics"])} if isinstance(given.get("topics"), str) else given

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Context,
        jinja_env: Environment,
        seen_oids: set[int],
    ) -> None:
        # Airflow calls this method, and no public one, for mapped tasks too.
        try:
            super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        except UndefinedError as error:
            if "'data_interval_" not in str(error):
                raise
            raise ConfigurationError(f"{error}: {NO_INTERVAL}") from error
        if parent is self:
            self._read_rendered(template_fields)

    def _read_rendered(self, names: Iterable[str]) -> None:
        """Give rendered texts the types of their parameters.

        :raises ConfigurationError: one cannot work; names it and the value received
        """
        names = frozenset(names)
        given = {name: value for name, value in self._given().items() if name in names}
        for name, value in read_rendered(given, self.rules).items():
            if value is not given[name]:
                setattr(self, name, value)

    @classmethod
    def get_serialized_fields(cls) -> frozenset[str]:
        """Return what Airflow stores of a task, with where its state is: the web interface finds databases by it."""
        fields: frozenset[str] = super().get_serialized_fields()  # type: ignore[no-untyped-call]  # Airflow does not annotate it
        return fields | {"kafka_offsets_state"}

    @property
    def kafka_offsets_state(self) -> str:
        """Return the names of the connections, the schema, the prefix and the tables, as JSON: no secrets."""
        sink = getattr(self, "sink", None)
        conn_id = sink.conn_id if sink is not None else getattr(self, "conn_id", None)
        kafka_conn_id = getattr(self, "kafka_conn_id", None)
        # As text: Airflow reads a dictionary of a task as one of its own types.
        return json.dumps(
            {
                "conn_id": conn_id,
                "schema": self.state_tables.schema,
                "prefix": self.state_tables.prefix,
                "kafka_conn_id": kafka_conn_id,
                "tables": [table._asdict() for table in sink.tables] if sink is not None else [],
            }
        )

    @property
    def tables(self) -> Tables:
        """Return the state tables."""
        # Imported here, as in the other methods, because DAG files are parsed every few seconds.
        from airflow_kafka_offsets.ledger.tables import Tables

        return Tables.of(self.state_tables.schema, self.state_tables.prefix)

    def database(self, conn_id: str | None) -> AbstractContextManager[Engine]:
        """Open the database of a connection, and close it after the block."""
        from airflow_kafka_offsets.hooks.connections import open_database

        assert conn_id is not None  # see `check_parameters`
        return open_database(conn_id)


def topics_of(topics: Any) -> tuple[str, ...]:
    """Return the parameter `topics` as a tuple; a template may render to a single topic."""
    return tuple(topics) if isinstance(topics, Iterable) and not isinstance(topics, str) else (topics,)


def task_run(context: Context) -> TaskRun:
    """Return the task instance of a context, with its try, and the user who triggered its DAG run."""
    from airflow_kafka_offsets.ledger.batch_rows import TaskRun

    return from_attributes(TaskRun, context["ti"], triggered_by=context["dag_run"].triggering_user_name)
