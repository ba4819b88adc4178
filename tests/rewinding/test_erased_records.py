"""Dead letters that somebody dropped: their records have no contents again, however often they are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters, Json, SqlTable, replay
from airflow_kafka_offsets.core.offsets import OffsetRange
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter, drop_dead_letters
from airflow_kafka_offsets.ledger.group_changes import delete_group, rename_group
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.rewinding.execution import check_removal
from airflow_kafka_offsets.staging.rows import Record
from tests.support.clients import produce
from tests.support.loads import BESIDE_OTHERS, TopicFactory, rows
from tests.support.rewinds import TARGET, Rewinder

pytestmark = pytest.mark.server

KEPT = DeadLetters()


def load(rewinder: Rewinder, topic: str, **options: Any) -> None:
    rewinder.loader(topic, on_bad_record=KEPT, **options)


def contents(rewinder: Rewinder, group: str = "loader") -> list[tuple[int, bool, bool]]:
    """Offset, whether it has contents, and whether it says who erased them, of the group's latest dead letters."""
    table = Tables().dead_letters
    dead_letters = table.c
    latest = sa.select(sa.func.max(dead_letters.batch_id)).where(dead_letters.consumer_group == group).scalar_subquery()
    found = sa.select(table).where(dead_letters.batch_id == latest).order_by(dead_letters.offset_value)
    with rewinder.loader.engine.connect() as conn:
        letters = conn.execute(found).all()
    note = ": request 17"
    return [(row.offset_value, row.value is not None, row.error.endswith(note)) for row in letters]


WITHOUT_1 = [(1, False, True), (2, True, False)]
BOTH = [(1, True, False), (2, True, False)]


@pytest.fixture
def orders(rewinder: Rewinder, topic: TopicFactory) -> str:
    """A topic with bad records at the offsets 1 and 2, the first of which is erased."""
    name = topic()
    produce(rewinder.loader.kafka, name, [b'{"id": 1}', b'{"id": "person"}', b"{"])
    load(rewinder, name)
    erased = DeadLetterFilter("loader", ranges=[OffsetRange(name, 0, 1, 2, 2, None, "")])
    assert drop_dead_letters(erased, engine=rewinder.loader.engine, who="ana@host", reason="request 17") == 1
    return name


def rewound(rewinder: Rewinder, topic: str) -> None:
    rewinder("to-earliest")
    load(rewinder, topic)


def replaced(rewinder: Rewinder, topic: str) -> None:
    rewinder("to-earliest", replace=TARGET)
    load(rewinder, topic)


def replayed(rewinder: Rewinder, topic: str, *, replace: bool = True, **options: Any) -> None:
    replay(
        rewinder.loader.pipeline([topic], on_bad_record=KEPT, **options),
        {topic: {0: (0, 3)}},
        kafka_config=rewinder.loader.config,
        engine=rewinder.loader.engine,
        launcher=rewinder.loader.launcher,
        replace=replace,
    )


def renamed(rewinder: Rewinder, topic: str) -> None:
    rename_group(Ledger(rewinder.loader.engine), "loader", "shop", who="ana", reason="a test")
    rename_group(Ledger(rewinder.loader.engine), "shop", "loader", who="ana", reason="a test")
    replaced(rewinder, topic)


def deleted(rewinder: Rewinder, topic: str) -> None:
    delete_group(Ledger(rewinder.loader.engine), "loader", who="ana", reason="a test")
    load(rewinder, topic, sink=SqlTable("anew"), **BESIDE_OTHERS)


@pytest.mark.parametrize("read_again", [rewound, replaced, replayed, renamed, deleted])
def test_they_stay_erased(rewinder: Rewinder, orders: str, read_again: Callable[[Rewinder, str], None]) -> None:
    for _ in range(2 if read_again is replaced else 1):
        read_again(rewinder, orders)

        assert contents(rewinder) == WITHOUT_1
    if read_again is not deleted:
        rewinder.prove()
    assert rows(rewinder.loader.engine, "SELECT count(*) FROM erased_offsets") == [(1,)]


def test_what_becomes_a_row_is_in_the_target_and_the_preview_says_so(rewinder: Rewinder, orders: str) -> None:
    removal = check_removal(rewinder.preview("to-earliest"), TARGET, ledger=Ledger(rewinder.loader.engine))
    assert removal[1:] == (2, 1, 0)
    assert "1 dead letter was erased" in str(removal.warning)

    as_texts = Json("id STRING, name STRING")
    replayed(rewinder, orders, replace=False, value_format=as_texts, sink=SqlTable("texts"))

    assert rows(rewinder.loader.engine, "SELECT id FROM texts") == [("person",)]
    assert contents(rewinder) == [(0, True, False), (2, True, False)]


def test_a_preview_says_that_corrections_are_lost(rewinder: Rewinder, orders: str) -> None:
    engine = rewinder.loader.engine
    pipeline = rewinder.loader.pipeline([orders], on_bad_record=KEPT)
    corrected = {1: {Record(orders, 0, 2): b'{"id": 3}'}}
    replay_dead_letters(DeadLetterFilter("loader"), pipeline, engine=engine, corrected=corrected)

    removal = check_removal(rewinder.preview("to-earliest"), TARGET, ledger=Ledger(engine))
    assert (removal.rows, removal.replayed) == (2, 1)
    assert "1 batch of these rows replayed dead letters: their records are read again" in str(removal.warning)
    rewinder("to-earliest", replace=TARGET)
    load(rewinder, orders)
    assert check_removal(rewinder.preview("to-earliest"), TARGET, ledger=Ledger(engine)).replayed == 0


def test_records_of_another_topic_of_this_name_and_of_another_group_are_others(rewinder: Rewinder, orders: str) -> None:
    load(rewinder, orders, group_id="other", sink=SqlTable("others"), **BESIDE_OTHERS)
    assert contents(rewinder, "other") == BOTH

    erased = Tables().erased_offsets
    with rewinder.loader.engine.begin() as conn:
        conn.execute(erased.update().values(topic_id="of an earlier topic"))
    replaced(rewinder, orders)
    assert contents(rewinder) == BOTH

    with rewinder.loader.engine.begin() as conn:
        conn.execute(erased.update().values(topic_id=""))
    replaced(rewinder, orders)
    assert contents(rewinder) == WITHOUT_1, "the broker reported none then"
