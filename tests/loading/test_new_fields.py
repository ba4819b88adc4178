"""Fields of records that are no columns: they are ignored, fail the load, or become columns of the target in the
commit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyiceberg.catalog import load_catalog
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeadLetters, ExtraColumns, IcebergTable, Limits
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DatabaseUnavailableError,
    NewFieldError,
    NewSchemaError,
    TargetError,
)
from airflow_kafka_offsets.formats import registry_format
from airflow_kafka_offsets.formats.avro_format import Avro
from airflow_kafka_offsets.formats.record_format import OnNewField
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.replaying.replay import replay
from airflow_kafka_offsets.sinks.sql import connected_table
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.transforms.sql import Sql
from tests.support.avro import encode, wire
from tests.support.clients import Kafka, producer
from tests.support.database_faults import Meddled
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, positions, rows
from tests.support.memory_log import MemoryLog
from tests.support.prefetch import planned_ahead
from tests.support.registry import FakeRegistry, fake_registry

AVRO = Avro(registry_conn_id="registry")


def _schema(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "order", "fields": [{"name": "id", "type": "int"}, *fields]}


V1 = _schema()
V2 = _schema({"name": "note", "type": ["null", "string"], "default": None})
V3 = _schema({"name": "100% of: it", "type": "double"})


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    return MemoryLog().install(monkeypatch)


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


@pytest.fixture
def loader(kafka: Kafka, registry: FakeRegistry, engine: Engine) -> Loader:
    return Loader(kafka, engine, InlineLauncher(), connections={"registry": registry.config})


class Orders:
    """A topic of orders, whose schemas are registered one after another."""

    def __init__(self, loader: Loader, registry: FakeRegistry, topic: str) -> None:
        self._loader, self._registry, self.topic = loader, registry, topic

    def register(self, schema: dict[str, Any]) -> int:
        return self._registry.register(f"{self.topic}-value", schema)

    def put(self, number: int, schema: dict[str, Any], **value: Any) -> None:
        self.put_into(0, number, schema, **value)

    def put_into(self, partition: int, number: int, schema: dict[str, Any], **value: Any) -> None:
        writer = producer(self._loader.kafka)
        writer.produce(self.topic, partition=partition, value=wire(number, encode(schema, value)))
        assert writer.flush(30) == 0


@pytest.fixture
def orders(loader: Loader, registry: FakeRegistry, topic: TopicFactory) -> Orders:
    """A topic with a record of the first schema, which is loaded."""
    orders = Orders(loader, registry, topic())
    orders.put(orders.register(V1), V1, id=1)
    loader(orders.topic, value_format=AVRO)
    return orders


def columns(engine: Engine) -> list[str]:
    return [column["name"] for column in sa.inspect(engine).get_columns("target") if column["name"][0] != "_"]


def added(engine: Engine) -> list[Any]:
    """What the history of the batches has."""
    found = rows(engine, "SELECT added_columns FROM offset_batches ORDER BY batch_id")
    return [names and json.loads(names) for (names,) in found]


def test_a_new_field_becomes_a_column_in_the_commit_and_in_the_history(loader: Loader, orders: Orders) -> None:
    of_nothing = V2 | {"fields": [*V2["fields"], {"name": "gone", "type": "null"}]}
    orders.put(orders.register(of_nothing), of_nothing, id=2, note="größer", gone=None)
    orders.put(orders.register(V3), V3, id=3, **{"100% of: it": 0.5})

    assert loader(orders.topic, value_format=AVRO, extra_columns=ExtraColumns(on_new_field="add")).rows == 2

    assert columns(loader.engine) == ["id", "100% of: it", "note"]
    found = rows(loader.engine, 'SELECT id, "100% of\\: it", note FROM target ORDER BY id')
    assert found == [(1, None, None), (2, None, "größer"), (3, 0.5, None)]
    assert added(loader.engine) == [None, ["100% of: it", "note"]]
    assert_exactly_once(loader.engine)


def test_the_newest_rows_of_a_batch_keep_the_columns_that_it_adds(
    loader: Loader, orders: Orders, topic: TopicFactory, tmp_path: Path
) -> None:
    orders.topic = topic(partitions=2)
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    sink = IcebergTable("shop.orders", catalog=catalog, upsert_key=("id",), partition_by=("bucket(2, id)",))
    for schema in (V1, V2):
        number = orders.register(schema)
        for partition, keys in ((0, (1, 2, 3)), (1, (2, 3))):  # a file each, of the second of which all rows stay
            for key in keys:
                orders.put_into(partition, number, schema, id=key, **({"note": f"n{key}"} if schema is V2 else {}))
        loader(
            orders.topic,
            group_id="lake",
            value_format=AVRO,
            sink=sink,
            extra_columns=ExtraColumns(on_new_field="add"),
        )
    found = load_catalog("default", **catalog).load_table("shop.orders").scan().to_arrow()
    notes = found.select(["id", "note"]).sort_by("id").to_pylist()
    assert notes == [{"id": value, "note": f"n{value}"} for value in (1, 2, 3)]


def test_no_batch_is_staged_before_the_columns_are_added(loader: Loader, orders: Orders) -> None:
    for number in (2, 3):
        orders.put(orders.register(V2), V2, id=number, note="n")
    loader(
        orders.topic, value_format=AVRO, extra_columns=ExtraColumns(on_new_field="add"), limits=Limits(max_records=1)
    )
    assert added(loader.engine) == [None, ["note"], None]
    assert planned_ahead(loader.engine) == 0

    for number in (4, 5):
        orders.put(2, V2, id=number, note="n")
    loader(
        orders.topic, value_format=AVRO, extra_columns=ExtraColumns(on_new_field="fail"), limits=Limits(max_records=1)
    )
    assert planned_ahead(loader.engine) == 1


def test_without_new_fields_nothing_is_added(loader: Loader, orders: Orders) -> None:
    orders.put(1, V1, id=2)
    loader(orders.topic, value_format=AVRO, extra_columns=ExtraColumns(on_new_field="add"))
    assert columns(loader.engine) == ["id"]
    assert added(loader.engine) == [None, None]


def test_declared_columns_stay_as_they_are_declared(loader: Loader, orders: Orders) -> None:
    orders.put(orders.register(V2), V2, id=2, note="n")
    loader(
        orders.topic,
        value_format=Avro("id BIGINT", registry_conn_id="registry"),
        extra_columns=ExtraColumns(on_new_field="add"),
    )
    assert rows(loader.engine, "SELECT id, note FROM target ORDER BY id") == [(1, None), (2, "n")]
    assert loader.launcher.jobs[-1].columns.field("id").type == "int64"


def test_columns_are_added_in_the_transaction_of_the_rows(loader: Loader, orders: Orders) -> None:
    def fails(_: Any) -> None:
        raise RuntimeError("in the commit")

    orders.put(orders.register(V2), V2, id=2, note="n")
    with pytest.raises(RuntimeError, match="in the commit"):
        loader(
            orders.topic,
            value_format=AVRO,
            extra_columns=ExtraColumns(on_new_field="add"),
            sink=Meddled("target", before_write=fails),
        )
    assert columns(loader.engine) == ["id"]
    assert loader(orders.topic, value_format=AVRO, extra_columns=ExtraColumns(on_new_field="add")).rows == 1
    assert columns(loader.engine) == ["id", "note"]
    assert_exactly_once(loader.engine)


def test_another_load_adds_the_same_column_first(loader: Loader, orders: Orders) -> None:
    def add_note() -> None:
        with loader.engine.begin() as conn:
            conn.execute(sa.text("ALTER TABLE target ADD COLUMN note TEXT"))

    orders.put(orders.register(V2), V2, id=2, note="n")
    sink = Meddled("target", after_check=_second_time(add_note))
    assert loader(orders.topic, value_format=AVRO, extra_columns=ExtraColumns(on_new_field="add"), sink=sink).rows == 1
    assert rows(loader.engine, "SELECT note FROM target WHERE id = 2") == [("n",)]
    assert added(loader.engine) == [None, None]


def _second_time(happens: Any) -> Any:
    calls = iter((None, happens))
    return lambda: (call := next(calls, None)) is not None and call()


def test_new_fields_are_ignored_by_default(loader: Loader, orders: Orders) -> None:
    orders.put(orders.register(V2), V2, id=2, note="n")
    loader(orders.topic, value_format=Avro("id INT", registry_conn_id="registry"))
    assert columns(loader.engine) == ["id"]
    assert positions(loader.engine) == {(orders.topic, 0): 2}


def test_a_new_field_fails_the_load(loader: Loader, orders: Orders) -> None:
    orders.put(1, V1, id=2)
    orders.put(orders.register(V2), V2, id=3, note="n")
    declared = Avro("id INT", registry_conn_id="registry")
    with pytest.raises(NewFieldError) as error:
        loader(
            orders.topic,
            value_format=declared,
            extra_columns=ExtraColumns(on_new_field="fail"),
            on_bad_record=DeadLetters(),
        )
    assert f"{orders.topic}[0], offsets 1..2: Schema 2 has fields without a column: 'note'" in str(error.value)
    assert not error.value.retriable
    assert positions(loader.engine) == {(orders.topic, 0): 1}
    wide = Avro("id INT, note STRING", registry_conn_id="registry")
    with pytest.raises(TargetError, match="ALTER TABLE target ADD COLUMN note TEXT"):
        loader(orders.topic, value_format=wide, extra_columns=ExtraColumns(on_new_field="fail"))


def test_a_schema_that_is_registered_after_planning_is_found_by_the_next_try(loader: Loader, orders: Orders) -> None:
    number = orders.register(V2)
    orders.put(number, V2, id=2, note="n")
    late = orders.register(V3)
    orders._registry.late.add(late)
    orders.put(late, V3, id=3, **{"100% of: it": 1.5})
    with pytest.raises(NewSchemaError, match="Schema 3 has fields without a column: '100% of: it'") as error:
        loader(orders.topic, value_format=AVRO, extra_columns=ExtraColumns(on_new_field="add"))
    assert error.value.retriable
    assert columns(loader.engine) == ["id"]
    orders._registry.late.clear()
    assert loader(orders.topic, value_format=AVRO, extra_columns=ExtraColumns(on_new_field="add")).rows == 2
    assert columns(loader.engine) == ["id", "100% of: it", "note"]


@pytest.mark.parametrize("case", ["of another subject", "of a deleted version", "of a version before those fetched"])
def test_a_schema_that_no_later_try_fetches_makes_records_bad(
    loader: Loader, orders: Orders, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_format, "_VERSIONS", 1)
    subject = f"{orders.topic}-value"
    number = orders._registry.register("payments-value" if case == "of another subject" else subject, V3)
    newest = orders.register(V2)
    if case == "of a deleted version":
        orders._registry.subjects[subject].remove(number)
    orders.put(number, V3, id=3, **{"100% of: it": 1.5})
    orders.put(newest, V2, id=2, note="n")
    adding = ExtraColumns(on_new_field="add")
    result = loader(orders.topic, value_format=AVRO, extra_columns=adding, on_bad_record=DeadLetters())
    assert (result.rows, result.dead_letters) == (1, 1)
    assert columns(loader.engine) == ["id", "note"]
    ((reason,),) = rows(loader.engine, "SELECT error FROM dead_letters")
    assert reason.startswith(f"schema {number}: its field '100% of: it' is no column, and on_new_field='add' does not")


def test_an_alias_is_no_new_field(loader: Loader, registry: FakeRegistry, topic: TopicFactory) -> None:
    orders = Orders(loader, registry, topic())
    orders.put(orders.register(V2), V2, id=1, note="n")
    renamed = _schema({"name": "remark", "type": ["null", "string"], "default": None, "aliases": ["note"]})
    orders.register(renamed)
    loader(orders.topic, value_format=AVRO, extra_columns=ExtraColumns(on_new_field="add"))
    assert rows(loader.engine, "SELECT id, remark FROM target") == [(1, "n")]
    assert columns(loader.engine) == ["id", "remark"]


def test_unsupported_new_field_is_named_before_reading(loader: Loader, orders: Orders) -> None:
    nested = _schema({"name": "tags", "type": {"type": "array", "items": "string"}})
    orders.put(orders.register(nested), nested, id=2, tags=["a"])
    with pytest.raises(TargetError, match=r"'tags' is ARRAY<.*SqlTable stores no nested columns"):
        loader(orders.topic, value_format=AVRO, extra_columns=ExtraColumns(on_new_field="add"))
    assert len(loader.launcher.jobs) == 1


def test_a_field_of_an_older_schema_that_cannot_be_a_column_makes_records_with_it_bad(
    loader: Loader, orders: Orders
) -> None:
    with loader.engine.begin() as conn:
        conn.execute(sa.text("ALTER TABLE target ADD COLUMN own VARCHAR(10)"))
        conn.execute(sa.text("ALTER TABLE target ADD COLUMN amount INTEGER"))
    tags = {"type": "array", "items": "string"}
    older = {"ID": "int", "_batch_id": "int", "x" * 64: "int", "tags": tags, "at": "int", "own": "string", "Own": "int"}
    # The types of SQLite differ in name only.
    has_types = loader.engine.dialect.name != "sqlite"
    older |= {"amount": "string", "xmin": "int"} if has_types else {}
    numbers = [orders.register(_schema({"name": name, "type": kind})) for name, kind in older.items()]
    orders.put(orders.register(V2), V2, id=2, note="n")
    for number, (name, kind) in zip(numbers, older.items(), strict=True):
        value: Any = {"tags": [], "own": "x", "amount": "x"}.get(name, 5)
        orders.put(number, _schema({"name": name, "type": kind}), id=3, **{name: value})

    result = loader(
        orders.topic,
        value_format=AVRO,
        extra_columns=ExtraColumns(on_new_field="add", metadata={"at": "timestamp"}),
        on_bad_record=DeadLetters(),
    )

    assert (result.rows, result.dead_letters) == (2, 6 + 2 * has_types)
    del older["own"]
    assert columns(loader.engine) == ["id", "own", "amount", "note", "at"]
    reasons = [reason for (reason,) in rows(loader.engine, "SELECT error FROM dead_letters ORDER BY offset_value")]
    whys = ["in case", "reserved", "longer than", "no nested", "another", "in case", "is INTEGER, the rows hold STRING"]
    whys += ["has a column 'xmin' of its own"]
    for reason, name, why in zip(reasons, older, whys[: len(older)], strict=True):
        assert f"its field {name!r} cannot become a column: " in reason
        assert why in reason


def test_fields_of_older_schemas_for_which_a_table_has_no_room_make_records_bad(
    loader: Loader, orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connected_table, "_MOST_COLUMNS", len(sa.inspect(loader.engine).get_columns("target")) + 2)
    wide = _schema(*({"name": name, "type": "int"} for name in "abc"))
    number = orders.register(wide)
    orders.put(orders.register(V2), V2, id=2, note="n")
    orders.put(number, wide, id=3, a=1, b=2, c=3)

    result = loader(
        orders.topic,
        value_format=AVRO,
        extra_columns=ExtraColumns(on_new_field="add"),
        on_bad_record=DeadLetters(),
    )

    assert (result.rows, result.dead_letters) == (1, 1)
    assert columns(loader.engine) == ["id", "note", "a", "b"]
    ((reason,),) = rows(loader.engine, "SELECT error FROM dead_letters")
    assert "its field 'c' cannot become a column: the table has no room for it" in reason


@pytest.mark.parametrize("on_new_field", ["add", "fail"])
def test_a_format_without_schemas_cannot_know_new_fields(
    loader: Loader, orders: Orders, on_new_field: OnNewField
) -> None:
    with pytest.raises(
        ConfigurationError, match=r"needs a format whose records have schemas, such as Avro\(…\): a field that Json"
    ):
        loader(orders.topic, value_format=Json("id BIGINT"), extra_columns=ExtraColumns(on_new_field=on_new_field))


def test_the_target_decides_the_columns(loader: Loader, orders: Orders) -> None:
    with loader.engine.begin() as conn:
        conn.execute(sa.text("ALTER TABLE target ADD COLUMN note VARCHAR(10)"))
        conn.execute(sa.text("ALTER TABLE target ADD COLUMN own VARCHAR(10) DEFAULT 'x'"))
    orders.put(orders.register(V2), V2, id=2, note="n")
    orders.put(orders.register(V3), V3, id=3, **{"100% of: it": 0.5})

    loader(orders.topic, value_format=Avro(registry_conn_id="registry", columns_from="target"))

    found = rows(loader.engine, "SELECT id, note, own FROM target ORDER BY id")
    assert found == [(1, None, "x"), (2, "n", "x"), (3, None, "x")]


def test_a_target_that_is_to_decide_the_columns_has_to_exist(loader: Loader, orders: Orders) -> None:
    of_target = Avro(registry_conn_id="registry", columns_from="target")
    with pytest.raises(ConfigurationError, match="the columns of 'elsewhere', which does not exist: create it"):
        loader(orders.topic, value_format=of_target, sink=SqlTable("elsewhere"), group_id="other")
    with loader.engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE elsewhere (other INT)"))
    with pytest.raises(ConfigurationError, match="'elsewhere', which has none of the fields: 'id'"):
        loader(orders.topic, value_format=of_target, sink=SqlTable("elsewhere"), group_id="other")


@pytest.mark.parametrize("given", [{"ddl": "id INT", "columns_from": "target"}, {"columns_from": "table"}])
def test_contradictions_are_refused(loader: Loader, orders: Orders, given: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="columns_from='schema' or 'target'; got columns_from='ta"):
        Avro(registry_conn_id="registry", **given).columns()  # type: ignore[arg-type]


def test_a_column_of_the_target_that_only_looks_like_a_field_is_no_column_of_nulls(
    loader: Loader, orders: Orders
) -> None:
    with loader.engine.begin() as conn:
        conn.execute(sa.text('ALTER TABLE target ADD COLUMN "Note" VARCHAR(10)'))
    orders.put(orders.register(V2), V2, id=2, note="n")
    with pytest.raises(ConfigurationError, match=r"'Note' of 'target' would stay null: .* field 'note' differ in case"):
        loader(orders.topic, value_format=Avro(registry_conn_id="registry", columns_from="target"))
    with pytest.raises(
        TargetError, match="has a column 'Note', and cannot get column 'note', whose name differs in case"
    ):
        loader(orders.topic, value_format=AVRO, extra_columns=ExtraColumns(on_new_field="add"))
    assert len(loader.launcher.jobs) == 1


def test_files_that_were_staged_without_a_field_are_not_committed_by_a_load_that_it_fails(
    loader: Loader, orders: Orders
) -> None:
    def fails(_: Any) -> None:
        raise RuntimeError("in the commit")

    orders.put(orders.register(V2), V2, id=2, note="n")
    declared: dict[str, Any] = {"value_format": Avro("id INT", registry_conn_id="registry")}
    with pytest.raises(RuntimeError, match="in the commit"):
        loader(orders.topic, sink=Meddled("target", before_write=fails), **declared)

    with pytest.raises(NewFieldError, match="has fields without a column: 'note'"):
        loader(orders.topic, extra_columns=ExtraColumns(on_new_field="fail"), **declared)

    assert positions(loader.engine) == {(orders.topic, 0): 1}


def test_a_database_that_is_away_when_the_target_decides_the_columns_is_an_outage(
    loader: Loader, orders: Orders
) -> None:
    away = replace(loader, engine=sa.create_engine("postgresql+psycopg://u:p@127.0.0.1:1/none"))
    of_target = Avro(registry_conn_id="registry", columns_from="target")
    with pytest.raises(DatabaseUnavailableError, match="was not loaded to the end"):
        away(orders.topic, value_format=of_target)
    pipeline = loader.pipeline([orders.topic], value_format=of_target)
    with pytest.raises(DatabaseUnavailableError, match="were not replayed to the end"):
        replay_dead_letters(DeadLetterFilter("loader"), pipeline, engine=away.engine, connections=loader.connections)
    with pytest.raises(DatabaseUnavailableError, match="was not finished"):
        replay(
            pipeline,
            {orders.topic: {0: (0, 1)}},
            kafka_config=loader.config,
            engine=away.engine,
            launcher=loader.launcher,
            connections=loader.connections,
        )


@pytest.mark.parametrize("query", ["SELECT * FROM records", "SELECT id, note FROM records"], ids=["passed", "dropped"])
def test_a_field_of_an_older_schema_that_a_transform_passes_on_is_a_column_of_the_target_or_none(
    loader: Loader, orders: Orders, query: str
) -> None:
    long, tags = "x" * 64, {"type": "array", "items": "string"}
    older = {"other": "int", "tags": tags} | ({long: "int"} if loader.engine.dialect.name != "sqlite" else {})
    numbers = [orders.register(_schema({"name": name, "type": kind})) for name, kind in older.items()]
    orders.put(orders.register(V2), V2, id=2, note="n")
    for number, (name, kind) in zip(numbers, older.items(), strict=True):
        orders.put(number, _schema({"name": name, "type": kind}), id=3, **{name: [] if name == "tags" else 5})

    result = loader(
        orders.topic,
        value_format=AVRO,
        transform=Sql(query),
        extra_columns=ExtraColumns(on_new_field="add"),
        on_bad_record=DeadLetters(),
    )

    is_passed = query == "SELECT * FROM records"
    bad = [name for name in older if name != "other"] if is_passed else []
    assert (result.rows, result.dead_letters) == (1 + len(older) - len(bad), len(bad))
    assert columns(loader.engine) == ["id", "note", *(["other"] if is_passed else [])]
    reasons = [reason for (reason,) in rows(loader.engine, "SELECT error FROM dead_letters ORDER BY offset_value")]
    for reason, name in zip(reasons, bad, strict=True):
        assert f"its field {name!r} cannot become a column: " in reason
