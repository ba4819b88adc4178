"""What is read in threads for the pages: the DAGs, the state tables of each database, and the lag that brokers are
asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

from airflow_kafka_offsets.exceptions import KafkaOffsetsError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.lag.measure import GroupState, LagPolls, group_states
from airflow_kafka_offsets.lag.report import LagQuestion, LagReport
from airflow_kafka_offsets.ledger.install import installed_version
from airflow_kafka_offsets.ledger.overview import GroupSummary, group_summaries
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.plugin.background import BackgroundCache, BoundedExecutor, CachedReading
from airflow_kafka_offsets.plugin.group_rows import GroupRow, group_row
from airflow_kafka_offsets.plugin.problems import Problem, problem
from airflow_kafka_offsets.plugin.sources import Discovery, LoadingDags, Registered, Schedule, Source, merged

T = TypeVar("T")

# How many requests may read a database at a time, besides the threads that keep the table of groups fresh.
_AT_ONCE = 4
_MOST_WAITING = 16

STORED_SECONDS, LAG_SECONDS, SOURCES_SECONDS = 5.0, 15.0, 30.0
"""How old what pages show may be before it is read again: the state tables, the lag, and which state tables there
are.
"""

SHOWN_SECONDS = 60.0
"""How old a lag may be that pages show."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The groups of state tables.

    :param groups: None where there are no state tables
    """

    now: datetime | None
    groups: tuple[GroupSummary, ...] | None


Lags = dict[str, LagReport | Problem]
"""The lag of groups, or why it is not known."""


@dataclass(frozen=True, slots=True)
class ClusterLags:
    """What a connection of Kafka says of the groups of state tables.

    :param lags: of the groups whose positions belong to its cluster
    :param elsewhere: the groups of other clusters
    """

    lags: Lags = field(default_factory=dict)
    elsewhere: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class SourceLook:
    """What is known of state tables at a request.

    :param lags: by connection of Kafka
    :param loading: which DAGs load its groups
    :param hidden: the connections of Kafka that the user has nothing to do with
    """

    source: Source
    discovery: Discovery
    stored: CachedReading[Stored]
    lags: Mapping[str, CachedReading[ClusterLags]]
    loading: LoadingDags
    hidden: frozenset[str] = frozenset()

    @property
    def problem(self) -> Problem | None:
        """Return why the groups are not known, or not anew."""
        failure = self.stored.failure
        return None if failure is None else problem(failure, self.source.conn_id)

    @property
    def is_first(self) -> bool:
        """Return whether the groups, or their lag, are being read for the first time, or after nobody has looked for
        long.
        """
        return self.stored.value is None or any(map(_is_being_read, self.lags.values()))

    def rows(self) -> list[GroupRow]:
        """Return the rows of all groups that are known; of those that were deleted or renamed, if a DAG names them."""
        groups = self.stored.value.groups if self.stored.value is not None else None
        return [
            self.row(group)
            for group in groups or ()
            if not group.is_deleted or self.loading.is_named(self.source, group.group_id)
        ]

    def row(self, group: GroupSummary) -> GroupRow:
        """Return the row of a group, with its lag if it is known."""
        now = self.stored.value.now if self.stored.value is not None else None
        conn_id, lag = self._lag(group)
        age = self.lags[conn_id].age if conn_id is not None else None
        schedules = self.loading.schedules(self.source, group)
        return group_row(self.source, group, lag, schedules, now=now, kafka=conn_id, lag_age=age)

    def _lag(self, group: GroupSummary) -> tuple[str | None, LagReport | Problem | None]:
        """Return the lag of a group, or why it is not known, and the connection that it is from."""
        if group.partitions == 0:
            return None, None
        named = self.loading.kafka_conn_ids(self.source, group) or self.lags.keys() | self.hidden
        asked = {conn_id: reading for conn_id, reading in self.lags.items() if conn_id in named}
        for conn_id, reading in asked.items():
            if (found := _shown(reading).get(group.group_id)) is not None:
                return conn_id, found
        for conn_id, reading in asked.items():
            if reading.error is not None:
                return conn_id, problem(reading.error, conn_id)
        if not asked and (of_others := sorted(self.hidden.intersection(named))):
            return None, Problem(f"Connection {', '.join(map(repr, of_others))} of Kafka belongs to another team")
        if any(reading.value is None or group.group_id not in reading.value.elsewhere for reading in asked.values()):
            return None, None
        return None, Problem(
            f"No connection leads to the Kafka cluster of this group: {', '.join(asked)} "
            f"{'leads to another' if len(asked) == 1 else 'lead to others'}. Name it in [kafka_offsets] conn_ids"
        )


def _shown(reading: CachedReading[ClusterLags]) -> Lags:
    """Return the lags that pages show."""
    if reading.value is None or reading.error is not None or _is_being_read(reading):
        return {}
    return reading.value.lags


def _is_being_read(reading: CachedReading[Any]) -> bool:
    """Return whether a value is being read that nobody can show yet: the last one is missing or too old."""
    return reading.error is None and (reading.age is None or reading.age > SHOWN_SECONDS)


@dataclass(eq=False)
class Readings:
    """All that is read for the pages; each is read while somebody looks at it.

    :param ledger: opens the state tables of a connection, a schema and a prefix
    :param cluster: returns the Kafka cluster of a connection
    :param kafka_config: returns the librdkafka configuration of a connection, for a rewind
    :param configured: returns the state tables that the configuration names
    :param registered: returns what the tasks of each DAG name
    :param schedules: returns the schedules of these DAGs
    """

    ledger: Callable[[str, str | None, str], AbstractContextManager[Ledger]]
    cluster: Callable[[str], Cluster]
    kafka_config: Callable[[str], Mapping[str, Any]]
    configured: Callable[[], dict[Source, Discovery]]
    registered: Callable[[], Registered]
    schedules: Callable[[Registered], Mapping[str, Schedule]] = field(default=lambda _: {})
    _dags: BackgroundCache[tuple[Registered, Mapping[str, Schedule]]] = field(init=False)
    _executors: dict[tuple[str, bool], BoundedExecutor] = field(default_factory=dict, init=False)
    _stored: dict[Source, BackgroundCache[Stored]] = field(default_factory=dict, init=False)
    _lags: dict[tuple[Source, str], BackgroundCache[ClusterLags]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._dags = BackgroundCache(self._read_dags, SOURCES_SECONDS)

    def dags(self, deadline: float) -> Registered:
        """Return what the tasks of each DAG name, as far as it is known at the deadline."""
        return self._known_dags(deadline)[0]

    def loading(self, deadline: float) -> LoadingDags:
        """Return which DAGs load which groups, as far as it is known at the deadline."""
        return LoadingDags(*self._known_dags(deadline))

    @property
    def has_dags(self) -> bool:
        """Return whether the DAGs have been read once."""
        return self._dags.look(0.0).value is not None

    def sources(self, deadline: float) -> dict[Source, Discovery]:
        """Return the state tables that are known at the deadline."""
        return merged(self.configured(), self.dags(deadline))

    def look(
        self, sources: Mapping[Source, Discovery], seconds: float, shares_team: Callable[[str], bool]
    ) -> list[SourceLook]:
        """Return what is known of state tables, after so many seconds at most, however many there are.

        :param shares_team: whether the user is in the team of a connection; no other one of Kafka is opened: any DAG
            can name it
        """
        deadline = time.monotonic() + seconds
        stored = {source: self._stored_cache(source) for source in sources}
        hidden = {
            source: frozenset(conn_id for conn_id in known.kafka_conn_ids if not shares_team(conn_id))
            for source, known in sources.items()
        }
        lags = {
            source: {
                conn_id: self._lag_cache(source, conn_id) for conn_id in sorted(known.kafka_conn_ids - hidden[source])
            }
            for source, known in sources.items()
        }
        # All are being read before the first is waited for.
        for source, cache in stored.items():
            cache.start()
            for lag in lags[source].values():
                lag.start()
        loading = self.loading(0.0)
        return [
            SourceLook(
                source,
                sources[source],
                cache.look(deadline),
                {conn_id: lag.look(deadline) for conn_id, lag in lags[source].items()},
                loading,
                hidden[source],
            )
            for source, cache in stored.items()
        ]

    def run(self, source: Source, work: Callable[[Ledger], T], seconds: float, *, is_long: bool = False) -> T:
        """Return what work with state tables returns.

        :param is_long: longer work, such as a rewind, takes nothing from the pages that read
        :raises TooBusyError: it has not begun, because earlier work takes too long
        :raises TooSlowError: it takes longer, because the database does not answer in time; it goes on
        """

        def connected() -> T:
            with self.ledger(*source) as ledger:
                return work(ledger)

        bounded = BoundedExecutor(_AT_ONCE, _AT_ONCE if is_long else _MOST_WAITING)
        executor = self._executors.setdefault((source.conn_id, is_long), bounded)
        return executor.run(connected, seconds)

    def _known_dags(self, deadline: float) -> tuple[Registered, Mapping[str, Schedule]]:
        return self._dags.look(deadline).value or ({}, {})

    def _read_dags(self) -> tuple[Registered, Mapping[str, Schedule]]:
        registered = self.registered()
        return registered, self.schedules(registered)

    def _stored_cache(self, source: Source) -> BackgroundCache[Stored]:
        return self._stored.setdefault(source, BackgroundCache(partial(self._read_stored, source), STORED_SECONDS))

    def _lag_cache(self, source: Source, conn_id: str) -> BackgroundCache[ClusterLags]:
        cache = BackgroundCache(partial(self._measure, source, conn_id), LAG_SECONDS)
        return self._lags.setdefault((source, conn_id), cache)

    def _read_stored(self, source: Source) -> Stored:
        """Read the groups of state tables."""
        with self.ledger(*source) as ledger, ledger.connect() as conn:
            if installed_version(conn, ledger.tables) is None:
                return Stored(None, None)
            now, groups = group_summaries(conn, ledger.tables, with_deleted=True)
        return Stored(now, tuple(groups))

    def _measure(self, source: Source, conn_id: str) -> ClusterLags:
        """Measure the lag of the groups whose positions belong to the cluster of a connection, but for those whose
        tasks name others.
        """
        cluster = self.cluster(conn_id)
        cluster_id = cluster.cluster_id()
        loading = self.loading(0.0)
        with self.ledger(*source) as ledger, ledger.connect() as conn:
            if installed_version(conn, ledger.tables) is None:
                return ClusterLags()
            groups = {group.group_id: group for group in group_summaries(conn, ledger.tables)[1]}
            named = {group_id: loading.kafka_conn_ids(source, group) or {conn_id} for group_id, group in groups.items()}
            here = {
                group_id
                for group_id, group in groups.items()
                if group.cluster_id in (cluster_id, None) and conn_id in named[group_id]
            }
            states = group_states(conn, ledger.tables, here)
        # A group without positions has no lag yet.
        stored = {group_id: state for group_id, state in states.items() if state.stored}
        return ClusterLags(_lags_at(cluster, conn_id, stored), frozenset(groups.keys() - here))


def _lags_at(cluster: Cluster, conn_id: str, states: Mapping[str, GroupState]) -> Lags:
    """Measure the lag of the groups of a cluster."""
    questions = [(LagQuestion(group_id, times=True), state) for group_id, state in states.items()]
    try:
        answers: list[LagReport | Exception] = list(LagPolls(cluster).reports(questions))
    except KafkaOffsetsError as error:
        answers = [error] * len(states)
    return {
        group_id: answer if isinstance(answer, LagReport) else problem(answer, conn_id)
        for group_id, answer in zip(states, answers, strict=True)
    }
