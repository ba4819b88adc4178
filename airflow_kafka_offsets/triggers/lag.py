"""Wait in the triggerer until the lag of a group meets thresholds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from airflow.observability import stats
from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from airflow_kafka_offsets.core.parameters import check_untemplated
from airflow_kafka_offsets.hooks.metrics import emit_poll
from airflow_kafka_offsets.lag.rearming import Edge
from airflow_kafka_offsets.lag.watch_options import LAG_RULES, Judged, LagWatch

if TYPE_CHECKING:
    from airflow_kafka_offsets.core.start import Start
    from airflow_kafka_offsets.lag.measure import LagQuestion
    from airflow_kafka_offsets.lag.shared_poll import Look, StateTables, Watch
    from airflow_kafka_offsets.lag.thresholds import Require


# A question to Kafka that takes longer is asked again at the next poll.
_KAFKA_SECONDS = 10.0

# Of this process. A loop that ended takes its watches along.
_watches: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], Watch]] = WeakKeyDictionary()


class Prepared(NamedTuple):
    """What a watcher of a group needs."""

    tables: StateTables
    question: LagQuestion
    open_watch: Callable[[Callable[[], object]], Watch]


def prepare(watched: LagWatch) -> Prepared:
    """Read the parameters, and import whatever a watch needs: it takes long, and would hold up all triggers."""
    from airflow_kafka_offsets.hooks.database import database_engine
    from airflow_kafka_offsets.hooks.kafka import kafka_config
    from airflow_kafka_offsets.kafka.cluster import Cluster
    from airflow_kafka_offsets.lag.shared_poll import StateTables, Watch

    def open_cluster() -> Cluster:
        config = kafka_config(watched.kafka_conn_id)
        return Cluster(config, isolation_level=watched.isolation_level, timeout=_KAFKA_SECONDS)

    tables = StateTables(watched.offsets_conn_id, watched.offsets_schema, watched.offsets_prefix)
    polled = partial(emit_poll, stats, watched.kafka_conn_id)
    return Prepared(tables, watched.question(), partial(Watch, open_cluster, database_engine, polled=polled))


async def watch(watched: LagWatch) -> AsyncGenerator[Look[Judged] | Exception]:
    """Look for ever at the lag of a group, in the watch that all triggers of this event loop share."""
    tables, question, open_watch = await asyncio.to_thread(prepare, watched)
    watches = _watches.setdefault(asyncio.get_running_loop(), {})
    key = watched.kafka_conn_id, watched.isolation_level
    if key not in watches:
        watches[key] = open_watch(lambda: watches.pop(key, None))
    judge = partial(watched.judge, stats=stats)
    async with aclosing(watches[key].looks(tables, question, judge, watched.poll_interval.total_seconds())) as looks:
        async for look in looks:
            yield look


class KafkaLagTrigger(BaseTrigger):
    """Wait until the lag of a group meets thresholds, once: what a deferred `KafkaLagSensor` waits for.

    A cluster or a database that cannot be reached is waited for. The event has `met` and `report`; or `error`, where waiting
    cannot help.

    As for `KafkaLagSensor`: `group_id`, `topics`, `offsets_conn_id`, `min_lag`, `max_lag`, `max_delay`, `min_headroom`, `require`,
    `per_partition`, `allow_incomplete`, `start`, `isolation_level`, `offsets_schema`, `offsets_prefix`, `kafka_conn_id`.

    :param first_look: not to look before. Who defers has looked, and Airflow fails a task whose trigger fires before the executor
        has noticed that the task was deferred, which takes up to `[workers] min_heartbeat_interval`, 5 s
    :param poll_interval: from one look to the next
    """

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
        first_look: datetime | None = None,
        poll_interval: timedelta = timedelta(seconds=60),
        start: Start = "earliest",
        isolation_level: str = "read_committed",
        offsets_schema: str | None = None,
        offsets_prefix: str = "",
        kafka_conn_id: str = "kafka_default",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.first_look = first_look
        self.watched = LagWatch(
            group_id=group_id,
            topics=topics,
            offsets_conn_id=offsets_conn_id,
            min_lag=min_lag,
            max_lag=max_lag,
            max_delay=max_delay,
            min_headroom=min_headroom,
            require=require,
            per_partition=per_partition,
            allow_incomplete=allow_incomplete,
            poll_interval=poll_interval,
            start=start,
            isolation_level=isolation_level,
            offsets_schema=offsets_schema,
            offsets_prefix=offsets_prefix,
            kafka_conn_id=kafka_conn_id,
        )

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Everything that is needed to wait in another process. No secrets: connections are named."""
        return (
            "airflow_kafka_offsets.triggers.lag.KafkaLagTrigger",
            self.watched.as_kwargs() | {"first_look": self.first_look},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look until the thresholds are met."""
        try:
            if self.first_look is not None:
                await asyncio.sleep((self.first_look - datetime.now(UTC)).total_seconds())
            async with aclosing(watch(self.watched)) as looks:
                async for look in looks:
                    if isinstance(look, Exception):
                        if not getattr(look, "retriable", False):
                            raise look
                        self.log.warning("Looking again: %s", look)
                        continue
                    self.log.info("%s", look.judged.told)
                    if look.judged.met:
                        yield TriggerEvent(look.judged.payload)  # type: ignore[no-untyped-call]
                        return
        except Exception as error:
            self.log.exception("The lag of group %r cannot be found", self.watched.group_id)
            told = {"group_id": self.watched.group_id, "error": f"{type(error).__name__}: {error}"}
            yield TriggerEvent(told)  # type: ignore[no-untyped-call]


class KafkaLagEventTrigger(BaseEventTrigger):
    """Fire whenever the lag of a group comes to meet thresholds: for an `AssetWatcher`, so that DAGs run when there is enough to
    load, when data has waited for long enough, or before retention takes it.

    It fires when the thresholds come to be met; again when positions have moved since and they are still met; and after
    `rearm_after`, where nothing moved. While a run loads the group, it waits for its end. What the event carries is a hint: a load
    reads the positions anew.

    It never ends: a cluster or a database that cannot be reached, and whatever else goes wrong, is logged and looked at again, in
    longer and longer intervals of up to five minutes. All triggers of a triggerer share one poll of each cluster.

    As for `KafkaLagSensor`: `group_id`, `topics`, `offsets_conn_id`, `min_lag`, `max_lag`, `max_delay`, `min_headroom`, `require`,
    `per_partition`, `allow_incomplete`, `start`, `isolation_level`, `offsets_schema`, `offsets_prefix`, `kafka_conn_id`. Nothing is
    templated.

    :param rearm_after: when to fire again though no position has moved
    :param poll_interval: from one look to the next
    :raises ConfigurationError: a parameter cannot work; raised when the DAG is parsed
    """

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
        rearm_after: timedelta = timedelta(minutes=30),
        poll_interval: timedelta = timedelta(seconds=60),
        start: Start = "earliest",
        isolation_level: str = "read_committed",
        offsets_schema: str | None = None,
        offsets_prefix: str = "",
        kafka_conn_id: str = "kafka_default",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        given = {"group_id": group_id, "topics": topics, "rearm_after": rearm_after}
        check_untemplated(given, LAG_RULES, ())
        self.rearm_after = rearm_after
        self.watched = LagWatch(
            group_id=group_id,
            topics=topics,
            offsets_conn_id=offsets_conn_id,
            min_lag=min_lag,
            max_lag=max_lag,
            max_delay=max_delay,
            min_headroom=min_headroom,
            require=require,
            per_partition=per_partition,
            allow_incomplete=allow_incomplete,
            poll_interval=poll_interval,
            start=start,
            isolation_level=isolation_level,
            offsets_schema=offsets_schema,
            offsets_prefix=offsets_prefix,
            kafka_conn_id=kafka_conn_id,
        )

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Everything that is needed to watch in another process. No secrets: connections are named."""
        return (
            "airflow_kafka_offsets.triggers.lag.KafkaLagEventTrigger",
            self.watched.as_kwargs() | {"rearm_after": self.rearm_after},
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Look for ever."""
        edge, loop, told = Edge(self.rearm_after), asyncio.get_running_loop(), ""
        pause = self.watched.poll_interval.total_seconds()
        while True:
            try:
                async with aclosing(watch(self.watched)) as looks:
                    async for look in looks:
                        if isinstance(look, Exception):
                            # Each kind once: it is the same at every look until somebody does something about it.
                            if told != str(look):
                                self.log.warning("Looking again: %s: %s", type(look).__name__, look)
                            told = str(look)
                            continue
                        told = ""
                        self.log.debug("%s", look.judged.told)
                        if edge.fires(look.judged.met, look.positions, busy=look.busy, now=loop.time()):
                            self.log.info("%s", look.judged.told)
                            yield TriggerEvent(look.judged.payload)  # type: ignore[no-untyped-call]
            except Exception:
                self.log.exception("Watching the lag of group %r begins anew", self.watched.group_id)
            await asyncio.sleep(pause)
