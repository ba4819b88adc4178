"""Two processes at once: whoever wins, every offset is loaded exactly once, and a loser can never write."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Coordination, DeadLetters, Limits, Staging
from airflow_kafka_offsets.exceptions import FencedError, GroupBusyError
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.driver import write_manifest
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.tasks import stage_slices
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.verification.verify import verify
from tests.support.clients import produce
from tests.support.dying_load import POINTS, PREFETCH_POINTS, DyingLoad, Load, Worker
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, names, positions, rows
from tests.support.prefetch import planned_ahead
from tests.support.targets import KINDS, Target

pytestmark = pytest.mark.server

RUN = TaskRun("run-1", "dag", "task", -1, 1)
# Of each kind; `make soak` runs more.
RACES = int(os.environ.get("RACES", "8"))
SEED = 20261121
TABLE = SqlTable("target")


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[Worker, Worker]]:
    """Two processes that live for all races: each of them is a worker that is given one task after the other."""
    with Worker() as one, Worker() as other:
        yield one, other


def url(loader: Loader) -> str:
    return loader.engine.url.render_as_string(hide_password=False)


def proved(loader: Loader, group: str = "loader", sink: Sink = TABLE) -> None:
    verify(group, sink=sink, engine=loader.engine, kafka_config=loader.config)


@pytest.mark.parametrize(
    "kind", ["table", *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS if kind != "table")]
)
def test_two_processes_load_each_offset_once(
    inline_loader: Loader, workers: tuple[Worker, Worker], topic: TopicFactory, tmp_path: Path, kind: str
) -> None:
    """Two runs, two tries of one task instance, two groups with one target; from the same moment on, with pauses here
    and there.

    The pauses are random, from a seed that the failure shows.
    """
    name = topic(partitions=2)
    chance = random.Random(SEED)
    ends = {0: 0, 1: 0}
    fenced = 0
    target = Target.make(kind, inline_loader.engine, tmp_path)
    for race in range(RACES):
        for partition in ends:
            count = chance.randrange(6)
            produce(inline_loader.kafka, name, names(1000 * race + 100 * partition, count), partition)
            ends[partition] += count
        race_of = chance.choice(["runs", "tries", "groups"])
        one = TaskRun(f"run-{race}", "dag", "task", -1, 1)
        other = replace(one, try_number=2) if race_of == "tries" else replace(one, run_id=f"other-{race}")
        loads = [
            Load(
                url(inline_loader),
                inline_loader.kafka.bootstrap_servers,
                (name,),
                run,
                options(chance, tmp_path, group) | {"sink": target.sink},
            )
            for run, group in ((one, "loader"), (other, "other" if race_of == "groups" else "loader"))
        ]
        for worker, load in zip(workers, loads, strict=True):
            worker.begin(load, pauses=pauses(chance))
        results = [worker.result() for worker in workers]

        told = f"race {race} of {race_of}, seed {SEED}: {results}"
        for result in results:
            assert isinstance(result, LoadResult) or (race_of == "tries" and isinstance(result, FencedError)), told
        fenced += sum(isinstance(result, FencedError) for result in results)
        found = rows(
            inline_loader.engine,
            "SELECT partition, offset_value FROM consumed_offsets WHERE consumer_group = 'loader' AND topic = :topic",
            topic=name,
        )
        assert dict(found) == ends, told
    proved(inline_loader, sink=target.sink)
    proved(inline_loader, "other", target.sink)
    # Of a few races none may be close.
    assert fenced > 0 or RACES < 50, "no try was ever overtaken: the races are none"
    assert planned_ahead(inline_loader.engine) > 0, "no batch was ever planned ahead"


def options(chance: random.Random, staging: Path, group: str) -> dict[str, Any]:
    return {
        "group_id": group,
        "staging": Staging(dir=str(staging / "staging")),
        "limits": Limits(max_records=chance.choice([None, 3, 2])),
        "coordination": Coordination(lease=timedelta(minutes=1), other_groups="allow"),
    }


def pauses(chance: random.Random) -> dict[str, float]:
    """Points at which a process is slow, and for how many seconds."""
    return {chance.choice(sorted(POINTS | PREFETCH_POINTS)): chance.random() * 0.1 for _ in range(chance.randrange(3))}


AWAKE = [point for point in POINTS if point not in ("before planning", "after COMMIT, its answer lost")]


DAILY_AWAKE = {
    "after the ranges are stored",
    "while a slice is read",
    "after it is marked as staged",
    "inside the transaction",
    "during clean-up",
}
"""Points of which each has another state: planned, staging, staged, under its lock, and committed.
`tests/ledger/test_fencing.py` has every call that a try makes every day, and `make soak` has every point."""


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=[] if point in DAILY_AWAKE else [pytest.mark.long]) for point in AWAKE]
)
def test_a_try_that_wakes_after_a_later_one_changes_nothing(
    inline_loader: Loader, topic: TopicFactory, tmp_path: Path, point: str
) -> None:
    """The first try stops at a point, the second does all the work, then the first goes on from there."""
    name = topic(partitions=2)
    produce(inline_loader.kafka, name, names(0, 40), 0)
    produce(inline_loader.kafka, name, names(100, 40), 1)
    staging = {"staging": Staging(dir=str(tmp_path / "staging"), slice_offsets=20)}
    load = Load(url(inline_loader), inline_loader.kafka.bootstrap_servers, (name,), RUN, staging)
    # Inside its transaction the first try holds the group's lock: the second cannot overtake it, nor need it.
    holds_the_lock = point == "inside the transaction"
    committed = point in ("after COMMIT", "before clean-up", "during clean-up")

    with DyingLoad(load, point) as sleeper:
        sleeper.reach(point)
        if holds_the_lock:
            with DyingLoad(
                replace(
                    load,
                    run=replace(RUN, try_number=2),
                    options=staging | {"coordination": Coordination(on_busy="fail")},
                )
            ) as late:
                refused = late.result() if inline_loader.engine.dialect.name == "postgresql" else None
                if refused is not None:
                    assert isinstance(refused, GroupBusyError), refused
        else:
            inline_loader(name, run=replace(RUN, try_number=2), **staging)
            assert positions(inline_loader.engine) == {(name, 0): 40, (name, 1): 40}
            produce(inline_loader.kafka, name, names(200, 5), 0)
            inline_loader(name, run=TaskRun("run-2", "dag", "task", -1, 1), **staging)
        sleeper.go_on()
        told = sleeper.result()

    if holds_the_lock or committed:
        assert isinstance(told, LoadResult), told
    else:
        assert isinstance(told, FencedError), told
        assert "was taken over by" in str(told)
    assert_exactly_once(inline_loader.engine)
    proved(inline_loader)


@pytest.mark.parametrize(
    ("point", "committed"),
    [("after a batch is planned ahead", 0), ("after its staging began", 0), ("before it is marked as staged", 1)],
)
def test_a_try_with_a_batch_ahead_that_wakes_after_a_later_one_changes_nothing(
    inline_loader: Loader, topic: TopicFactory, tmp_path: Path, point: str, committed: int
) -> None:
    """The first try stops with a batch that is planned ahead; the second one does all the work."""
    name = topic(partitions=2)
    produce(inline_loader.kafka, name, names(0, 20), 0)
    produce(inline_loader.kafka, name, names(100, 20), 1)
    options = {"staging": Staging(dir=str(tmp_path / "staging")), "limits": Limits(max_records=15)}
    load = Load(url(inline_loader), inline_loader.kafka.bootstrap_servers, (name,), RUN, options)

    with DyingLoad(load, point) as sleeper:
        sleeper.reach(point)
        later = inline_loader(name, run=replace(RUN, try_number=2), **options)
        assert later.batches == tuple(range(1 + committed, 4))
        before = rows(inline_loader.engine, "SELECT * FROM offset_batches ORDER BY batch_id")
        sleeper.go_on()
        told = sleeper.result()

    assert isinstance(told, FencedError), told
    assert "was taken over by" in str(told)
    assert rows(inline_loader.engine, "SELECT * FROM offset_batches ORDER BY batch_id") == before
    assert_exactly_once(inline_loader.engine)
    assert list((tmp_path / "staging").iterdir()) == []
    proved(inline_loader)


def test_one_of_two_attempts_of_a_spark_task_counts(inline_loader: Loader, topic: TopicFactory, tmp_path: Path) -> None:
    """As with speculative execution: both attempts write all of their rows, Spark accepts the result of one."""
    name = topic()
    produce(inline_loader.kafka, name, [*names(0, 30), b"bad"])

    class Speculative(InlineLauncher):
        def __call__(self, job: StageJob) -> None:
            staging = StagingDirectory(job.staging_uri)
            accepted: list[StagedFile] = []
            for number in range(len(job.tasks)):
                files = [file for _ in range(2) for file in stage_slices(job, [number])]
                accepted.append(files[number % 2])
            assert len(list(Path(job.staging_uri).glob("part-*"))) == 2 * len(job.tasks) > 2
            write_manifest(job, staging, tuple(accepted))

    loader = Loader(inline_loader.kafka, inline_loader.engine, Speculative())
    loader(name, staging=Staging(slice_offsets=10, dir=str(tmp_path / "staging")), on_bad_record=DeadLetters())

    assert rows(loader.engine, "SELECT count(*), count(DISTINCT id) FROM target") == [(30, 30)]
    assert rows(loader.engine, "SELECT count(*) FROM dead_letters") == [(1,)]
    proved(loader)


@pytest.mark.parametrize("state", ["planned", "prefetched"])
def test_the_database_takes_one_open_batch_a_group_and_one_ahead(
    inline_loader: Loader, topic: TopicFactory, state: str
) -> None:
    """Beneath lease and epoch, a unique index: even code with a mistake could not plan twice."""
    name = topic()
    produce(inline_loader.kafka, name, names(0, 5))
    inline_loader(name)
    insert = sa.text(
        "INSERT INTO offset_batches (consumer_group, generation, kind, state, attempt, planned_at)"
        f" VALUES ('loader', 0, 'load', '{state}', 0, CURRENT_TIMESTAMP)"
    )
    with inline_loader.engine.connect() as conn, conn.begin():
        conn.execute(insert)
        with pytest.raises(sa.exc.IntegrityError):
            conn.execute(insert)
