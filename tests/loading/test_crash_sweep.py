"""kill -9 at every point of a load, in the first try and in a retry, on Postgres, SQLite and MariaDB. Every offset
exactly once.

The killed processes do Spark's part themselves (see `inline.py`), the try that follows uses real Spark; kill -9 of a
whole task with Spark is in `test_crash.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import Coordination, Staging
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from devstack.kafka import KafkaBroker
from devstack.proxy import DatabaseProxy, MariaDbProxy, PostgresProxy
from tests.support.clients import produce
from tests.support.dying_load import POINTS, DyingLoad, Load
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, names, positions, rows

pytestmark = pytest.mark.server

RUN = TaskRun("run-1", "dag", "task", -1, 1)
NEXT_RUN = TaskRun("run-2", "dag", "task", -1, 1)
COUNT = 60
IN_THE_WIRE = "after COMMIT, its answer lost"

DECIDED = {"after COMMIT", IN_THE_WIRE, "before clean-up", "during clean-up"}
"""Points at which the batch is committed, whatever becomes of the process."""

DAILY_IN_A_RETRY = {"after some slices are staged", "inside the transaction", "after COMMIT"}
"""Points at which a retry is killed every day; in the first try all are, and `make soak` has them all for both."""

DAILY_FOR_THE_NEXT_RUN = {"after some slices are staged"}
"""Points after which a run of its own, rather than a retry, takes over every day: it finds files, and a lease that has
to end.
"""

DAILY_ON_MARIADB = {"first-try", "committed"}
"""Cases with a proxy that MariaDB has every day; Postgres has all of them, and `make soak` has them all for both."""


def on_both_servers(*cases: str) -> list[object]:
    """Each case with each server."""
    return [
        pytest.param(server, case, marks=[pytest.mark.long] if long else [])
        for server in ("postgresql", "mariadb")
        for case in cases
        for long in (server == "mariadb" and case not in DAILY_ON_MARIADB,)
    ]


class Server(NamedTuple):
    """Loads into a database server, and a proxy in front of it."""

    loader: Loader
    proxy: DatabaseProxy


@pytest.fixture
def orders(kafka: KafkaBroker, topic: TopicFactory) -> str:
    name = topic(partitions=2)
    for partition in range(2):
        produce(kafka, name, names(partition * COUNT, COUNT), partition)
    return name


@pytest.fixture
def load(loader: Loader, orders: str, tmp_path: Path) -> Load:
    url = loader.engine.url.render_as_string(hide_password=False)
    options = {"staging": Staging(dir=str(tmp_path / "staging"), slice_offsets=20)}
    return Load(url, loader.kafka.bootstrap_servers, (orders,), RUN, options)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Server:
    """A database that is reached over a network."""
    if request.param == "postgresql":
        loader: Loader = request.getfixturevalue("postgres_loader")
        return Server(loader, PostgresProxy(request.getfixturevalue("postgres").port))
    engine, kafka, launcher = map(request.getfixturevalue, ("mariadb_engine", "kafka", "launcher"))
    return Server(Loader(kafka, engine, launcher), MariaDbProxy(request.getfixturevalue("mariadb").port))


@pytest.fixture
def server_load(server: Server, orders: str, tmp_path: Path) -> Load:
    url = server.loader.engine.url.render_as_string(hide_password=False)
    options = {"staging": Staging(dir=str(tmp_path / "staging"))}
    return Load(url, server.loader.kafka.bootstrap_servers, (orders,), RUN, options)


def killed(load: Load, point: str) -> None:
    with DyingLoad(load, point) as dying:
        dying.reach(point)
        dying.kill()


def finish(loader: Loader, load: Load, run: TaskRun) -> None:
    """The try after the kill, with real Spark; then everything is as if nothing had happened."""
    loader(*load.topics, run=run, **load.options)
    (name,) = load.topics
    assert positions(loader.engine) == {(name, 0): COUNT, (name, 1): COUNT}
    assert_exactly_once(loader.engine)
    assert rows(loader.engine, "SELECT state FROM offset_batches") == [("committed",)]
    assert list(Path(load.options["staging"].dir).iterdir()) == [], "staged files are left behind"
    verify(
        "loader",
        sink=SqlTable("target"),
        engine=loader.engine,
        kafka_config={"bootstrap.servers": loader.kafka.bootstrap_servers},
    )


def visible_rows(engine: Engine) -> int:
    return int(rows(engine, "SELECT count(*) FROM target")[0][0])


@pytest.mark.parametrize(
    ("point", "tries"),
    [
        pytest.param(
            point,
            tries,
            id=f"{point}-{'first-try' if tries == 1 else 'retry'}",
            marks=[pytest.mark.long] if tries == 2 and point not in DAILY_IN_A_RETRY else [],
        )
        for point in POINTS
        if point != IN_THE_WIRE
        for tries in (1, 2)
    ],
)
def test_a_load_that_is_killed_is_finished_by_the_next_try(loader: Loader, load: Load, point: str, tries: int) -> None:
    if tries == 2:
        killed(load, "while a slice is read")
        load = replace(load, run=replace(RUN, try_number=2))
    killed(load, point)
    assert visible_rows(loader.engine) == (2 * COUNT if point in DECIDED else 0)

    finish(loader, load, replace(RUN, try_number=tries + 1))


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(point, marks=[] if point in DAILY_FOR_THE_NEXT_RUN else [pytest.mark.long])
        for point in ("after some slices are staged", "inside the transaction", "during clean-up")
    ],
)
def test_a_load_that_is_killed_is_finished_by_the_next_run(loader: Loader, load: Load, point: str) -> None:
    from datetime import timedelta

    killed(replace(load, options=load.options | {"coordination": Coordination(lease=timedelta(seconds=1))}), point)

    finish(loader, load, NEXT_RUN)


@contextmanager
def through_a_proxy(server: Server, load: Load) -> Iterator[tuple[DatabaseProxy, Load]]:
    with server.proxy as proxy:
        url = sa.make_url(load.url).set(port=proxy.port).render_as_string(hide_password=False)
        yield proxy, replace(load, url=url)


@pytest.mark.parametrize(("server", "case"), on_both_servers("first-try", "retry"), indirect=["server"])
def test_a_load_that_is_killed_before_it_learns_of_its_commit(server: Server, server_load: Load, case: str) -> None:
    load, tries = server_load, 1 if case == "first-try" else 2
    if tries == 2:
        killed(load, "while a slice is read")
        load = replace(load, run=replace(RUN, try_number=2))
    with (
        through_a_proxy(server, load) as (proxy, proxied),
        DyingLoad(proxied, "inside the transaction", IN_THE_WIRE) as dying,
    ):
        dying.reach("inside the transaction")
        proxy.swallow_commit_answer()
        dying.go_on()
        dying.reach(IN_THE_WIRE)
        dying.kill()
    assert visible_rows(server.loader.engine) == 2 * COUNT

    finish(server.loader, load, replace(RUN, try_number=tries + 1))


@pytest.mark.parametrize(("server", "case"), on_both_servers("committed", "not-committed"), indirect=["server"])
def test_an_unknown_outcome_is_decided_from_the_ledger(server: Server, server_load: Load, case: str) -> None:
    committed = case == "committed"
    with (
        through_a_proxy(server, server_load) as (proxy, proxied),
        DyingLoad(proxied, "inside the transaction") as one,
    ):
        one.reach("inside the transaction")
        if committed:
            proxy.swallow_commit_answer()
        else:
            proxy.cut_before_commit()
        one.go_on()
        told = one.result()
        assert proxy.triggered.is_set()

    if committed:
        assert told.rows == 2 * COUNT, told
        assert visible_rows(server.loader.engine) == 2 * COUNT
    else:
        assert type(told).__name__ == "DatabaseUnavailableError", told
        assert "was not committed, and nothing of it was written" in str(told)
        assert visible_rows(server.loader.engine) == 0
    finish(server.loader, server_load, replace(RUN, try_number=2))


@pytest.mark.parametrize(("server", "case"), on_both_servers("unknown"), indirect=["server"])
def test_the_ledger_that_cannot_be_asked_leaves_the_outcome_to_the_next_try(
    server: Server, server_load: Load, case: str
) -> None:
    with (
        through_a_proxy(server, server_load) as (proxy, proxied),
        DyingLoad(proxied, "inside the transaction") as one,
    ):
        one.reach("inside the transaction")
        proxy.swallow_commit_answer()
        # COMMIT is sent over the open connection; the look-up needs another one.
        proxy.refuse()
        one.go_on()
        told = one.result()
    assert type(told).__name__ == "CommitUnknownError", told
    assert told.retriable

    finish(server.loader, server_load, replace(RUN, try_number=2))
