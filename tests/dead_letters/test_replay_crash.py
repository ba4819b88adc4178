"""kill -9 at the steps of a replay of dead letters, on Postgres and SQLite: run again, none of them is lost or
doubled.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.dead_letters.replay import Replayed
from tests.support.clients import Kafka, produce
from tests.support.database_faults import ADDED
from tests.support.dying_dead_letters import DeadLetterReplay, ListedSteps, note_steps, stop_at_steps
from tests.support.dying_rewind import DyingRewind
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.verifying import LEFT_OUT, reread

pytestmark = pytest.mark.server

# Beginnings of the steps that are tried every day: in the transaction of the first batch, and after its COMMIT.
DAILY = ("UPDATE offset_batches", "remove")


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


@pytest.fixture
def orders(inline_loader: Loader, topic: TopicFactory) -> str:
    name = topic(partitions=2)
    for partition in range(2):
        produce(
            inline_loader.kafka,
            name,
            [*names(partition * 100 + 8, 4), b"{", *names(partition * 100 + 20, 3)],
            partition,
        )
    return name


@pytest.fixture
def replay(inline_loader: Loader, orders: str, tmp_path: Path) -> DeadLetterReplay:
    url = inline_loader.engine.url.render_as_string(hide_password=False)
    return DeadLetterReplay(url, orders, str(tmp_path / "staging"))


def load(loader: Loader, orders: str) -> None:
    """Load the topic from its beginning, in batches that leave out names that are too long; then the target takes
    them.
    """
    engine = loader.engine
    found = sa.MetaData()
    found.reflect(engine)
    found.drop_all(engine)
    with engine.begin() as conn:
        conn.execute(sa.text(f"CREATE TABLE target (id BIGINT, name TEXT CHECK (length(name) < 7), {ADDED})"))
    loader(orders, limits=Limits(max_records=8), **LEFT_OUT)
    with engine.begin() as conn:
        for statement in (
            "ALTER TABLE target RENAME TO narrow",
            f"CREATE TABLE target (id BIGINT, name TEXT, {ADDED})",
            "INSERT INTO target SELECT * FROM narrow",
            "DROP TABLE narrow",
        ):
            conn.execute(sa.text(statement))


def assert_as_if_never_bad(loader: Loader) -> None:
    """Each record is a row once, in its batch, but for those that do not decode still; the history agrees."""
    found = rows(loader.engine, "SELECT _kafka_partition, _kafka_offset, id, _batch_id FROM target ORDER BY 1, 2")
    good = [(offset, id_) for offset, id_ in enumerate([8, 9, 10, 11, None, 20, 21, 22]) if id_ is not None]
    assert found == [
        (partition, offset, partition * 100 + id_, 1 if offset < 4 else 2)
        for partition in range(2)
        for offset, id_ in good
    ]
    letters = "SELECT batch_id, partition, offset_value, error_class FROM dead_letters ORDER BY 2"
    assert rows(loader.engine, letters) == [(2, 0, 4, "value"), (2, 1, 4, "value")]
    counts = "SELECT batch_id, records, row_count, dead_letters FROM offset_batches ORDER BY 1"
    assert rows(loader.engine, counts) == [(1, 8, 8, 0), (2, 8, 6, 2)]
    reread(loader)


def steps_of(loader: Loader, replay: DeadLetterReplay) -> list[str]:
    load(loader, replay.topic)
    with DyingRewind(ListedSteps(replay), 0, note_steps) as listing:
        steps: list[str] = listing.result()
    assert_as_if_never_bad(loader)
    return steps


def kill_and_run_again(loader: Loader, replay: DeadLetterReplay, number: int) -> None:
    load(loader, replay.topic)
    with DyingRewind(replay, number, stop_at_steps) as dying:
        assert isinstance(dying.result(), str)
        dying.kill()
    # Whatever it had done, each record is a row or a dead letter, and the history says so.
    reread(loader)

    done: list[Replayed] = replay()

    assert {result.batch for result in done} <= {1, 2}
    assert_as_if_never_bad(loader)
    assert replay() == [Replayed(2, 0, 0, 2)]
    assert_as_if_never_bad(loader)


def test_killed_in_a_transaction_and_after_it(inline_loader: Loader, replay: DeadLetterReplay) -> None:
    steps = steps_of(inline_loader, replay)
    for beginning in DAILY:
        number = next(number for number, step in enumerate(steps, 1) if step.startswith(beginning))
        kill_and_run_again(inline_loader, replay, number)


@pytest.mark.long
def test_killed_at_every_step(inline_loader: Loader, replay: DeadLetterReplay) -> None:
    steps = steps_of(inline_loader, replay)
    for number in range(1, len(steps) + 1):
        kill_and_run_again(inline_loader, replay, number)
