"""Wait until the lag of a group meets thresholds. `lag.thresholds` compares; this module polls, or defers to a
trigger.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowSkipException,
    BaseSensorOperator,
    PokeReturnValue,
    conf,
)
from airflow.sdk import BaseOperatorLink

from airflow_kafka_offsets.core.options import IsolationLevel, StateTables
from airflow_kafka_offsets.core.parameters import assign, from_attributes, read_rendered
from airflow_kafka_offsets.hooks.links import GroupLink, RewindLink
from airflow_kafka_offsets.hooks.named_errors import with_named_connections, with_names
from airflow_kafka_offsets.lag.thresholds import LagWatch

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_offsets.core.instants import Start
    from airflow_kafka_offsets.kafka.cluster import Cluster
    from airflow_kafka_offsets.lag.thresholds import Require


# A request to Kafka that takes longer is repeated by the next poke.
_KAFKA_SECONDS = 30.0

# A sensor may poke without a pause; a triggerer must not poll without one.
_SHORTEST_SECONDS = 1.0


class KafkaLagSensor(BaseSensorOperator):
    """Wait until the lag of a group meets thresholds: enough to load, caught up, waited for too long, or about to be
    lost.

    All thresholds are inclusive. One of them is enough unless `require="all"`. While a cluster or a database is
    unavailable, the sensor waits, until `timeout`. An error that waiting cannot help, such as an unknown topic, fails
    the task at once. The report in XCom is a hint: the load reads the positions itself.

    :param group_id: the group of the load (templated)
    :param topics: `topic` or `topic:0,1`, or several of them; empty is all topics with positions (templated)
    :param conn_id: connection of the database with the positions (templated)
    :param min_lag: enough to load: the lag is at least this number of offsets (templated)
    :param max_lag: caught up: the lag is at most this number of offsets (templated)
    :param max_delay: waited for too long: the oldest unread record has waited for at least this time
    :param min_headroom: about to be lost: at most this much is left before retention deletes unread records; a
        duration, or a number of offsets between the beginning offset and the position. Records that are already lost
        meet it. A duration needs the ACL DescribeConfigs on the topics, without which the task fails (templated)
    :param require: whether `any` or `all` of the thresholds have to be met
    :param per_partition: compare `min_lag` and `max_lag` with each partition instead of the total: one partition has to
        reach `min_lag`, and none may exceed `max_lag`. Delay and headroom are always those of the worst partition
    :param allow_incomplete: leave out partitions with an error; otherwise, no threshold is met while a partition has an
        error. If all partitions have an error, no threshold is met
    :param deferrable: wait in the triggerer, where all sensors share one poll of each cluster; None is Airflow's
        `[operators] default_deferrable`. The first poll there comes after `poke_interval`, which should be ten seconds
        or more: Airflow fails a task whose trigger fires before the executor has noticed that the task was deferred
    :param start: where a load begins with topics that have no position (templated)
    :param isolation_level: the isolation level of the load
    :param state_tables: the database schema and the prefix of the state tables (templated)
    :param kafka_conn_id: connection of the Kafka provider (templated)
    :param kwargs: parameters of every sensor: `poke_interval`, `timeout`, `mode`, `soft_fail`, …
    :raises ConfigurationError: a parameter that is not templated cannot work; raised when the DAG is parsed
    """

    operator_extra_links: Collection[BaseOperatorLink] = (GroupLink(), RewindLink())
    template_fields: Sequence[str] = LagWatch.templated
    template_fields_renderers: ClassVar[dict[str, str]] = {"state_tables": "json"}

    group_id: str
    conn_id: str
    kafka_conn_id: str
    isolation_level: IsolationLevel
    state_tables: StateTables
    deferrable: bool

    # Kept from one poke to the next, in a sensor that stays: a new client logs in again.
    _cluster: Cluster | None = None

    def __init__(
        self,
        *,
        group_id: str,
        topics: str | Sequence[str] = (),
        conn_id: str,
        min_lag: int | str | None = None,
        max_lag: int | str | None = None,
        max_delay: timedelta | None = None,
        min_headroom: timedelta | int | str | None = None,
        require: Require = "any",
        per_partition: bool = False,
        allow_incomplete: bool = False,
        deferrable: bool | None = None,
        start: Start = "earliest",
        isolation_level: IsolationLevel = "read_committed",
        state_tables: StateTables = StateTables(),
        kafka_conn_id: str = "kafka_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        assign(
            self,
            locals()
            | {"deferrable": conf.getboolean("operators", "default_deferrable") if deferrable is None else deferrable},
        )
        # Raises for what cannot work, when the DAG is parsed.
        self._watch()

    @with_named_connections
    def execute(self, context: Context) -> Any:
        """Wait, and return the report."""
        if not self.deferrable:
            return super().execute(context)
        from airflow_kafka_offsets.triggers.lag import KafkaLagTrigger

        try:
            poked = self.poke(context)
        except AirflowFailException as error:
            # As Airflow does for a sensor that is not deferred.
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(error)) from error
            raise
        if poked.is_done:
            return poked.xcom_value
        watch = self._rendered_watch()
        return self.defer(
            trigger=KafkaLagTrigger(**watch.as_kwargs(), first_poll=datetime.now(UTC) + watch.poll_interval),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Return the event of the trigger.

        :return: `group_id`, the names of the thresholds that are `met`, and the `report`
        :raises AirflowFailException: the trigger had an error that waiting cannot help
        """
        if "error" in event:
            raise AirflowFailException(event["error"])
        self.log.info("%s of group %r is met", ", ".join(event["met"]), self.group_id)
        return event

    def poke(self, context: Context) -> PokeReturnValue:
        """Measure the lag once, and compare it with the thresholds.

        :raises AirflowFailException: waiting cannot help
        """
        # Imported here because DAG files are parsed every few seconds.
        from airflow.providers.common.compat.sdk import Stats

        from airflow_kafka_offsets.database.errors import translated_errors
        from airflow_kafka_offsets.exceptions import KafkaOffsetsError
        from airflow_kafka_offsets.hooks.connections import kafka_cluster, open_ledger
        from airflow_kafka_offsets.hooks.metrics import emit_lag
        from airflow_kafka_offsets.lag.measure import measure_lag

        watch = self._rendered_watch()
        try:
            question = watch.question()
            if self._cluster is None:
                self._cluster = kafka_cluster(self.kafka_conn_id, self.isolation_level, timeout=_KAFKA_SECONDS)
            with (
                open_ledger(self.conn_id, self.state_tables.schema, self.state_tables.prefix) as ledger,
                translated_errors(f"The positions of group {self.group_id!r} could not be read", ""),
            ):
                report = measure_lag(ledger, self._cluster, question, new_group=True)
            emit_lag(Stats, self.group_id, report)
            judgement = watch.judge(report)
        except KafkaOffsetsError as error:
            # The connection may have changed.
            self._cluster = None
            with_names(self, error)
            if not error.retriable:
                raise AirflowFailException(f"{type(error).__name__}: {error}") from None
            self.log.warning("Poking again: %s", error)
            return PokeReturnValue(is_done=False)
        self.log.info("%s", judgement.text)
        return PokeReturnValue(is_done=bool(judgement.met), xcom_value=judgement.payload)

    def _rendered_watch(self) -> LagWatch:
        rendered = {name: getattr(self, name) for name in self.template_fields}
        return self._watch(**read_rendered(rendered, LagWatch.rules()))

    def _watch(self, **rendered: Any) -> LagWatch:
        poll_interval = timedelta(seconds=max(self.poke_interval, _SHORTEST_SECONDS))
        return from_attributes(LagWatch, self, poll_interval=poll_interval, **rendered)
