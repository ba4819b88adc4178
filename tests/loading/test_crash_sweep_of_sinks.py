"""kill -9 at every point of a load, into every kind of target, in the first try and in a retry. Every offset exactly
once.

Spark's part is done by the processes themselves (see `inline.py`); `test_crash_sweep.py` has real Spark, and tables in
more depth.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_offsets import Staging
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.verification.verify import verify
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.dying_load import POINTS, PUBLISHING_POINTS, DyingLoad, Load
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.targets import KINDS, UPSERTS, Target

pytestmark = pytest.mark.server

RUN = TaskRun("run-1", "dag", "task", -1, 1)
COUNT = 30
IN_THE_WIRE = "after COMMIT, its answer lost"  # needs a proxy
DECIDED = {"after COMMIT", "before clean-up", "during clean-up"}
WHILE_STAGING = "after some slices are staged"
BETWEEN = "inside the transaction"
"""Where the process stands between the two commits, if there are two."""

DAILY = {(WHILE_STAGING, 1), (BETWEEN, 2)}
"""Points and tries that are swept every day; `make soak` sweeps the others."""

STAGED_LIKE_ANOTHER = {"iceberg-positions", "iceberg-rest", "iceberg-upsert"}
"""Kinds whose files are those of `iceberg-sql`, which is killed while it stages them every day."""


def is_daily(kind: str, point: str, tries: int) -> bool:
    return (point, tries) in DAILY and not (point == WHILE_STAGING and kind in STAGED_LIKE_ANOTHER)


def cases() -> list[object]:
    """Every kind with every point, in the first try and in a retry."""
    return [
        pytest.param(kind.name, point, tries, marks=[] if is_daily(kind.name, point, tries) else [pytest.mark.long])
        for kind in (KINDS | UPSERTS).values()
        if kind.name != "table"
        for point in (POINTS | PUBLISHING_POINTS if kind.commits_externally else POINTS)
        if point != IN_THE_WIRE
        for tries in (1, 2)
    ]


@pytest.fixture
def orders(kafka: KafkaBroker, topic: TopicFactory) -> str:
    name = topic(partitions=2)
    for partition in range(2):
        produce(kafka, name, names(partition * COUNT, COUNT), partition)
    return name


@pytest.mark.broker
@pytest.mark.parametrize(("kind", "point", "tries"), cases())
def test_a_load_that_is_killed_is_finished_by_the_next_try(
    inline_loader: Loader, orders: str, tmp_path: Path, kind: str, point: str, tries: int
) -> None:
    loader = inline_loader
    target = Target.make(kind, loader.engine, tmp_path)
    staging = tmp_path / "staging"
    options = {"sink": target.sink, "staging": Staging(dir=str(staging), slice_offsets=10)}
    url = loader.engine.url.render_as_string(hide_password=False)
    load = Load(url, loader.kafka.bootstrap_servers, (orders,), RUN, options)
    if tries == 2:
        killed(load, "while a slice is read")
        load = replace(load, run=replace(RUN, try_number=2))
    killed(load, point)
    is_there = point in DECIDED or (point == BETWEEN and target.kind.commits_externally)
    assert len(target.places()) == (2 * COUNT if is_there else 0)

    loader(orders, run=replace(RUN, try_number=tries + 1), **options)

    assert positions(loader.engine) == {(orders, 0): COUNT, (orders, 1): COUNT}
    target.assert_exactly_once()
    assert rows(loader.engine, "SELECT state FROM offset_batches") == [("committed",)]
    assert list(staging.iterdir()) == [], "staged files are left behind"
    # Of rows that later ones replace, nothing is known.
    kafka_config = None if target.sink.replaces_rows else loader.config
    verify("loader", sink=target.sink, engine=loader.engine, kafka_config=kafka_config)


def killed(load: Load, point: str) -> None:
    with DyingLoad(load, point) as dying:
        dying.reach(point)
        dying.kill()
