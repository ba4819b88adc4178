"""kill -9 before every statement of a rewind, on Postgres and SQLite: all is as before it, or all is as after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeadLetters
from airflow_kafka_offsets.exceptions import CommitUnknownError, DatabaseUnavailableError
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.rewinding.execution import RewindResult, execute_rewind
from airflow_kafka_offsets.rewinding.preview import RewindPreview
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.proxy import PostgresProxy
from tests.support.clients import more_partitions, produce
from tests.support.dying_rewind import DyingRewind, Rewind
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.rewinds import TARGET, Rewinder, left_open, once

pytestmark = [pytest.mark.server, pytest.mark.broker]

RUN = TaskRun("run-1", "dag", "rewind", -1, 1)
NEXT_TRY = replace(RUN, try_number=2)

State = dict[str, list[tuple[Any, ...]]]


@pytest.fixture
def rewind(inline_loader: Loader, topic: TopicFactory) -> Rewind:
    return make_rewind(inline_loader, topic(partitions=2))


@pytest.fixture
def on_postgres(kafka: KafkaBroker, postgres_engine: Engine) -> Loader:
    return Loader(kafka, postgres_engine, InlineLauncher())


@pytest.fixture
def postgres_rewind(on_postgres: Loader, topic: TopicFactory) -> Rewind:
    return make_rewind(on_postgres, topic(partitions=2))


def make_rewind(loader: Loader, name: str) -> Rewind:
    """All that a rewind can do in one: rows and dead letters to remove, a gap, a new position, a batch to abandon."""
    rewinder = Rewinder(loader)
    for partition in range(2):
        produce(loader.kafka, name, [*names(0, 6), b"{not json", *names(7, 3)], partition)
    loader(name, on_bad_record=DeadLetters())
    more_partitions(loader.kafka, name, 3)
    produce(loader.kafka, name, names(0, 10), 2)
    produce(loader.kafka, name, names(10, 5), 1)
    batch = left_open(rewinder, name)
    preview = rewinder.preview("from-file", f"{name},0,3\n{name},1,12\n{name},2,4\n")
    assert (len(preview.changed), preview.offsets_reread, preview.offsets_skipped) == (3, 7, 6)
    url = loader.engine.url.render_as_string(hide_password=False)
    return Rewind(url, preview.as_dict(), RUN, batch)


def state(engine: Engine) -> State:
    """Everything that is stored."""
    tables = [*(table.name for table in Tables().metadata.sorted_tables), "target"]
    return {name: sorted(rows(engine, f"SELECT * FROM {name}"), key=repr) for name in tables}


def executed(rewind: Rewind, engine: Engine, run: TaskRun = RUN) -> RewindResult:
    return execute_rewind(
        RewindPreview.from_dict(rewind.preview), engine=engine, run=run, abandon=rewind.abandon, replace=TARGET
    )


def assert_done(engine: Engine, rewind: Rewind, done: RewindResult) -> None:
    """It is done, and once."""
    assert (done.moved, done.rows_removed, done.dead_letters_removed) == (3, 6, 1)
    assert rows(engine, "SELECT partition, offset_value FROM consumed_offsets ORDER BY 1") == [(0, 3), (1, 12), (2, 4)]
    assert rows(engine, "SELECT batch_id FROM offset_batches WHERE run_id = 'run-1' AND kind = 'rewind'") == [
        (done.batch_id,)
    ]
    assert rows(engine, f"SELECT state FROM offset_batches WHERE batch_id = {rewind.abandon}") == [("abandoned",)]


@pytest.mark.parametrize(
    "engine",
    ["postgresql", *(pytest.param(each, marks=pytest.mark.long) for each in ("sqlite", "mariadb"))],
    indirect=True,
)
def test_a_rewind_that_is_killed_now_and_then_leaves_the_old_or_the_new(inline_loader: Loader, rewind: Rewind) -> None:
    engine = inline_loader.engine
    old = state(engine)
    numbers = iter(range(1, 200, 7))
    kills = 0
    while state(engine) == old:
        with DyingRewind(rewind, next(numbers)) as dying:
            dying.result()
            dying.kill()
        kills += 1

    assert kills > 3
    new = state(engine)
    done = executed(rewind, engine, NEXT_TRY)
    assert state(engine) == new, "the next try did it again"
    assert_done(engine, rewind, done)
    finish(inline_loader, rewind)


@pytest.mark.long
def test_a_rewind_that_is_killed_leaves_the_old_or_the_new(inline_loader: Loader, rewind: Rewind) -> None:
    engine = inline_loader.engine
    old = state(engine)
    killed: list[str] = []
    while state(engine) == old:
        with DyingRewind(rewind, len(killed) + 1) as dying:
            told = dying.result()
            assert isinstance(told, str), f"it ended by itself, and nothing was changed: {told}"
            killed.append(told.split("(")[0].strip())
            if told == "COMMIT":
                break
            dying.kill()

    # Every statement is of the one transaction: up to its COMMIT, nothing was kept of any.
    assert state(engine) == old
    for piece in ("DELETE FROM target", "DELETE FROM dead_letters", "DELETE FROM consumed_offsets"):
        assert any(one.startswith(piece) for one in killed), killed
    for table in ("consumed_offsets", "offset_batches", "offset_ranges", "offset_gaps", "replaced_output"):
        assert f"INSERT INTO {table}" in killed, killed

    with DyingRewind(rewind, len(killed) + 1) as dying:
        assert dying.result().startswith("SELECT"), "COMMIT is behind it"
        dying.kill()
    new = state(engine)
    assert new != old
    done = executed(rewind, engine, NEXT_TRY)
    assert state(engine) == new, "the next try did it again"
    assert_done(engine, rewind, done)
    finish(inline_loader, rewind)


def test_the_try_after_the_kill_does_it(inline_loader: Loader, rewind: Rewind) -> None:
    with DyingRewind(rewind, 12) as dying:
        assert isinstance(dying.result(), str)
        dying.kill()

    assert_done(inline_loader.engine, rewind, executed(rewind, inline_loader.engine, NEXT_TRY))
    finish(inline_loader, rewind)


def finish(loader: Loader, rewind: Rewind) -> None:
    """The load after the rewind, and what there is then."""
    rewinder = Rewinder(loader)
    name = rewind.preview["partitions"][0]["topic"]
    loader(name, on_bad_record=DeadLetters())
    found = [rewinder.times(name, partition) for partition in range(3)]
    assert found == [once((0, 6), (7, 10)), once((0, 6), (7, 10), (12, 15)), once((4, 10))]
    assert rows(loader.engine, "SELECT partition, offset_value FROM dead_letters ORDER BY 1") == [(0, 6), (1, 6)]
    rewinder.prove()


@contextmanager
def proxied(postgres: PostgresServer, rewind: Rewind) -> Iterator[tuple[PostgresProxy, Rewind, Engine]]:
    with PostgresProxy(postgres.port) as proxy:
        url = sa.make_url(rewind.url).set(port=proxy.port)
        engine = sa.create_engine(url, hide_parameters=True)
        yield proxy, replace(rewind, url=url.render_as_string(hide_password=False)), engine
        engine.dispose()


def test_a_commit_whose_answer_is_lost_is_found_in_the_history(
    on_postgres: Loader, postgres: PostgresServer, postgres_rewind: Rewind
) -> None:
    with proxied(postgres, postgres_rewind) as (proxy, rewind, engine):
        proxy.swallow_commit_answer()
        done = executed(rewind, engine)
        assert proxy.triggered.is_set()

    assert_done(on_postgres.engine, postgres_rewind, done)
    assert executed(postgres_rewind, on_postgres.engine, NEXT_TRY) == done


def test_a_lost_answer_is_found_for_a_group_that_is_new(
    on_postgres: Loader, postgres: PostgresServer, topic: TopicFactory
) -> None:
    name, rewinder = topic(), Rewinder(on_postgres)
    on_postgres(name, group_id="other")
    preview = rewinder.preview("to-earliest", None, name, new_group=True)
    url = on_postgres.engine.url.render_as_string(hide_password=False)
    with proxied(postgres, Rewind(url, preview.as_dict(), RUN)) as (proxy, _, engine):
        proxy.swallow_commit_answer()
        done = execute_rewind(preview, engine=engine, run=RUN)
        assert proxy.triggered.is_set()

    assert rewinder.positions(name) == {0: 0}
    assert rewinder.history() == [(done.batch_id, "rewind", "committed")]


def test_a_commit_that_never_arrived_changes_nothing(
    on_postgres: Loader, postgres: PostgresServer, postgres_rewind: Rewind
) -> None:
    old = state(on_postgres.engine)
    with proxied(postgres, postgres_rewind) as (proxy, rewind, engine):
        proxy.cut_before_commit()
        with pytest.raises(DatabaseUnavailableError, match="were not moved, and nothing was changed"):
            executed(rewind, engine)
        assert proxy.triggered.is_set()

    assert state(on_postgres.engine) == old
    assert_done(on_postgres.engine, postgres_rewind, executed(postgres_rewind, on_postgres.engine, NEXT_TRY))


def test_an_outcome_that_cannot_be_asked_for_is_left_to_the_next_try(
    on_postgres: Loader, postgres: PostgresServer, postgres_rewind: Rewind
) -> None:
    with proxied(postgres, postgres_rewind) as (proxy, rewind, engine):
        # Before COMMIT is sent over the open connection: the look-up needs another one.
        sa.event.listen(engine, "commit", lambda conn: proxy.refuse())
        proxy.swallow_commit_answer()
        with pytest.raises(CommitUnknownError, match="the rewind is there as a whole, or not at all") as raised:
            executed(rewind, engine)
    assert raised.value.retriable

    assert_done(on_postgres.engine, postgres_rewind, executed(postgres_rewind, on_postgres.engine, NEXT_TRY))


def test_a_rewind_that_is_killed_before_it_learns_of_its_commit_is_not_done_again(
    on_postgres: Loader, postgres: PostgresServer, postgres_rewind: Rewind
) -> None:
    old = state(on_postgres.engine)
    with proxied(postgres, postgres_rewind) as (proxy, rewind, _):
        proxy.swallow_commit_answer()
        with DyingRewind(rewind, None) as dying:
            assert dying.result().startswith("SELECT"), "it asks for nothing after COMMIT"
            assert proxy.triggered.is_set()
            dying.kill()
    new = state(on_postgres.engine)
    assert new != old

    assert_done(on_postgres.engine, postgres_rewind, executed(postgres_rewind, on_postgres.engine, NEXT_TRY))
    assert state(on_postgres.engine) == new
