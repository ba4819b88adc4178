"""What a schema id meant is stored with the batch that read it, and read again where the registry no longer knows the
id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import BatchBounds, ExtraColumns, Staging
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter, read_dead_letters, summary
from airflow_kafka_offsets.exceptions import RecordError, RegistryUnavailableError
from airflow_kafka_offsets.formats import schema_registry
from airflow_kafka_offsets.formats.avro_format import Avro
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.ledger.batch_notes import schemas_of_group
from airflow_kafka_offsets.ledger.dead_letter_batches import Replayed
from airflow_kafka_offsets.ledger.overview import batch_parts
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.sinks.sql.connected_table import SqlTarget
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import Launcher
from airflow_kafka_offsets.spark.launchers import InProcessLauncher
from tests.support.avro import encode, wire
from tests.support.clients import Kafka, producer
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, rows
from tests.support.memory_log import MemoryLog
from tests.support.registry import FakeRegistry, fake_registry
from tests.support.replays import Replayer
from tests.support.verifying import LEFT_OUT

V1: dict[str, Any] = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "int"}]}
V2: dict[str, Any] = V1 | {"fields": [{"name": "id", "type": "long"}]}
# Declared columns need no schema of the subject.
AVRO = Avro("id BIGINT", registry_conn_id="registry")
READ = (
    "SELECT s.batch_id, s.part, s.schema_id, t.type, t.texts FROM batch_schemas s "
    "JOIN schema_texts t ON t.digest = s.digest ORDER BY 1, 2, 3"
)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    return MemoryLog().install(monkeypatch)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    monkeypatch.setattr(schema_registry, "_PAUSE_SECONDS", 0.0)
    with fake_registry() as registry:
        yield registry


@pytest.fixture
def loader(kafka: Kafka, registry: FakeRegistry, tmp_path: Path) -> Iterator[Loader]:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/warehouse.db")
    yield Loader(kafka, engine, InlineLauncher(), connections={"registry": registry.config})
    engine.dispose()


def put(loader: Loader, topic: str, *records: tuple[bytes | None, bytes | None]) -> None:
    writer = producer(loader.kafka)
    for key, value in records:
        writer.produce(topic, partition=0, key=key, value=value)
    assert writer.flush(30) == 0


def value(number: int, schema_id: int, schema: Any = V1) -> bytes:
    return wire(schema_id, encode(schema, {"id": number}))


def texts(*schemas: Any) -> str:
    return json.dumps([schema if isinstance(schema, str) else json.dumps(schema) for schema in schemas])


@pytest.fixture
def orders(loader: Loader, registry: FakeRegistry, topic: TopicFactory) -> str:
    """A topic whose registry has the first schema when a load begins."""
    name = topic()
    assert registry.register(f"{name}-value", V1) == 1
    return name


def forget(registry: FakeRegistry) -> None:
    registry.schemas.clear()
    registry.subjects.clear()


@pytest.mark.parametrize("launcher", [InlineLauncher, InProcessLauncher], ids=["here", "in child processes"])
def test_ids_and_texts_of_values_and_keys_are_stored_with_each_batch(
    loader: Loader, registry: FakeRegistry, orders: str, launcher: type[Launcher]
) -> None:
    loader.launcher = launcher()
    registry.register("elsewhere", V2)
    registry.register(f"{orders}-key", '"long"')
    key = wire(3, encode("long", 5))
    options: dict[str, Any] = {
        "value_format": AVRO,
        "extra_columns": ExtraColumns(key_format=Avro("k BIGINT", "registry", column="k")),
    }
    # Of four slices.
    options["staging"] = Staging(slice_offsets=1)
    put(loader, orders, (key, value(1, 1)), (None, value(2, 2, V2)), (None, value(3, 2, V2)), (key, None))
    loader(orders, **options)
    put(loader, orders, (None, value(4, 1)))
    loader(orders, **options)

    long = json.dumps(['"long"'])
    assert rows(loader.engine, READ) == [
        (1, "key", 3, AVRO.stored_kind, long),
        (1, "value", 1, AVRO.stored_kind, texts(V1)),
        # One that a task has asked for: its subject is not that of the topic.
        (1, "value", 2, AVRO.stored_kind, texts(V2)),
        (2, "value", 1, AVRO.stored_kind, texts(V1)),
    ]
    assert rows(loader.engine, "SELECT count(*) FROM schema_texts") == [(3,)]


def test_a_batch_shows_what_it_read(loader: Loader, orders: str) -> None:
    put(loader, orders, (None, value(1, 1)))
    loader(orders, value_format=AVRO)

    with loader.engine.connect() as conn:
        found = batch_parts(conn, Tables(), "loader", 1)

    (read,) = [{name: row[name] for name in ("of", "schema_id", "type", "schema")} for row in found if row["of"]]
    assert read == {"of": "value", "schema_id": 1, "type": "avro", "schema": texts(V1)}
    assert [row["part"] for row in found] == ["range", "schema"]
    with loader.engine.connect() as conn:
        without = batch_parts(conn, Tables(), "loader", 1, with_texts=False)
    assert without == [row | {"schema": None} for row in found]


def test_a_batch_that_an_earlier_attempt_staged_is_stored_with_what_that_read(
    loader: Loader, registry: FakeRegistry, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(loader, orders, (None, value(1, 1)))
    prepare = SqlTarget.write
    monkeypatch.setattr(SqlTarget, "write", lambda *_: (_ for _ in ()).throw(MemoryError("killed")))
    with pytest.raises(MemoryError):
        loader(orders, value_format=AVRO)
    monkeypatch.setattr(SqlTarget, "write", prepare)
    forget(registry)

    loader(orders, value_format=AVRO)

    assert len(loader.launcher.jobs) == 1
    assert rows(loader.engine, READ) == [(1, "value", 1, AVRO.stored_kind, texts(V1))]


def test_what_an_id_meant_is_known_after_a_stay_in_another_registry(
    loader: Loader, registry: FakeRegistry, orders: str
) -> None:
    loader.connections = {**loader.connections, "other": registry.config}
    for number, record_format in enumerate((AVRO, replace(AVRO, registry_conn_id="other"))):
        put(loader, orders, (None, value(number, 1)))
        loader(orders, value_format=record_format)
    forget(registry)

    for batch_id, conn_id in ((1, "registry"), (2, "other")):
        record_format = replace(AVRO, registry_conn_id=conn_id)
        Replayer(loader)(orders, BatchBounds(batch_id), value_format=record_format, sink=SqlTable(conn_id))
        assert rows(loader.engine, f"SELECT id FROM {conn_id}") == [(batch_id - 1,)]


@pytest.mark.parametrize("elsewhere", ["context", "connection"])
def test_what_an_id_meant_in_another_registry_or_context_is_not_what_it_means_here(
    loader: Loader, registry: FakeRegistry, orders: str, elsewhere: str
) -> None:
    put(loader, orders, (None, value(1, 1)))
    loader(orders, value_format=AVRO)
    forget(registry)
    loader.connections = {**loader.connections, "other": registry.config}
    changed = {
        "context": replace(AVRO, subject=f":.eu:{orders}-value"),
        "connection": replace(AVRO, registry_conn_id="other"),
    }

    with pytest.raises(RecordError, match="1"):
        Replayer(loader)(orders, {orders: {0: (0, 1)}}, value_format=changed[elsewhere], sink=SqlTable("again"))


def test_a_replay_reads_ids_that_the_registry_does_not_know_any_more(
    loader: Loader, registry: FakeRegistry, orders: str
) -> None:
    put(loader, orders, (None, value(1, 1)), (None, value(2, 1)))
    loader(orders, value_format=AVRO)
    forget(registry)

    def again(group: str = "loader") -> None:
        Replayer(loader)(orders, {orders: {0: (0, 2)}}, value_format=AVRO, group_id=group)

    again()

    assert rows(loader.engine, "SELECT id FROM elsewhere ORDER BY id") == [(1,), (2,)]
    assert [row[:3] for row in rows(loader.engine, READ)] == [(1, "value", 1), (2, "value", 1)]
    # What a group has never read is unknown to it.
    with pytest.raises(RecordError, match=r"schema 1: the schema registry at .* has none with this id"):
        again("other")


def test_a_text_that_is_larger_than_all_may_be_is_not_read(loader: Loader, orders: str) -> None:
    put(loader, orders, (None, value(1, 1)))
    loader(orders, value_format=AVRO)
    with loader.engine.begin() as conn:
        assert len(schemas_of_group(conn, Tables(), "loader")) == 1
        conn.execute(sa.text("UPDATE schema_texts SET texts = :huge"), {"huge": json.dumps(["x" * (17 << 20)])})
        assert schemas_of_group(conn, Tables(), "loader") == []


@pytest.mark.parametrize("of_subject", [True, False])
def test_stored_texts_are_not_read_while_the_registry_knows_the_id(
    loader: Loader, registry: FakeRegistry, orders: str, of_subject: bool
) -> None:
    """Who may write the state tables, or staged files, does not decide what other batches mean."""
    pair: dict[str, Any] = V1 | {"fields": [{"name": name, "type": "int"} for name in ("payer", "payee")]}
    number = registry.register(f"{orders}-value" if of_subject else "elsewhere", pair)
    put(loader, orders, (None, wire(number, encode(pair, {"payer": 1, "payee": 2}))))
    options: dict[str, Any] = {"value_format": Avro("payer INT, payee INT", registry_conn_id="registry")}
    loader(orders, **options)
    forged = json.dumps(pair | {"fields": pair["fields"][::-1]})
    with loader.engine.begin() as conn:
        conn.execute(sa.text("UPDATE schema_texts SET texts = :forged"), {"forged": json.dumps([forged])})

    Replayer(loader)(orders, {orders: {0: (0, 1)}}, **options)

    assert rows(loader.engine, "SELECT payer, payee FROM elsewhere") == [(1, 2)]


def dead_letters_again(loader: Loader, orders: str, **options: Any) -> list[Replayed]:
    pipeline = loader.pipeline([orders], **options)
    return replay_dead_letters(
        DeadLetterFilter("loader"), pipeline, engine=loader.engine, connections=loader.connections
    )


def test_dead_letters_are_replayed_with_ids_that_the_registry_does_not_know_any_more(
    loader: Loader, registry: FakeRegistry, orders: str
) -> None:
    put(loader, orders, (None, value(1, 1)))
    # The column is not one of the schema.
    loader(orders, value_format=Avro("id BOOLEAN", registry_conn_id="registry"), **LEFT_OUT)
    forget(registry)
    with loader.engine.begin() as conn:
        conn.execute(sa.text("DROP TABLE target"))

    assert dead_letters_again(loader, orders, value_format=AVRO) == [Replayed(1, 1, 1, 0, 2)]

    assert rows(loader.engine, "SELECT id FROM target") == [(1,)]


def test_a_replay_of_dead_letters_stores_what_it_read(loader: Loader, registry: FakeRegistry, orders: str) -> None:
    put(loader, orders, (None, value(2, 2, V2)), (None, value(1, 1)))
    loader(orders, value_format=AVRO, **LEFT_OUT)
    assert rows(loader.engine, READ) == [(1, "value", 1, AVRO.stored_kind, texts(V1))]
    registry.register(f"{orders}-value", V2)

    assert dead_letters_again(loader, orders, value_format=AVRO) == [Replayed(1, 1, 1, 0, 2)]

    assert [row[2] for row in rows(loader.engine, READ)] == [1, 2]


def test_a_registry_that_does_not_answer_is_an_error_of_replays_too(
    loader: Loader, registry: FakeRegistry, orders: str
) -> None:
    put(loader, orders, (None, wire(9, b"\x02")))
    loader(orders, value_format=AVRO, **LEFT_OUT)
    registry.answers = [500] * 4

    with pytest.raises(RegistryUnavailableError):
        dead_letters_again(loader, orders, value_format=AVRO)


class TestDeadLetters:
    def test_dead_letters_have_the_id_of_their_schema(self, loader: Loader, orders: str) -> None:
        good = value(1, 1)
        put(loader, orders, (None, wire(77, b"\x02")), (None, good[:-1]), (None, b"\0\0"), (None, b"{ABCDEF"))
        loader(orders, value_format=AVRO, **LEFT_OUT)

        with loader.engine.connect() as conn:
            found = {
                dead_letter.offset: dead_letter.schema_id
                for dead_letter in read_dead_letters(conn, Tables(), DeadLetterFilter("loader"))
            }
            chosen = [
                dead_letter.offset
                for dead_letter in read_dead_letters(conn, Tables(), DeadLetterFilter("loader", schema_id=77))
            ]
            counts = [(row["schema_id"], row["records"]) for row in summary(conn, Tables(), DeadLetterFilter("loader"))]
            classes = set(conn.scalars(sa.text("SELECT error_class FROM dead_letters")))

        assert found == {0: 77, 1: 1, 2: None, 3: None}
        assert chosen == [0]
        assert sorted(counts, key=str) == [(1, 1), (77, 1), (None, 2)]
        assert classes == {"value"}

    def test_dead_letters_of_the_target_have_the_id_of_their_schema(self, loader: Loader, orders: str) -> None:
        with loader.engine.begin() as conn:
            conn.execute(sa.text("CREATE TABLE target (id BIGINT CHECK (id < 5))"))
        put(loader, orders, (None, value(7, 1)))
        loader(orders, value_format=AVRO, **LEFT_OUT)

        assert rows(loader.engine, "SELECT error_class, schema_id FROM dead_letters") == [("target", 1)]

    def test_no_other_format_has_one(self, loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        put(loader, name, (None, value(7, 1)))
        loader(name, value_format=Json("id BIGINT"), **LEFT_OUT)

        assert rows(loader.engine, "SELECT error_class, schema_id FROM dead_letters") == [("value", None)]
