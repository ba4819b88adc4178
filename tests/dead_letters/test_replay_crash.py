"""kill -9 at the steps of a replay of dead letters: run again, none of them is lost or duplicated.

Into a table, at each statement; into every kind of target, at each point of the protocol.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Limits
from airflow_kafka_offsets.ledger.dead_letter_batches import Replayed
from airflow_kafka_offsets.staging.rows import Record
from airflow_kafka_offsets.verification.verify import verify
from tests.support.clients import Kafka, produce
from tests.support.database_faults import ADDED
from tests.support.dying_dead_letters import (
    POINTS,
    DeadLetterReplay,
    ListedSteps,
    StopsAt,
    note_steps,
    stop_at_steps,
)
from tests.support.dying_rewind import DyingRewind
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.targets import KINDS, UPSERTS, Target
from tests.support.verifying import LEFT_OUT, reread

pytestmark = pytest.mark.server

# Beginnings of the steps that are tried every day: in the transaction of the first batch, and after its COMMIT.
DAILY = ("DELETE FROM dead_letters", "remove")

BETWEEN = "inside the transaction"
"""Where the process is between the two commits, if there are two."""


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


def assert_all_are_replayed(loader: Loader) -> None:
    """Each record is a row once, but for those that do not decode still; the history agrees."""
    found = rows(loader.engine, "SELECT _kafka_partition, _kafka_offset, id FROM target ORDER BY 1, 2")
    good = [(offset, id_) for offset, id_ in enumerate([8, 9, 10, 11, None, 20, 21, 22]) if id_ is not None]
    assert found == [(partition, offset, partition * 100 + id_) for partition in range(2) for offset, id_ in good]
    dead_letters = "SELECT batch_id, partition, offset_value, error_class FROM dead_letters ORDER BY 2"
    assert rows(loader.engine, dead_letters) == [(2, 0, 4, "value"), (2, 1, 4, "value")]
    counts = (
        "SELECT sum(records), sum(row_count) FROM offset_batches WHERE kind = 'dead_letters' AND state = 'committed'"
    )
    assert [tuple(map(int, row)) for row in rows(loader.engine, counts)] == [(12, 12)]
    of_open = "SELECT batch_id FROM offset_batches WHERE state IN ('planned', 'staged')"
    assert rows(loader.engine, of_open) == []
    reread(loader)


def steps_of(loader: Loader, replay: DeadLetterReplay) -> list[str]:
    load(loader, replay.topic)
    with DyingRewind(ListedSteps(replay), 0, note_steps) as listing:
        steps: list[str] = listing.result()
    assert_all_are_replayed(loader)
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
    assert_all_are_replayed(loader)
    assert [(each.batch, each.records, each.still_bad) for each in replay()] == [(2, 0, 2)]
    assert_all_are_replayed(loader)


@pytest.mark.parametrize(
    "engine",
    ["postgresql", *(pytest.param(each, marks=pytest.mark.long) for each in ("sqlite", "mariadb"))],
    indirect=True,
)
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


def cases() -> list[object]:
    return [
        pytest.param(kind, point, marks=[] if point == BETWEEN else [pytest.mark.long])
        for kind in sorted(KINDS | UPSERTS)
        for point in POINTS
    ]


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("kind", "point"), cases())
def test_killed_on_its_way_into_any_target(
    inline_loader: Loader, topic: TopicFactory, tmp_path: Path, kind: str, point: str
) -> None:
    """One dead letter becomes a row, one is refused by targets that refuse values, and one is bad still."""
    loader, name, target = inline_loader, topic(), Target.make(kind, inline_loader.engine, tmp_path)
    produce(loader.kafka, name, [*names(0, 2), b"{", b"{", b"{", *names(5, 2)])
    loader(name, sink=target.sink, **LEFT_OUT)
    corrected: dict[Record, bytes | None] = {
        Record(name, 0, offset): value
        for offset, value in ((2, b'{"id": 2}'), (3, b'{"id": 3, "name": "refused"}'), (4, b"["))
    }
    url = loader.engine.url.render_as_string(hide_password=False)
    replay = DeadLetterReplay(url, name, str(tmp_path / "staging"), target.sink, {1: corrected})
    with DyingRewind(replay, 1, StopsAt(point), statements=False) as dying:
        assert dying.result() == point
        dying.kill()

    done = replay()

    refused = {3} if kind == "elsewhere" else set()
    offsets = [place.offset for place in target.places()]
    assert sorted(offsets) == sorted({0, 1, 2, 3, 5, 6} - refused)
    assert sum(each.records for each in done) == (0 if point == "after COMMIT" else 2 - len(refused))
    dead_letters = rows(loader.engine, "SELECT offset_value FROM dead_letters ORDER BY 1")
    assert dead_letters == [(offset,) for offset in sorted({4} | refused)]
    assert rows(loader.engine, "SELECT count(*) FROM offset_batches WHERE publish_started_at IS NOT NULL") == [(0,)]
    kafka_config = None if target.sink.replaces_rows else loader.config
    verify("loader", sink=target.sink, engine=loader.engine, kafka_config=kafka_config)
    assert list((tmp_path / "staging").iterdir()) == []
