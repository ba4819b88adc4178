"""`verify` proves groups whose dead letters were replayed: the rows of the batch that replayed them, and what is left
of the earlier batch.
"""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import VerificationError
from airflow_kafka_offsets.ledger.dead_letter_batches import Replayed
from airflow_kafka_offsets.staging.rows import Record
from airflow_kafka_offsets.transforms.sql import Sql
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.loads import Loader, TopicFactory, names
from tests.support.replays import Replayer
from tests.support.rewinds import TARGET, Rewinder
from tests.support.verifying import LEFT_OUT, do, reread

engine = fixtures.sqlite_engine


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


@pytest.fixture
def orders(topic: TopicFactory) -> str:
    return topic()


@pytest.fixture
def loader(inline_loader: Loader, orders: str) -> Loader:
    """Group `loader`, of whose five records the third and the fourth are dead letters of batch 1."""
    produce(inline_loader.kafka, orders, [*names(0, 2), b"{", b"{", *names(4, 1)])
    inline_loader(orders, **LEFT_OUT)
    return inline_loader


def replayed(loader: Loader, orders: str, **options: Any) -> list[Replayed]:
    corrected = {1: {Record(orders, 0, 2): b'{"id": 2, "name": "corrected"}'}}
    pipeline = loader.pipeline([orders], **options)
    return replay_dead_letters(DeadLetterFilter("loader"), pipeline, engine=loader.engine, corrected=corrected)


def test_records_are_counted_once_and_found_in_either_batch(loader: Loader, orders: str) -> None:
    assert replayed(loader, orders) == [Replayed(1, 1, 1, 0, 2)]

    coverage = reread(loader)

    assert (coverage.batches, coverage.records, coverage.rows, coverage.dead_letters) == (2, 5, 4, 1)
    assert coverage.reread == 5


@pytest.mark.parametrize("again", ["replay", "rewind"])
def test_dead_letters_of_another_table_are_not_replaced_with_those_of_the_groups(
    loader: Loader, orders: str, again: str
) -> None:
    replayer, bounds = Replayer(loader), {orders: {0: (0, 5)}}
    replayer(orders, bounds, **LEFT_OUT)
    if again == "replay":
        replayer(orders, bounds, sink=TARGET, replace=True, **LEFT_OUT)
    else:
        Rewinder(loader)("to-earliest", replace=TARGET)
        loader(orders, **LEFT_OUT)

    # Two of each table.
    assert reread(loader).dead_letters == 4


@pytest.mark.parametrize(
    ("statement", "violation"),
    [
        ("DELETE FROM target WHERE _batch_id = 2", "holds 0 rows of batch 2, offsets 2..3, which wrote 1"),
        ("INSERT INTO target SELECT * FROM target WHERE _batch_id = 2", "holds 2 rows of batch 2"),
        ("UPDATE target SET _kafka_offset = 3 WHERE _batch_id = 2", "at offset 3, outside of what it loaded, 2..3"),
        ("DELETE FROM dead_letters", "dead_letters holds 0 records of batch 1, .* 2, of which 1 were replaced"),
        ("DELETE FROM replaced_output", "dead_letters holds 1 records of batch 1, offsets 0..5, which dead-lettered 2"),
        ("UPDATE offset_batches SET state = 'abandoned' WHERE batch_id = 2", "which is abandoned and not committed"),
    ],
)
def test_lost_and_duplicated_rows_are_violations(loader: Loader, orders: str, statement: str, violation: str) -> None:
    replayed(loader, orders)
    do(loader.engine, statement)

    with pytest.raises(VerificationError, match=violation):
        reread(loader)


def test_a_dead_letter_that_is_a_row_too_is_a_violation(loader: Loader, orders: str) -> None:
    dead_letters = sa.Table("dead_letters", sa.MetaData(), autoload_with=loader.engine)
    with loader.engine.begin() as conn:
        (dead_letter, _) = conn.execute(sa.select(dead_letters).order_by(dead_letters.c.offset_value)).mappings().all()
    replayed(loader, orders)
    with loader.engine.begin() as conn:
        conn.execute(dead_letters.insert(), dict(dead_letter))

    with pytest.raises(VerificationError, match="dead_letters holds 2 records of batch 1"):
        reread(loader)


def test_rows_of_a_transform_are_not_compared_with_kafka(loader: Loader, orders: str) -> None:
    (done,) = replayed(loader, orders, transform=Sql("SELECT id, name FROM records WHERE id <> 2"))

    assert (done.records, done.rows) == (1, 0)
    assert reread(loader).reread == 4


def test_a_dead_letter_after_a_position_that_was_moved_back_may_be_replayed(loader: Loader, orders: str) -> None:
    Rewinder(loader)("to-offset", 1)

    assert replayed(loader, orders) == [Replayed(1, 1, 1, 0, 3)]

    assert reread(loader).rows == 4


def test_dead_letter_batch_moves_no_position(loader: Loader, orders: str) -> None:
    replayed(loader, orders)

    assert not Rewinder(loader).preview("to-batch", 2).changed


def test_a_rewind_replaces_its_rows(loader: Loader, orders: str) -> None:
    replayed(loader, orders)

    done = Rewinder(loader)("to-offset", 2, replace=TARGET)

    assert (done.rows_removed, done.dead_letters_removed) == (2, 1)
    reread(loader)
    loader(orders, **LEFT_OUT)
    coverage = reread(loader)
    assert (coverage.rows, coverage.dead_letters) == (3, 2)
