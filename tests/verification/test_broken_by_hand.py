"""What was changed by hand is found in the database, and named."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import LedgerError, VerificationError
from airflow_kafka_offsets.ledger.batches import open_batch
from airflow_kafka_offsets.ledger.publications import run_pending_cleanups
from airflow_kafka_offsets.ledger.tables import Ledger
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names
from tests.support.rewinds import TARGET, Rewinder
from tests.support.verifying import ON_ONE, do, put_back, verified

pytestmark = pytest.mark.server


class Broken(NamedTuple):
    """What somebody does to the database, and what must then be said of which partition, offset and batch."""

    statements: list[str]
    message: str
    place: tuple[int, int, int]


BROKEN = {
    "row-deleted": Broken(
        ["DELETE FROM target WHERE _kafka_partition = 0 AND _kafka_offset = 3"],
        r"\[0\]: table 'target' holds 8 rows of batch 1, offsets 0\.\.10, which wrote 9: rows are missing\.$",
        (0, 0, 1),
    ),
    "row-twice": Broken(
        ["INSERT INTO target SELECT * FROM target WHERE _kafka_partition = 1 AND _kafka_offset = 3"],
        r"\[1\]: table 'target' holds 6 rows of batch 1, offsets 0\.\.5, which wrote 5: there are too many\.$",
        (1, 0, 1),
    ),
    "offset-twice": Broken(
        ["UPDATE target SET _kafka_offset = 12 WHERE _kafka_offset = 11"],
        r"holds 5 rows of batch 2, offsets 10\.\.15, but only 4 different offsets",
        (0, 10, 2),
    ),
    "offset-outside": Broken(
        ["UPDATE target SET _kafka_offset = 9 WHERE _kafka_offset = 11"],
        r"holds rows of batch 2 at offset 9, outside of what it loaded, 10\.\.15\.$",
        (0, 9, 2),
    ),
    "dead-letter-loaded": Broken(
        ["UPDATE target SET _kafka_offset = 7 WHERE _kafka_partition = 0 AND _kafka_offset = 6"],
        r"\[0\]: offset 7 was loaded twice, batch 1 has it as a row and as a dead letter\.$",
        (0, 7, 1),
    ),
    "batch-unknown": Broken(
        ["DELETE FROM offset_ranges WHERE batch_id = 2", "DELETE FROM offset_batches WHERE batch_id = 2"],
        r"\[0\]: table 'target' holds 5 rows of batch 2, which the state tables do not know.* There is 1 other "
        r"violation",
        (0, 10, 2),
    ),
    "batch-not-committed": Broken(
        ["UPDATE offset_batches SET state = 'abandoned' WHERE batch_id = 2"],
        r"holds 5 rows of batch 2, which is abandoned and not committed",
        (0, 10, 2),
    ),
    "position-moved": Broken(
        ["UPDATE consumed_offsets SET offset_value = 12 WHERE partition = 0"],
        r"\[0\]: position 12 is stored, but the history ends at offset 15 with batch 2: the records before it would be "
        r"loaded again.* There is 1 other violation\.$",
        (0, 12, 2),
    ),
    "position-removed": Broken(
        ["DELETE FROM consumed_offsets WHERE partition = 1"],
        r"\[1\]: the history ends at offset 5 with batch 1, but no position is stored",
        (1, 5, 1),
    ),
    "range-removed": Broken(
        ["DELETE FROM offset_ranges WHERE batch_id = 1 AND partition = 0"],
        r"holds rows of batch 1, which loaded nothing of this partition by the history \(9\)",
        (0, 0, 1),
    ),
    "dead-letter-removed": Broken(
        ["DELETE FROM dead_letters"],
        r"\[0\]: dead_letters holds 0 records of batch 1, offsets 0\.\.10, which dead-lettered 1\.$",
        (0, 0, 1),
    ),
    "table-emptied": Broken(
        ["DELETE FROM target"],
        r"holds 0 rows of batch 1, offsets 0\.\.10, which wrote 9.* There are 2 other violations",
        (0, 0, 1),
    ),
}


def test_changes_by_hand_are_violations_with_their_place(inline_loader: Loader, two_batches: str) -> None:
    for name, broken in BROKEN.items():
        with put_back(inline_loader.engine):
            do(inline_loader.engine, *broken.statements)
            with pytest.raises(VerificationError) as raised:
                verified(inline_loader)
        error = raised.value
        assert re.search(broken.message, str(error)), (name, str(error))
        assert (error.topic, error.partition, error.offset, error.batch_id) == (two_batches, *broken.place), name
    assert verified(inline_loader).rows == 19


DEEP = "[" * 100_000

IMPOSSIBLE = {
    "UPDATE offset_batches SET outputs = 'x' WHERE batch_id = 2": "'offset_batches' has a row of batch 2",
    "UPDATE offset_batches SET outputs = '[1]' WHERE batch_id = 2": "'offset_batches' has a row of batch 2",
    f"UPDATE offset_batches SET outputs = '{DEEP}' WHERE batch_id = 2": "'offset_batches' has a row of batch 2",
    "UPDATE offset_ranges SET replaced_start_offset = 1 WHERE batch_id = 2": "'offset_ranges' has a row of batch 2",
}


def test_rows_that_no_load_can_have_written_are_named(inline_loader: Loader, two_batches: str) -> None:
    engine, ledger = inline_loader.engine, Ledger(inline_loader.engine)
    for statement, message in IMPOSSIBLE.items():
        with put_back(engine):
            do(engine, statement)
            with pytest.raises(LedgerError, match=rf"Table {message} that no load can have written: "):
                verified(inline_loader)
    do(engine, "UPDATE offset_ranges SET start_offset = 1000 WHERE batch_id = 2")
    with put_back(engine):
        do(engine, "UPDATE offset_batches SET state = 'planned' WHERE batch_id = 2")
        with pytest.raises(
            LedgerError, match=r"'offset_ranges' has a row of batch 2 .* 1000\.\.15 ends before it starts"
        ):
            open_batch(ledger, "loader")
    # That of another group does not stop this one.
    other = "consumer_group = 'other', state = 'abandoned', publish_started_at = planned_at"
    do(engine, f"UPDATE offset_batches SET {other} WHERE batch_id = 2")
    run_pending_cleanups(ledger, TARGET.connect(engine), "loader")


@ON_ONE
def test_offsets_that_a_rewind_skips_are_in_the_history(inline_loader: Loader, two_batches: str) -> None:
    engine = inline_loader.engine
    produce(inline_loader.kafka, two_batches, names(15, 10))
    rewinder = Rewinder(inline_loader)
    rewinder("to-offset", 20, f"{two_batches}:0")
    rewinder("to-offset", 3, f"{two_batches}:0")
    # Up to 15 it was loaded.
    rewinder("to-offset", 18, f"{two_batches}:0")
    assert rewinder.gaps() == [(0, 15, 20, "passed over"), (0, 15, 18, "passed over")]
    assert verified(inline_loader).gaps == 8

    for batch, first, last in ((3, 15, 20), (5, 15, 18)):
        with put_back(engine):
            do(engine, f"DELETE FROM offset_gaps WHERE batch_id = {batch}")
            with pytest.raises(VerificationError) as broken:
                verified(inline_loader)
            (violation,) = broken.value.violations
            assert f"offsets {first}..{last}, which were never loaded, are in no recorded gap" in violation.words
            assert (violation.topic, violation.partition, violation.batch_id) == (two_batches, 0, batch)
    verified(inline_loader)


def test_a_table_that_is_gone_is_named(inline_loader: Loader, two_batches: str) -> None:
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text("DROP TABLE target"))

    with pytest.raises(VerificationError, match="has no table 'target': it was dropped"):
        verified(inline_loader)


def test_topics_of_rows_are_read_as_far_as_a_topic_is_long(inline_loader: Loader, two_batches: str) -> None:
    with inline_loader.engine.begin() as conn:
        changed = "UPDATE target SET _kafka_topic = :topic WHERE _kafka_partition = 1 AND _kafka_offset = 3"
        conn.execute(sa.text(changed), {"topic": "t" * 200_000})

    with pytest.raises(VerificationError) as raised:
        verified(inline_loader)

    assert len(str(raised.value)) < 10_000


def test_topics_may_be_an_enum(postgres_engine: Engine, kafka: KafkaBroker, topic: TopicFactory) -> None:
    loader, name = Loader(kafka, postgres_engine, InlineLauncher()), topic()
    produce(kafka, name, names(0, 5))
    do(
        postgres_engine,
        f"CREATE TYPE topics AS ENUM ('{name}')",
        "CREATE TABLE target (id BIGINT, name TEXT, _batch_id BIGINT, _kafka_topic topics, _kafka_partition INT, "
        "_kafka_offset BIGINT)",
    )
    loader(name)

    assert verified(loader).rows == 5
