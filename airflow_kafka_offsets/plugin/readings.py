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
from airflow_kafka_offsets.plugin.sources import Discovery, Registered, Source, merged

T = TypeVar("T")

# How many requests may read a database at a time, besides the threads that keep the table of groups fresh.
_AT_ONCE = 4

STORED_SECONDS, LAG_SECONDS, SOURCES_SECONDS = 5.0, 15.0, 30.0
"""How old what pages show may be: the state tables, the lag, and which state tables there are."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The groups of state tables.

    :param groups: None where there are no state tables
    """

    now: datetime | None
    groups: tuple[GroupSummary, ...] | None


Lags = dict[str, LagReport | Problem]
"""The lag of each group of state tables, or why it is not known."""


@dataclass(frozen=True, slots=True)
class SourceLook:
    """What is known of state tables at a request."""

    source: Source
    discovery: Discovery
    stored: CachedReading[Stored]
    lags: CachedReading[Lags]

    @property
    def problem(self) -> Problem | None:
        """Return why the groups are not known, or not anew."""
        return None if self.stored.error is None else problem(self.stored.error, self.source.conn_id)

    @property
    def is_first(self) -> bool:
        """Return whether the groups, or their lag, are being read for the first time."""
        return self.stored.value is None or self.lags.value is None

    def rows(self) -> list[GroupRow]:
        """Return the rows of all groups that are known."""
        groups = self.stored.value.groups if self.stored.value is not None else None
        return [self.row(group) for group in groups or ()]

    def row(self, group: GroupSummary) -> GroupRow:
        """Return the row of a group, with its lag if it is known."""
        return group_row(self.source, group, (self.lags.value or {}).get(group.group_id))


@dataclass(eq=False)
class Readings:
    """All that is read for the pages; each is read while somebody looks at it.

    :param ledger: opens the state tables of a connection, a schema and a prefix
    :param cluster: returns the Kafka cluster of a connection
    :param kafka_config: returns the librdkafka configuration of a connection, for a rewind
    :param configured: returns the state tables that the configuration names
    :param registered: returns what the tasks of each DAG name
    """

    ledger: Callable[[str, str | None, str], AbstractContextManager[Ledger]]
    cluster: Callable[[str], Cluster]
    kafka_config: Callable[[str], Mapping[str, Any]]
    configured: Callable[[], dict[Source, Discovery]]
    registered: Callable[[], Registered]
    _dags: BackgroundCache[Registered] = field(init=False)
    _executors: dict[tuple[str, bool], BoundedExecutor] = field(default_factory=dict, init=False)
    _stored: dict[Source, BackgroundCache[Stored]] = field(default_factory=dict, init=False)
    _lags: dict[tuple[Source, frozenset[str]], BackgroundCache[Lags]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._dags = BackgroundCache(self.registered, SOURCES_SECONDS)

    def dags(self, deadline: float) -> Registered:
        """Return what the tasks of each DAG name, as far as it is known at the deadline."""
        return self._dags.look(deadline).value or {}

    @property
    def has_dags(self) -> bool:
        """Return whether the DAGs have been read once."""
        return self._dags.look(0.0).value is not None

    def sources(self, deadline: float) -> dict[Source, Discovery]:
        """Return the state tables that are known at the deadline."""
        return merged(self.configured(), self.dags(deadline))

    def look(self, sources: Mapping[Source, Discovery], seconds: float) -> list[SourceLook]:
        """Return what is known of state tables, after so many seconds at most, however many there are."""
        deadline = time.monotonic() + seconds
        caches = {source: self._caches(source, known.kafka_conn_ids) for source, known in sources.items()}
        # All are being read before the first is waited for.
        for stored, lags in caches.values():
            stored.start()
            lags.start()
        return [
            SourceLook(source, sources[source], stored.look(deadline), lags.look(deadline))
            for source, (stored, lags) in caches.items()
        ]

    def run(self, source: Source, work: Callable[[Ledger], T], seconds: float, *, is_long: bool = False) -> T:
        """Return what work with state tables returns.

        :param is_long: longer work, such as a rewind, takes nothing from the pages that read
        :raises TooSlowError: it takes longer, because the database does not answer in time; it goes on
        """

        def connected() -> T:
            with self.ledger(*source) as ledger:
                return work(ledger)

        executor = self._executors.setdefault((source.conn_id, is_long), BoundedExecutor(_AT_ONCE))
        return executor.run(connected, seconds)

    def _caches(self, source: Source, kafka: frozenset[str]) -> tuple[BackgroundCache[Stored], BackgroundCache[Lags]]:
        stored = BackgroundCache(partial(self._read_stored, source), STORED_SECONDS)
        lags = BackgroundCache(partial(self._measure, source, sorted(kafka)), LAG_SECONDS)
        return self._stored.setdefault(source, stored), self._lags.setdefault((source, kafka), lags)

    def _read_stored(self, source: Source) -> Stored:
        """Read the groups of state tables."""
        with self.ledger(*source) as ledger, ledger.connect() as conn:
            if installed_version(conn, ledger.tables) is None:
                return Stored(None, None)
            now, groups = group_summaries(conn, ledger.tables)
        return Stored(now, tuple(groups))

    def _measure(self, source: Source, kafka_conn_ids: list[str]) -> Lags:
        """Measure the lag of every group, each at the cluster that its positions belong to."""
        with self.ledger(*source) as ledger, ledger.connect() as conn:
            if installed_version(conn, ledger.tables) is None:
                return {}
            group_ids = [group.group_id for group in group_summaries(conn, ledger.tables)[1]]
            states = group_states(conn, ledger.tables, group_ids)
        # A group without positions has no lag yet.
        left = {group_id: state for group_id, state in states.items() if state.stored}
        found: Lags = {}
        failed: list[Problem] = []
        for conn_id in kafka_conn_ids:
            try:
                cluster = self.cluster(conn_id)
                cluster_id = cluster.cluster_id()
            except Exception as error:
                failed.append(problem(error, conn_id))
                continue
            mine = {
                group_id: left.pop(group_id) for group_id in [*left] if left[group_id].cluster_id in (cluster_id, None)
            }
            found |= _lags_at(cluster, conn_id, mine)
        unknown = Problem(
            f"No connection leads to the Kafka cluster of this group: {', '.join(kafka_conn_ids)} lead to others. Name "
            "it in [kafka_offsets] conn_ids"
        )
        return found | dict.fromkeys(left, failed[0] if failed else unknown)


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
