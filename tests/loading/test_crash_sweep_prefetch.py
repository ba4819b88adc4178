"""kill -9 at every point of a load of several batches, in the first try and in a retry, with a batch that is planned
ahead.

Spark's part is done by the processes themselves (see `inline.py`). The whole sweep is in `make soak`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_offsets import Limits, Staging
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.dying_load import POINTS, PREFETCH_POINTS, PUBLISHING_POINTS, DyingLoad, Load
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, names, positions
from tests.support.prefetch import states
from tests.support.targets import KINDS, Target

pytestmark = [pytest.mark.server, pytest.mark.broker]

RUN = TaskRun("run-1", "dag", "task", -1, 1)
COUNT = 20
BATCHES = 4
IN_THE_WIRE = "after COMMIT, its answer lost"  # needs a proxy

DAILY = {("after a batch is planned ahead", 1), ("after Spark staged it", 2), ("after COMMIT", 2)}
"""Points and tries that are swept every day."""


def cases(points: dict[str, object]) -> list[object]:
    return [
        pytest.param(point, tries, marks=[] if (point, tries) in DAILY else [pytest.mark.long])
        for point in points
        if point != IN_THE_WIRE
        for tries in (1, 2)
    ]


@pytest.fixture
def orders(kafka: KafkaBroker, topic: TopicFactory) -> str:
    name = topic(partitions=2)
    for partition in range(2):
        produce(kafka, name, names(partition * COUNT, COUNT), partition)
    return name


@pytest.fixture
def load(inline_loader: Loader, orders: str, tmp_path: Path) -> Load:
    url = inline_loader.engine.url.render_as_string(hide_password=False)
    options = {
        "staging": Staging(dir=str(tmp_path / "staging"), slice_offsets=5),
        "limits": Limits(max_records=2 * COUNT // BATCHES),
    }
    return Load(url, inline_loader.kafka.bootstrap_servers, (orders,), RUN, options)


@pytest.mark.parametrize(("point", "tries"), cases(dict(POINTS | PREFETCH_POINTS)))
def test_a_load_that_is_killed_is_finished_in_order(inline_loader: Loader, load: Load, point: str, tries: int) -> None:
    for number in range(1, tries + 1):
        killed(inline_loader, replace(load, run=replace(RUN, try_number=number)), point)

    finish(inline_loader, load, tries + 1)
    verify("loader", sink=SqlTable("target"), engine=inline_loader.engine, kafka_config=inline_loader.config)


@pytest.mark.long
@pytest.mark.parametrize("point", sorted(PREFETCH_POINTS | PUBLISHING_POINTS))
@pytest.mark.parametrize("kind", sorted(kind.name for kind in KINDS.values() if kind.commits_externally))
def test_into_a_target_that_commits_externally(
    inline_loader: Loader, load: Load, tmp_path: Path, kind: str, point: str
) -> None:
    target = Target.make(kind, inline_loader.engine, tmp_path)
    load = replace(load, options=load.options | {"sink": target.sink})
    killed(inline_loader, load, point)

    inline_loader(*load.topics, run=replace(RUN, try_number=2), **load.options)

    target.assert_exactly_once()
    assert states(inline_loader.engine) == ["committed"] * BATCHES
    verify("loader", sink=target.sink, engine=inline_loader.engine, kafka_config=inline_loader.config)


def killed(loader: Loader, load: Load, point: str) -> None:
    with DyingLoad(load, point) as dying:
        dying.reach(point)
        dying.kill()
    found = states(loader.engine)
    counts = Counter(found)
    assert counts["planned"] + counts["staged"] <= 1, found
    assert counts["prefetched"] <= counts["planned"] + counts["staged"], found
    assert sorted(found, key=["committed", "staged", "planned", "prefetched"].index) == found, "not in order"


def finish(loader: Loader, load: Load, try_number: int) -> None:
    """The try after the kill; then everything is as if nothing had happened."""
    loader(*load.topics, run=replace(RUN, try_number=try_number), **load.options)
    (name,) = load.topics
    assert positions(loader.engine) == {(name, 0): COUNT, (name, 1): COUNT}
    assert_exactly_once(loader.engine)
    # No batch was planned twice.
    assert states(loader.engine) == ["committed"] * BATCHES
    assert list(Path(load.options["staging"].dir).iterdir()) == [], "staged files are left behind"
