"""What else goes through several sinks: rewinds and replays that replace, dead letters again, new columns, and
`verify`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import (
    Avro,
    Branch,
    DeadLetters,
    ExtraColumns,
    Limits,
    Sql,
    SqlTable,
    TimeBounds,
    replay,
    verify,
)
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import ConfigurationError, DoubleLoadError, OlderLedgerError, VerificationError
from airflow_kafka_offsets.staging.rows import Record
from tests.support.avro import encode, wire
from tests.support.clients import produce, producer
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.openings import KEPT, at, produce_at
from tests.support.registry import fake_registry
from tests.support.rewinds import Rewinder

pytestmark = pytest.mark.server

ORDERS = SqlTable("orders")

LARGE = Branch(SqlTable("large"), Sql("SELECT id * 10 AS tenfold FROM records WHERE id >= 3"))

BOTH: list[SqlTable | Branch] = [ORDERS, LARGE]


@pytest.fixture
def loader(inline_loader: Loader, topic: TopicFactory) -> Loader:
    """One that has loaded eight records in batches of four, the third of them a dead letter."""
    made = topic()
    produce(inline_loader.kafka, made, [*names(0, 2), b"{no JSON", *names(3, 5)])
    inline_loader(made, sink=BOTH, limits=Limits(max_records=4), on_bad_record=DeadLetters())
    return inline_loader


def topic_of(loader: Loader) -> str:
    ((topic, _),) = positions(loader.engine)
    return topic


def written(loader: Loader, table: str) -> list[tuple[Any, ...]]:
    return rows(loader.engine, f"SELECT _batch_id, _kafka_offset FROM {table} ORDER BY 1, 2")


def offsets(loader: Loader, table: str) -> list[int]:
    return sorted(offset for _, offset in written(loader, table))


def do(loader: Loader, *statements: str) -> None:
    with loader.engine.begin() as conn:
        for statement in statements:
            conn.execute(sa.text(statement))


def proved(loader: Loader, **options: Any) -> tuple[int, int, bool]:
    coverage = verify("loader", sink=BOTH, engine=loader.engine, **options)
    return coverage.rows, coverage.dead_letters, coverage.output_checked


def violations(loader: Loader) -> list[str]:
    with pytest.raises(VerificationError) as raised:
        proved(loader)
    return [violation.words for violation in raised.value.violations]


def test_verify_proves_each_sink(loader: Loader, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert proved(loader) == (7 + 5, 1, True)

    assert "'large' has 5 rows, the number that was written of each batch" in caplog.text
    assert "'orders' has 7 rows, the number that was written of each batch" in caplog.text
    assert proved(loader, kafka_config=loader.config) == (12, 1, True)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "DELETE FROM large WHERE _kafka_offset = 5",
            "table 'large' holds 3 rows of batch 2, which wrote 4",
        ),
        (
            "DELETE FROM orders WHERE _kafka_offset = 5",
            "table 'orders' holds 3 rows of batch 2, which wrote 4",
        ),
        (
            "UPDATE orders SET _kafka_offset = 6 WHERE _kafka_offset = 5",
            "table 'orders' holds 4 rows of batch 2, but only 3 different offsets",
        ),
        (
            "UPDATE orders SET _batch_id = 9 WHERE _kafka_offset = 5",
            "table 'orders' holds 1 rows of batch 9, which the state tables do not know",
        ),
        ("UPDATE large SET _kafka_offset = 70 WHERE _kafka_offset = 5", "table 'large' holds rows of batch 2"),
    ],
)
def test_verify_names_the_branch_with_the_violation(loader: Loader, statement: str, message: str) -> None:
    do(loader, statement)

    found = violations(loader)
    assert any(message in words for words in found), found
    other = "orders" if "'large'" in message else "large"
    assert not any(other in words for words in found)


@pytest.mark.parametrize(("table", "rows"), [("orders", 7), ("large", 5)])
def test_one_of_several_targets_is_proved_alone(loader: Loader, table: str, rows: int) -> None:
    other = "large" if table == "orders" else "orders"
    do(loader, f"DELETE FROM {other} WHERE _kafka_offset = 5")

    for kafka_config in (None, loader.config):
        coverage = verify("loader", sink=SqlTable(table), engine=loader.engine, kafka_config=kafka_config)
        assert (coverage.rows, coverage.output_checked) == (rows, True)

    do(loader, f"DELETE FROM {table} WHERE _kafka_offset = 6")
    with pytest.raises(VerificationError, match=rf"table '{table}' holds 3 rows of batch 2, which wrote 4"):
        verify("loader", sink=SqlTable(table), engine=loader.engine)


def test_surplus_in_one_branch_hides_no_loss_in_another(loader: Loader) -> None:
    # As many rows in all as there were.
    copied = "_batch_id, _kafka_topic, _kafka_partition, _kafka_offset"
    do(
        loader,
        "DELETE FROM orders WHERE _kafka_offset = 5",
        f"INSERT INTO large ({copied}) SELECT {copied} FROM orders WHERE _kafka_offset = 6",
    )

    assert len(violations(loader)) == 2


def test_a_sink_that_is_gone_is_named(loader: Loader) -> None:
    do(loader, "DROP TABLE large")

    assert any("'large'" in words for words in violations(loader))


def test_rows_of_unknown_batches_in_one_sink_are_noticed(loader: Loader) -> None:
    do(loader, "UPDATE large SET _batch_id = 9 WHERE _kafka_offset = 5")
    produce(loader.kafka, topic_of(loader), names(8, 1))

    with pytest.raises(OlderLedgerError, match="'large' holds rows of batch 9"):
        loader(topic_of(loader), sink=BOTH)


def test_a_rewind_takes_back_the_rows_of_each_sink(loader: Loader) -> None:
    done = Rewinder(loader)("to-offset", 1, replace=BOTH)

    assert (done.rows_removed, done.dead_letters_removed) == (6 + 5, 1)
    assert (offsets(loader, "orders"), offsets(loader, "large")) == ([0], [])
    assert proved(loader) == (1, 0, True)
    loader(topic_of(loader), sink=BOTH, on_bad_record=DeadLetters())
    assert offsets(loader, "orders") == [0, 1, 3, 4, 5, 6, 7]
    assert offsets(loader, "large") == [3, 4, 5, 6, 7]
    assert proved(loader) == (12, 1, True)


def test_a_replay_replaces_the_rows_of_each_sink(loader: Loader) -> None:
    topic = topic_of(loader)

    def replay_range(**options: Any) -> int:
        return replay(
            loader.pipeline([topic], sink=BOTH, on_bad_record=DeadLetters()),
            {topic: {0: (2, 5)}},
            kafka_config=loader.config,
            engine=loader.engine,
            launcher=loader.launcher,
            **options,
        ).rows

    with pytest.raises(DoubleLoadError):
        replay_range()

    assert replay_range(replace=True) == 4
    assert written(loader, "orders") == [(1, 0), (1, 1), (2, 5), (2, 6), (2, 7), (3, 3), (3, 4)]
    assert written(loader, "large") == [(2, 5), (2, 6), (2, 7), (3, 3), (3, 4)]
    assert proved(loader) == (12, 1, True)
    do(loader, "DELETE FROM large WHERE _kafka_offset = 7")
    assert any("table 'large' holds 2 rows of batch 2, which wrote 3" in words for words in violations(loader))


@pytest.mark.parametrize("sink", [ORDERS, [ORDERS, SqlTable("elsewhere")]], ids=["one", "another list"])
def test_a_replay_into_some_of_the_sinks_is_refused(loader: Loader, sink: Any) -> None:
    topic = topic_of(loader)

    with pytest.raises(DoubleLoadError, match="would duplicate records in 'orders'"):
        replay(
            loader.pipeline([topic], sink=sink),
            {topic: {0: (3, 5)}},
            kafka_config=loader.config,
            engine=loader.engine,
            launcher=loader.launcher,
        )
    assert offsets(loader, "orders") == [0, 1, 3, 4, 5, 6, 7]


def test_other_names_of_the_tables_mean_the_same_sinks(loader: Loader) -> None:
    schema = sa.inspect(loader.engine).default_schema_name
    first = "ORDERS" if loader.engine.dialect.name == "sqlite" else "orders"
    respelt = [SqlTable(first, schema=schema), Branch(SqlTable("large", schema=schema), LARGE.transform)]
    topic = topic_of(loader)

    def coverage(sink: list[Any]) -> tuple[int, bool]:
        found = verify("loader", sink=sink, engine=loader.engine)
        return found.rows, found.output_checked

    assert coverage(respelt) == coverage(BOTH) == (7 + 5, True)
    produce(loader.kafka, topic, names(8, 2))
    loader(topic, sink=respelt, on_bad_record=DeadLetters())
    assert coverage(respelt) == coverage(BOTH) == (9 + 7, True)
    replay(
        loader.pipeline([topic], sink=respelt, on_bad_record=DeadLetters()),
        {topic: {0: (0, 2)}},
        kafka_config=loader.config,
        engine=loader.engine,
        launcher=loader.launcher,
        replace=True,
    )
    assert coverage(respelt) == coverage(BOTH) == (9 + 7, True)
    assert offsets(loader, "orders") == [0, 1, *range(3, 10)]


def test_a_replay_replaces_the_rows_of_a_span_of_time(inline_loader: Loader, topic: TopicFactory) -> None:
    name = topic(**KEPT)
    produce_at(inline_loader.kafka, name, [0, 5, 1, 2, 6, 3])
    inline_loader(name, sink=BOTH)

    replay(
        inline_loader.pipeline([name], sink=BOTH),
        TimeBounds(at(1), at(4), all_records=True),
        kafka_config=inline_loader.config,
        engine=inline_loader.engine,
        launcher=inline_loader.launcher,
        replace=True,
    )

    assert written(inline_loader, "orders") == [(1, 0), (1, 1), (1, 4), (2, 2), (2, 3), (2, 5)]
    assert written(inline_loader, "large") == [(1, 4), (2, 3), (2, 5)]
    assert proved(inline_loader) == (9, 0, True)


def test_a_sink_that_cannot_be_replaced_keeps_the_others(loader: Loader) -> None:
    do(loader, "ALTER TABLE large DROP COLUMN _kafka_partition")

    with pytest.raises(ConfigurationError, match="'large' has no column _kafka_partition"):
        Rewinder(loader)("to-offset", 1, replace=BOTH)
    assert offsets(loader, "orders") == [0, 1, 3, 4, 5, 6, 7]
    assert positions(loader.engine) == {(topic_of(loader), 0): 8}


def test_dead_letters_are_replayed_into_each_sink(loader: Loader) -> None:
    pipeline = loader.pipeline([topic_of(loader)], sink=BOTH)
    corrected = {1: {Record(topic_of(loader), 0, 2): json.dumps({"id": 30, "name": "late"}).encode()}}
    (replayed,) = replay_dead_letters(DeadLetterFilter("loader"), pipeline, engine=loader.engine, corrected=corrected)

    assert (replayed.records, replayed.rows) == (1, 2)
    assert (3, 2) in written(loader, "orders")
    assert (3, 2) in written(loader, "large")
    assert proved(loader) == (14, 0, True)


def test_a_dead_letter_that_one_sink_refuses_stays(loader: Loader) -> None:
    pipeline = loader.pipeline(
        [topic_of(loader)], sink=[Branch(ORDERS, Sql("SELECT 1 / (id - 30) AS id, name FROM records")), LARGE]
    )
    corrected = {1: {Record(topic_of(loader), 0, 2): json.dumps({"id": 30, "name": "late"}).encode()}}
    (replayed,) = replay_dead_letters(DeadLetterFilter("loader"), pipeline, engine=loader.engine, corrected=corrected)

    assert (replayed.records, replayed.rows, replayed.still_bad) == (0, 0, 1)
    assert offsets(loader, "large") == [3, 4, 5, 6, 7]
    assert proved(loader) == (12, 1, True)


V1 = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
V2 = V1 | {"fields": [*V1["fields"], {"name": "note", "type": ["null", "string"], "default": None}]}


@pytest.fixture
def avro_loader(kafka: Any, engine: Engine) -> Iterator[tuple[Loader, Any]]:
    with fake_registry() as registry:
        yield Loader(kafka, engine, InlineLauncher(), connections={"registry": registry.config}), registry


def test_each_sink_gets_the_columns_that_its_rows_have(avro_loader: tuple[Loader, Any], topic: TopicFactory) -> None:
    loader, registry = avro_loader
    name, writer = topic(), producer(loader.kafka)
    options: dict[str, Any] = {
        "value_format": Avro(registry_conn_id="registry"),
        "sink": BOTH,
        "extra_columns": ExtraColumns(on_new_field="add"),
    }
    for number, (schema, value) in enumerate(((V1, {"id": 3}), (V2, {"id": 4, "note": "new"}))):
        registry.register(f"{name}-value", schema)
        writer.produce(name, partition=0, value=wire(number + 1, encode(schema, value)))
        assert writer.flush(30) == 0
        loader(name, **options)

    assert rows(loader.engine, "SELECT id, note FROM orders ORDER BY id") == [(3, None), (4, "new")]
    assert rows(loader.engine, "SELECT tenfold FROM large ORDER BY 1") == [(30,), (40,)]
    added = rows(loader.engine, "SELECT added_columns FROM offset_batches ORDER BY batch_id")
    assert added == [(None,), ('["orders.note"]',)]
    # A transform that selects the new field adds it to its own sink.
    wider = Branch(SqlTable("large"), Sql("SELECT id * 10 AS tenfold, note FROM records WHERE id >= 3"))
    writer.produce(name, partition=0, value=wire(2, encode(V2, {"id": 5, "note": "newer"})))
    assert writer.flush(30) == 0
    loader(name, **options | {"sink": [ORDERS, wider]})
    assert rows(loader.engine, "SELECT tenfold, note FROM large ORDER BY 1") == [(30, None), (40, None), (50, "newer")]


def test_the_columns_of_the_records_may_be_those_of_a_sink(
    avro_loader: tuple[Loader, Any], topic: TopicFactory
) -> None:
    loader, registry = avro_loader
    name, writer = topic(), producer(loader.kafka)
    do(loader, "CREATE TABLE orders (note TEXT, _kafka_offset BIGINT)")
    number = registry.register(f"{name}-value", V2)
    writer.produce(name, partition=0, value=wire(number, encode(V2, {"id": 4, "note": "new"})))
    assert writer.flush(30) == 0
    noted = Branch(SqlTable("noted"), Sql("SELECT upper(note) AS note FROM records"))

    loader(name, value_format=Avro(registry_conn_id="registry", columns_from="target"), sink=[ORDERS, noted])

    assert rows(loader.engine, "SELECT note FROM orders") == [("new",)]
    assert rows(loader.engine, "SELECT note FROM noted") == [("NEW",)]
