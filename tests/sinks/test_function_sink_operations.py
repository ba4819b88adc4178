"""What else goes through a `FunctionSink`: retries after a crash, rewinds and replays that replace, dead letters again,
and `verify`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters, Limits, replay, verify
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import ConfigurationError, FunctionError, OlderLedgerError, VerificationError
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.sinks.function import FunctionSink
from tests.support import functions
from tests.support.clients import Kafka, produce
from tests.support.dying_load import DyingLoad, Load
from tests.support.functions import PROVED, sink
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.rewinds import Rewinder

pytestmark = pytest.mark.server


@pytest.fixture
def loader(inline_loader: Loader, topic: TopicFactory) -> Loader:
    """One that has loaded six records in batches of three."""
    functions.create(inline_loader.engine)
    name = topic()
    produce(inline_loader.kafka, name, names(0, 6))
    inline_loader(name, sink=PROVED, limits=Limits(max_records=3))
    return inline_loader


def loaded_topic(loader: Loader) -> str:
    ((topic, _),) = positions(loader.engine)
    return topic


def written(loader: Loader) -> list[tuple[int, int]]:
    """Batch and offset of every line."""
    return rows(loader.engine, "SELECT _batch_id, _kafka_offset FROM lines ORDER BY 1, 2")


def proved(loader: Loader, of: FunctionSink = PROVED, **options: Any) -> tuple[int, bool]:
    coverage = verify("loader", sink=of, engine=loader.engine, **options)
    return coverage.rows, coverage.output_checked


def do(loader: Loader, statement: str) -> None:
    with loader.engine.begin() as conn:
        conn.execute(sa.text(statement))


def test_a_rewind_takes_back_what_the_function_removes(loader: Loader) -> None:
    done = Rewinder(loader)("to-offset", 2, replace=PROVED)

    assert done.rows_removed == 4
    assert written(loader) == [(1, 0), (1, 1)]
    assert rows(loader.engine, "SELECT rows FROM totals") == [(2,)]
    assert loader(loaded_topic(loader), sink=PROVED).rows == 4
    assert [offset for _, offset in written(loader)] == [0, 1, 2, 3, 4, 5]
    assert proved(loader, kafka_config=loader.config) == (6, True)


def test_rows_are_removed_whatever_number_the_function_returned(loader: Loader) -> None:
    do(loader, "UPDATE offset_batches SET row_count = 0")

    assert Rewinder(loader)("to-offset", 2, replace=PROVED).rows_removed == 4
    assert written(loader) == [(1, 0), (1, 1)]


def test_a_replay_replaces_in_one_transaction(loader: Loader) -> None:
    topic = loaded_topic(loader)
    result = replay(
        loader.pipeline([topic], sink=PROVED),
        {topic: {0: (2, 5)}},
        kafka_config=loader.config,
        engine=loader.engine,
        launcher=loader.launcher,
        replace=True,
    )

    assert result.rows == 3
    assert sorted(written(loader)) == [(1, 0), (1, 1), (2, 5), (3, 2), (3, 3), (3, 4)]
    assert rows(loader.engine, "SELECT rows FROM totals") == [(6,)]
    assert proved(loader) == (6, True)


def test_without_a_function_that_removes_nothing_is_replaced(loader: Loader) -> None:
    with pytest.raises(
        ConfigurationError,
        match=r"knows what it wrote for the offsets to replace\. Nothing was changed; give FunctionSink",
    ):
        Rewinder(loader)("to-offset", 2, replace=replace(PROVED, remove=None))

    assert positions(loader.engine) == {(loaded_topic(loader), 0): 6}
    assert Rewinder(loader)("to-offset", 2).rows_removed == 0


@pytest.mark.parametrize(
    ("returned", "message"),
    [(7, "returned 7: it must return the number"), ({(9, "x", 0): 1}, "returned a dict"), (None, "returned a None")],
)
def test_removed_rows_are_counted(loader: Loader, monkeypatch: pytest.MonkeyPatch, returned: Any, message: str) -> None:
    monkeypatch.setattr(functions, "remove", lambda conn, ranges, span: returned)

    with pytest.raises(FunctionError, match=message):
        Rewinder(loader)("to-offset", 2, replace=PROVED)
    assert len(written(loader)) == 6
    assert positions(loader.engine) == {(loaded_topic(loader), 0): 6}


def test_verify_says_that_it_cannot_know_the_rows(loader: Loader) -> None:
    with pytest.raises(ConfigurationError, match=r"Only function .* knows what it writes"):
        proved(loader, sink("insert"), kafka_config=loader.config)

    assert proved(loader, sink("insert")) == (6, False)


def test_verify_finds_a_missing_row_of_the_table(loader: Loader) -> None:
    do(loader, "DELETE FROM lines WHERE _kafka_offset = 4")

    with pytest.raises(VerificationError, match="rows are missing") as raised:
        proved(loader)
    assert (raised.value.batch_id, raised.value.offset) == (2, 3)


def test_rows_of_unknown_batches_are_noticed(loader: Loader) -> None:
    do(loader, "UPDATE lines SET _batch_id = 9 WHERE _kafka_offset = 5")
    produce(loader.kafka, loaded_topic(loader), names(6, 1))

    with pytest.raises(OlderLedgerError, match="holds rows of batch 9"):
        loader(loaded_topic(loader), sink=PROVED)


def test_dead_letters_are_written_when_the_function_takes_them(loader: Loader) -> None:
    topic = loaded_topic(loader)
    picky, lenient = sink("picky"), sink("insert")
    produce(loader.kafka, topic, [json.dumps({"id": 6, "name": "bad"}).encode()])
    loader(topic, sink=picky, group_id="other", on_bad_record=DeadLetters())
    assert rows(loader.engine, "SELECT offset_value FROM dead_letters") == [(6,)]

    # The target of the group is the one that it loads into: the same function takes more by now.
    do(loader, f"UPDATE offset_batches SET target_table = '{lenient.name}' WHERE consumer_group = 'other'")
    pipeline = loader.pipeline([topic], sink=lenient, group_id="other")
    (replayed,) = replay_dead_letters(DeadLetterFilter("other"), pipeline, engine=loader.engine)

    assert (replayed.records, replayed.rows) == (1, 1)
    assert rows(loader.engine, "SELECT count(*) FROM lines WHERE _kafka_offset = 6") == [(1,)]


@pytest.mark.broker
@pytest.mark.parametrize("point", ["inside the transaction", "after COMMIT"])
def test_a_crash_and_a_retry_write_once(kafka: Kafka, inline_loader: Loader, topic: TopicFactory, point: str) -> None:
    functions.create(inline_loader.engine)
    name, run = topic(), TaskRun("run")
    produce(kafka, name, names(0, 6))
    url = inline_loader.engine.url.render_as_string(hide_password=False)
    options = {"sink": PROVED}
    with DyingLoad(Load(url, kafka.bootstrap_servers, (name,), run, options), point) as dying:
        dying.reach(point)
        dying.kill()

    retried = inline_loader(name, sink=PROVED, run=run)

    assert retried.rows == (6 if point == "inside the transaction" else 0)
    assert [offset for _, offset in written(inline_loader)] == list(range(6))
    assert rows(inline_loader.engine, "SELECT rows FROM totals") == [(6,)]
    assert proved(inline_loader, kafka_config=inline_loader.config) == (6, True)
