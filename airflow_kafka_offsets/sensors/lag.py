"""Wait until the lag of a group meets thresholds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue
from airflow.sdk.configuration import conf
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_kafka_offsets.lag.watch_options import TEMPLATED, LagWatch

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_kafka_offsets.core.start import Start
    from airflow_kafka_offsets.lag.thresholds import Require


# A question to Kafka that takes longer is asked again at the next look.
_KAFKA_SECONDS = 30.0

# A sensor may look without a pause; a triggerer is not to.
_SHORTEST_SECONDS = 1.0


class KafkaLagSensor(BaseSensorOperator):
    """Wait until the lag of a group meets thresholds: enough to load, caught up, waited for too long, or about to be lost.

    All thresholds are inclusive, and one that is met is enough unless `require="all"`. A cluster or a database that cannot be
    reached is waited for until `timeout`; what waiting cannot help, such as an unknown topic, fails the task at once. What is
    returned as XCom is a hint: the load reads the positions anew.

    :param group_id: the group of the load (templated)
    :param topics: `topic` or `topic:0,1`, several of them; empty is the topics of the stored positions (templated)
    :param offsets_conn_id: connection of the database that holds the positions
    :param min_lag: enough to load: at least so many offsets wait
    :param max_lag: caught up: at most so many offsets wait
    :param max_delay: the oldest record that waits is at least so old
    :param min_headroom: at most so much is left until retention takes what waits: a duration, or a number of offsets that the
        beginning offset is behind the position. Records that are lost already meet it
    :param require: whether `any` or `all` of the thresholds have to be met
    :param per_partition: compare `min_lag` and `max_lag` with single partitions: one with `min_lag` is enough, and `max_lag` has to
        hold for each. Otherwise they are compared with the total
    :param allow_incomplete: go on also where partitions have an error
    :param deferrable: wait in the triggerer, where all sensors share one poll of each cluster; None is Airflow's
        `[operators] default_deferrable`. The first look there comes after `poke_interval`. Let this be ten seconds or more: Airflow
        fails a task whose trigger fires before the executor has noticed that the task was deferred
    :param start: where a load begins with topics of which nothing is stored
    :param isolation_level: that of the load
    :param offsets_schema: database schema of the state tables; None is the connection's default
    :param offsets_prefix: put before the names of the state tables
    :param kafka_conn_id: connection of the Kafka provider
    :param kwargs: of every sensor: `poke_interval`, `timeout`, `mode`, `soft_fail`, …
    :raises ConfigurationError: the thresholds can mean nothing or contradict each other, or another parameter that is not templated cannot
        work; raised when the DAG is parsed
    """

    template_fields: Sequence[str] = TEMPLATED

    def __init__(
        self,
        *,
        group_id: str,
        topics: str | Sequence[str] = (),
        offsets_conn_id: str,
        min_lag: int | None = None,
        max_lag: int | None = None,
        max_delay: timedelta | None = None,
        min_headroom: timedelta | int | None = None,
        require: Require = "any",
        per_partition: bool = False,
        allow_incomplete: bool = False,
        deferrable: bool | None = None,
        start: Start = "earliest",
        isolation_level: str = "read_committed",
        offsets_schema: str | None = None,
        offsets_prefix: str = "",
        kafka_conn_id: str = "kafka_default",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.group_id = group_id
        self.topics = topics
        self.offsets_conn_id = offsets_conn_id
        self.min_lag = min_lag
        self.max_lag = max_lag
        self.max_delay = max_delay
        self.min_headroom = min_headroom
        self.require = require
        self.per_partition = per_partition
        self.allow_incomplete = allow_incomplete
        self.deferrable = conf.getboolean("operators", "default_deferrable") if deferrable is None else deferrable
        self.start = start
        self.isolation_level = isolation_level
        self.offsets_schema = offsets_schema
        self.offsets_prefix = offsets_prefix
        self.kafka_conn_id = kafka_conn_id
        # Refuses bad thresholds when the DAG is parsed.
        self._watched()

    def execute(self, context: Context) -> Any:
        """Wait, and return the report."""
        if not self.deferrable:
            return super().execute(context)
        from airflow_kafka_offsets.triggers.lag import KafkaLagTrigger

        try:
            looked = self.poke(context)
        except AirflowFailException as error:
            # As a sensor that is not deferred does it.
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(error)) from error
            raise
        if looked.is_done:
            return looked.xcom_value
        watched = self._watched()
        return self.defer(
            trigger=KafkaLagTrigger(**watched.as_kwargs(), first_look=datetime.now(UTC) + watched.poll_interval),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def execute_complete(self, context: Context, event: dict[str, Any]) -> dict[str, Any]:
        """Go on with what the trigger found.

        :return: `group_id`, the names of the thresholds that are `met`, and the `report`
        :raises AirflowFailException: the trigger found that waiting cannot help
        """
        if "error" in event:
            raise AirflowFailException(event["error"])
        self.log.info("%s of group %r is met", ", ".join(event["met"]), self.group_id)
        return event

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once.

        :raises AirflowFailException: what was found cannot get better by waiting
        """
        # Here and not above: DAG files are parsed every few seconds.
        from airflow.sdk.observability import stats

        from airflow_kafka_offsets.database.errors import translated_errors
        from airflow_kafka_offsets.exceptions import KafkaOffsetsError
        from airflow_kafka_offsets.hooks.database import database_engine
        from airflow_kafka_offsets.hooks.kafka import kafka_config
        from airflow_kafka_offsets.kafka.cluster import Cluster
        from airflow_kafka_offsets.lag.measure import measure_lag
        from airflow_kafka_offsets.ledger.tables import Tables

        watched = self._watched()
        try:
            question = watched.question()
            config = kafka_config(self.kafka_conn_id)
            cluster = Cluster(config, isolation_level=self.isolation_level, timeout=_KAFKA_SECONDS)
            engine = database_engine(self.offsets_conn_id)
            try:
                with translated_errors(f"The database of connection {self.offsets_conn_id!r} could not be read", ""):
                    tables = Tables(self.offsets_schema, self.offsets_prefix)
                    report = measure_lag(engine, tables, cluster, question, new_group=True)
            finally:
                engine.dispose()
        except KafkaOffsetsError as error:
            if not error.retriable:
                raise AirflowFailException(f"{type(error).__name__}: {error}") from error
            self.log.warning("Looking again: %s", error)
            return PokeReturnValue(is_done=False)
        judged = watched.judge(report, stats)
        self.log.info("%s", judged.told)
        return PokeReturnValue(is_done=bool(judged.met), xcom_value=judged.payload)

    def _watched(self) -> LagWatch:
        names = {field.name for field in fields(LagWatch)} - {"poll_interval"}
        return LagWatch(
            **{name: getattr(self, name) for name in names},
            poll_interval=timedelta(seconds=max(self.poke_interval, _SHORTEST_SECONDS)),
        )
