"""State tables of any size, inserted by SQL as loads would have left them, and how long it takes to work with them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import sqlalchemy as sa
from confluent_kafka import Producer
from sqlalchemy.engine import Connection, Engine

from airflow_kafka_offsets import Json, Pipeline, SqlTable, load, verify
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.lag.measure import LagPolls, group_states
from airflow_kafka_offsets.lag.report import LagQuestion
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.batches import mark_staged, open_batch
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.commit_transaction import Written, commit_batch
from airflow_kafka_offsets.ledger.dead_letters import drop_expired
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.overview import group_summaries
from airflow_kafka_offsets.ledger.positions import RangeRead
from airflow_kafka_offsets.ledger.publications import remove_leftovers, run_pending_cleanups
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.loading.staging_area import clean_up
from benchmarks.launch_time import seconds_until_launch
from devstack.topics import create_topic

GROUP = "group-0"

_TARGET = "orders"

# Batches of all groups in turn, each group into its own table. All records are in partition 0; the first of a batch is
# a row, and the others are dead letters.
_FILL = """
INSERT INTO consumer_groups (group_id, cluster_id, generation, epoch)
    SELECT 'group-' || g, '{cluster_id}', 0, 0 FROM generate_series(0, {groups} - 1) g;
INSERT INTO offset_batches (batch_id, consumer_group, generation, kind, state, attempt, dag_id, task_id, run_id,
        target_table, records, row_count, dead_letters, planned_at, committed_at)
    SELECT n + 1, 'group-' || n % {groups}, 0, 'load', 'committed', 1, 'dag', 'load', 'run-' || n,
        '{target}' || CASE WHEN n % {groups} = 0 THEN '' ELSE '_' || n % {groups} END, {offsets}, 1, {offsets} - 1,
        now() - interval '1 day', now() - interval '1 day' FROM generate_series(0, {batches} - 1) n;
INSERT INTO offset_ranges (batch_id, topic, partition, start_offset, end_offset, target_offset, records, dead_letters,
        bytes, how)
    SELECT n + 1, '{topic}', p, first, first + w, first + w, w, greatest(w - 1, 0), 100,
        CASE WHEN n < {groups} THEN 'earliest' ELSE 'stored' END
    FROM generate_series(0, {batches} - 1) n, generate_series(0, {partitions} - 1) p,
        LATERAL (SELECT CASE WHEN p = 0 THEN {offsets} ELSE 0 END AS w) loaded,
        LATERAL (SELECT n / {groups} * w AS first) range;
INSERT INTO consumed_offsets (consumer_group, topic, partition, offset_value, batch_id, updated_at)
    SELECT b.consumer_group, r.topic, r.partition, r.end_offset, r.batch_id, now()
    FROM offset_ranges r JOIN offset_batches b USING (batch_id) WHERE r.batch_id > {batches} - {groups};
INSERT INTO dead_letters (batch_id, topic, partition, offset_value, consumer_group, value, error, error_class)
    SELECT r.batch_id, r.topic, 0, o, b.consumer_group, '{{}}', 'bad', 'value'
    FROM offset_ranges r JOIN offset_batches b USING (batch_id), generate_series(r.start_offset + 1, r.end_offset - 1) o
    WHERE r.partition = 0;
CREATE TABLE {target} (id BIGINT, _batch_id BIGINT, _kafka_topic TEXT, _kafka_partition INT, _kafka_offset BIGINT);
INSERT INTO {target} SELECT 1, r.batch_id, r.topic, r.partition, r.start_offset
    FROM offset_ranges r JOIN offset_batches b USING (batch_id)
    WHERE r.partition = 0 AND b.consumer_group = 'group-0';
SELECT setval('offset_batches_batch_id_seq', {batches})
"""


class Size(NamedTuple):
    """How much there is of each thing.

    :param batches: of all groups; each has one at least
    """

    partitions: int = 1
    groups: int = 1
    batches: int = 10
    dead_letters: int = 0

    @property
    def offsets(self) -> int:
        """How many offsets a batch loads."""
        return 1 + self.dead_letters // self.batches

    def fill(self, engine: Engine, cluster_id: str, topic: str) -> None:
        """Insert the rows of the state tables, and those of the target of `GROUP`."""
        initialize(Ledger(engine))
        values = self._replace(batches=max(self.batches, self.groups))._asdict()
        text = _FILL.format(cluster_id=cluster_id, topic=topic, target=_TARGET, offsets=self.offsets, **values)
        with engine.begin() as conn:
            for statement in text.split(";\n"):
                conn.exec_driver_sql(statement.replace("%", "%%"))
        with engine.connect() as conn:
            conn.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM ANALYZE")

    def produce(self, bootstrap_servers: str, topic: str) -> None:
        """Produce the records of the batches, and a thousand more."""
        create_topic(bootstrap_servers, topic, self.partitions)
        producer = Producer({
            "bootstrap.servers": bootstrap_servers, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000
        })  # fmt: skip
        for _ in range(self.batches * self.offsets + 1_000):
            producer.produce(topic, b"{}", partition=0)
        assert producer.flush(120) == 0


class Work:
    """What is done with state tables of a size.

    :param topic: a new one
    """

    def __init__(self, size: Size, engine: Engine, bootstrap_servers: str, topic: str) -> None:
        self._topic = topic
        self._engine, self._ledger = engine, Ledger(engine)
        self._config = {"bootstrap.servers": bootstrap_servers}
        self._cluster = Cluster(self._config)
        self._pipeline = Pipeline(
            group_id=GROUP, topics=(self._topic,), value_format=Json("id BIGINT"), sink=SqlTable(_TARGET)
        )
        size.produce(bootstrap_servers, self._topic)
        size.fill(engine, self._cluster.cluster_id(), self._topic)

    def seconds(self) -> dict[str, float]:
        """Return how long each thing takes."""
        works: dict[str, Callable[[], float | None]] = {
            "plan": self._plan, "commit": self._commit, "clean-up": self._clean_up, "lag": self._lag,
            "groups": self._groups, "verify": self._verify,
        }  # fmt: skip
        taken = {}
        for name, work in works.items():
            began = time.monotonic()
            own = work()
            taken[name] = time.monotonic() - began if own is None else own
        return taken

    def _plan(self) -> float:
        """From the call of `load` until Spark would start."""
        return seconds_until_launch(
            lambda launcher: load(self._pipeline, kafka_config=self._config, engine=self._engine, launcher=launcher)
        )

    def _commit(self) -> float:
        """The transaction, with a row for each record."""
        batch, cluster_id = open_batch(self._ledger, GROUP), self._cluster.cluster_id()
        assert batch is not None
        claim = claim_group(
            self._ledger, GROUP, TaskRun.of_this_process(), cluster_id=cluster_id, lease=timedelta(minutes=1)
        )
        mark_staged(claim, batch, batch.offsets)
        reads = {range_.topic_partition: RangeRead(len(range_)) for range_ in batch.ranges}

        def write(conn: Connection) -> Written:
            rows = [
                (1, batch.batch_id, tp.topic, tp.partition, offset)
                for range_ in batch.ranges
                for tp in [range_.topic_partition]
                for offset in range(range_.start, range_.end)
            ]
            conn.exec_driver_sql(f"INSERT INTO {_TARGET} VALUES (%s, %s, %s, %s, %s)", rows)
            return Written(len(rows), reads, _TARGET)

        began = time.monotonic()
        commit_batch(claim, batch, write)
        taken = time.monotonic() - began
        claim.release()
        return taken

    def _clean_up(self) -> None:
        """What each load begins with, and what a commit drops of expired dead letters."""
        retention, table = timedelta(hours=1), self._pipeline.sink.connect(self._engine)
        clean_up(self._ledger, self._pipeline)
        remove_leftovers(self._ledger, table, GROUP, retention)
        run_pending_cleanups(self._ledger, table, GROUP)
        with self._engine.connect() as conn:
            drop_expired(conn, self._ledger.tables, GROUP, retention)
            conn.rollback()

    def _lag(self) -> None:
        """Of all groups."""
        with self._engine.connect() as conn:
            groups = conn.scalars(sa.select(self._ledger.tables.consumer_groups.c.group_id)).all()
            states = group_states(conn, self._ledger.tables, groups)
        reports = LagPolls(self._cluster).reports([(LagQuestion(group), state) for group, state in states.items()])
        assert all(not isinstance(report, Exception) for report in reports)

    def _groups(self) -> None:
        with self._engine.connect() as conn:
            group_summaries(conn, self._ledger.tables)

    def _verify(self) -> None:
        verify(GROUP, sink=self._pipeline.sink, engine=self._engine)
