"""A machine that loads, breaks and kills at random, and a model of what was written to Kafka to compare the output
with.

`tests/system/test_soak.py` runs it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

from airflow_kafka_offsets import Coordination, DeadLetters, Limits, Staging
from airflow_kafka_offsets.exceptions import DataLossError, TopicRecreatedError
from airflow_kafka_offsets.formats.columns import row_columns
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.loading.load import load
from airflow_kafka_offsets.sinks.sql.column_types import created_table
from airflow_kafka_offsets.staging.manifest import MANIFEST
from airflow_kafka_offsets.verification.verify import verify
from devstack.kafka import KafkaBroker
from devstack.process import wait_until
from tests.support import clients
from tests.support.damage import DAMAGES, KINDS, Damage, staged_files
from tests.support.dying_load import POINTS, PREFETCH_POINTS, PUBLISHING_POINTS, DyingLoad, Load
from tests.support.inline import InlineLauncher
from tests.support.loads import COLUMNS, rows
from tests.support.pipelines import pipeline_and_options
from tests.support.prefetch import planned_ahead
from tests.support.random_topics import NOON, RandomTopic, event
from tests.support.targets import Target


@dataclass
class World:
    """What a run of the machine works with; made anew for each.

    :param kind: of the target, of `targets.KINDS`
    """

    kafka: KafkaBroker
    kind: str
    spark_launcher: Any
    make_database: Any


WORLD: World | None = None


class Machine(RandomTopic):
    """One group, one topic of one or more partitions, one target."""

    @initialize(partitions=st.integers(1, 3))
    def begin(self, partitions: int) -> None:
        assert WORLD is not None
        self.kafka = WORLD.kafka
        self.url = WORLD.make_database()
        self.engine = sa.create_engine(self.url, hide_parameters=True)
        self.directory = Path(tempfile.mkdtemp(prefix="soak-"))
        self.staging = Path(tempfile.mkdtemp(dir=self.directory))
        self.admin = clients.admin(self.kafka)
        self.new_producers()
        self.topic = f"soak-{os.urandom(6).hex()}"
        self.group = 0
        self.ids = 0
        self.runs = 0
        self.runs_of_this_topic = 0
        self.interrupted: TaskRun | None = None
        self.make_topic(partitions)
        self.make_target()
        self.refuses = self.target.kind.refuses

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.dispose()
            shutil.rmtree(self.directory)

    @precondition(lambda self: self.runs_of_this_topic > 10)
    @rule(partitions=st.integers(1, 2))
    def recreate_the_topic(self, partitions: int) -> None:
        stored = self.positions()
        self.admin.delete_topics([self.topic])[self.topic].result()
        wait_until(lambda: self.topic not in self.admin.list_topics(timeout=5).topics, 30, "the topic to be gone")
        self.make_topic(partitions)
        self.new_producers()
        if stored:
            with pytest.raises(TopicRecreatedError):
                self.load_here(TaskRun("after", "dag", "task", -1, 1), on_data_loss="skip")
        # The way out that the error names: a group of its own for the new topic, and here a target of its own.
        self.group += 1
        self.make_target()
        # An open batch of the old topic keeps its files, until somebody abandons it.
        self.staging = Path(tempfile.mkdtemp(dir=self.directory))
        self.interrupted = None
        self.runs_of_this_topic = 0
        event("the topic was made anew")

    def make_target(self) -> None:
        """One for the group. A table is as a load would create it, with a check of the values."""
        assert WORLD is not None
        name = f"target_{self.group}"
        self.target = Target.make(WORLD.kind, self.engine, self.directory, name)
        if WORLD.kind not in ("table", "two tables"):
            return
        table = created_table(name, None, row_columns(COLUMNS))
        table.append_constraint(sa.CheckConstraint("name <> 'refused'"))
        table.create(self.engine)

    # What is done with it.

    @rule(
        max_records=st.none() | st.integers(1, 20),
        until=st.none() | st.integers(0, 130),
        slice_offsets=st.sampled_from([3, 250_000]),
        spark=st.sampled_from([False, False, False, True]),
    )
    def load(self, max_records: int | None, until: int | None, slice_offsets: int, spark: bool) -> None:
        options: dict[str, Any] = {
            "limits": Limits(max_records=max_records),
            "staging": Staging(dir=str(self.staging), slice_offsets=slice_offsets),
        }
        if until is not None:
            options["until"] = NOON + timedelta(minutes=until)
        run = self.next_run()
        lost = self.lost()
        # An open batch may have its records in staged files already: then nothing is lost that retention took.
        if lost and self.interrupted is None:
            with pytest.raises(DataLossError) as raised:
                self.load_here(run, **options)
            assert all(f"{self.topic}[{partition}]" in str(raised.value) for partition in lost)
        result = self.load_here(run, spark=spark, on_data_loss="skip", **options)
        if until is None:
            for partition in self.logs:
                self.wait_for_the_end(partition)
            # What was just committed may not have been visible to the first look.
            result = self.load_here(self.next_run(), on_data_loss="skip")
            assert self.positions() == {partition: log.end for partition, log in self.logs.items()}, result
        self.interrupted = None
        event("loaded")
        if planned_ahead(self.engine, self.group_id):
            event("batches were planned ahead")

    @rule(
        point=st.sampled_from(
            sorted({*POINTS, *PUBLISHING_POINTS, *PREFETCH_POINTS} - {"after COMMIT, its answer lost"})
        ),
        retried=st.booleans(),
        max_records=st.none() | st.integers(1, 5),
    )
    def load_and_be_killed(self, point: str, retried: bool, max_records: int | None) -> None:
        self.be_killed(point, retried, max_records)

    @rule(kind=st.sampled_from(KINDS), damage=st.sampled_from(DAMAGES), place=st.integers(0, 9), retried=st.booleans())
    def damage_a_staged_file(self, kind: str, damage: Damage, place: int, retried: bool) -> None:
        if not self.be_killed("after it is marked as staged", retried):
            return
        for manifest in self.staging.glob(f"batch-*/{MANIFEST}"):
            paths = [manifest.parent / file.name for file in staged_files(manifest.parent, kind)]
            if paths and all(path.exists() for path in paths):
                damage(paths[place % len(paths)], paths[(place + 1) % len(paths)])
                event(f"{kind} damaged: {damage.__name__}")

    def be_killed(self, point: str, retried: bool, max_records: int | None = None) -> bool:
        """Return whether a load came by the point, and was killed there."""
        run = self.interrupted if retried and self.interrupted is not None else self.next_run()
        dying = Load(
            self.url,
            self.kafka.bootstrap_servers,
            (self.topic,),
            run,
            {
                "group_id": self.group_id,
                "sink": self.target.sink,
                "staging": Staging(dir=str(self.staging), slice_offsets=4),
                "on_bad_record": DeadLetters(),
                "on_data_loss": "skip",
                "coordination": Coordination(lease=timedelta(seconds=1)),
                "limits": Limits(max_records=max_records),
            },
        )
        with DyingLoad(dying, point) as process:
            told = process.result()
            event(f"killed {told}" if told == point else "nothing to be killed at")
            assert not isinstance(told, Exception), told
            process.kill()
        self.interrupted = run if told == point else None
        return self.interrupted is not None

    def load_here(self, run: TaskRun, *, spark: bool = False, **options: Any) -> Any:
        assert WORLD is not None
        note(f"load {run.run_id} {options}")
        parameters = {
            "group_id": self.group_id,
            "topics": (self.topic,),
            "value_format": COLUMNS,
            "sink": self.target.sink,
            "staging": Staging(dir=str(self.staging)),
            "on_bad_record": DeadLetters(),
            "coordination": Coordination(lease=timedelta(seconds=1)),
        }
        return load(
            *pipeline_and_options(parameters | options),
            kafka_config={"bootstrap.servers": self.kafka.bootstrap_servers},
            engine=self.engine,
            launcher=WORLD.spark_launcher if spark else InlineLauncher(),
            run=run,
        )

    # What must be true after every step.

    @invariant()
    def everything_is_accounted_for(self) -> None:
        if not hasattr(self, "engine") or not sa.inspect(self.engine).has_table("consumed_offsets"):
            return
        positions = self.positions()
        if not positions:
            return
        first = self.first_starts()
        gaps = self.gaps()
        expected: Counter[tuple[int, int, int | None]] = Counter()
        for partition, position in positions.items():
            for offset, number in self.logs[partition].records.items():
                if first[partition] <= offset < position and offset not in gaps.get(partition, set()):
                    expected[partition, offset, number] += 1
        published = self.being_published()
        found = Counter(self.output())
        for key, count in found.items():
            partition, offset, number = key
            assert count == 1, f"{key} is there {count} times"
            assert self.logs[partition].records.get(offset, "nothing") == number, f"{key} was never written"
            assert key in expected or key in published, f"{key} is there, and should not be"
        there = published & found.keys()
        assert there in (set(), published), f"a part of a batch is there: {sorted(there)[:5]}"
        assert not expected - found, f"missing: {sorted(expected - found)[:5]}"
        verify(
            self.group_id,
            sink=self.target.sink,
            engine=self.engine,
            kafka_config={"bootstrap.servers": self.kafka.bootstrap_servers},
        )

    @invariant()
    def nothing_is_left_behind(self) -> None:
        if not hasattr(self, "engine") or self.interrupted is not None:
            return
        assert list(self.staging.iterdir()) == []

    # Questions.

    @property
    def group_id(self) -> str:
        return f"group-{self.group}"

    def next_run(self) -> TaskRun:
        self.runs += 1
        self.runs_of_this_topic += 1
        return TaskRun(f"run-{self.runs}", "dag", "task", -1, 1)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        return rows(self.engine, query, group=self.group_id)

    def positions(self) -> dict[int, int]:
        if not sa.inspect(self.engine).has_table("consumed_offsets"):
            return {}
        return dict(self.rows("SELECT partition, offset_value FROM consumed_offsets WHERE consumer_group = :group"))

    def lost(self) -> list[int]:
        """Partitions whose position retention has passed, as far as a load would look at them."""
        positions = self.positions()
        return [p for p, log in self.logs.items() if p in positions and positions[p] < log.beginning]

    def being_published(self) -> set[tuple[int, int, int | None]]:
        """Return the rows of a batch that a target which commits elsewhere may have, and the state tables do not know
        as committed.
        """
        if not self.target.kind.commits_externally:
            return set()
        ranges = self.rows(
            "SELECT r.partition, r.start_offset, r.end_offset FROM offset_ranges r JOIN offset_batches b ON b.batch_id "
            "= r.batch_id"
            " WHERE b.consumer_group = :group AND b.publish_started_at IS NOT NULL"
        )
        return {
            (partition, offset, number)
            for partition, start, end in ranges
            for offset, number in self.logs[partition].records.items()
            if start <= offset < end and number is not None
        }

    def first_starts(self) -> dict[int, int]:
        return dict(
            self.rows(
                "SELECT r.partition, min(coalesce(g.start_offset, r.start_offset)) FROM offset_ranges r"
                " JOIN offset_batches b ON b.batch_id = r.batch_id"
                " LEFT JOIN offset_gaps g ON g.batch_id = r.batch_id AND g.partition = r.partition"
                " WHERE b.consumer_group = :group AND b.state = 'committed' GROUP BY r.partition"
            )
        )

    def gaps(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for partition, start, end in self.rows(
            "SELECT g.partition, g.start_offset, g.end_offset FROM offset_gaps g"
            " JOIN offset_batches b ON b.batch_id = g.batch_id"
            " WHERE b.consumer_group = :group AND b.state = 'committed'"
        ):
            found.setdefault(partition, set()).update(range(start, end))
        return found

    def output(self) -> list[tuple[int, int, int | None]]:
        return [
            *((place.partition, place.offset, place.id) for place in self.target.places()),
            *self.rows("SELECT partition, offset_value, NULL FROM dead_letters WHERE consumer_group = :group"),
        ]
