"""Loads of Avro records: keys and values, several schemas in a partition, dead letters, a registry that is away, and
its secrets.
"""

from __future__ import annotations

import base64
import logging
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters, ExtraColumns, Staging
from airflow_kafka_offsets.exceptions import RecordError, RegistryUnavailableError
from airflow_kafka_offsets.formats import schema_registry
from airflow_kafka_offsets.formats.avro_format import Avro
from airflow_kafka_offsets.spark.job import StageJob
from tests.support.avro import encode, wire
from tests.support.clients import Kafka, producer
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, positions, rows
from tests.support.memory_log import MemoryLog
from tests.support.registry import FakeRegistry, fake_registry

CANARY = "canary-7c1e"
V1: dict[str, Any] = {
    "type": "record",
    "name": "order",
    "fields": [{"name": "id", "type": "int"}, {"name": "who", "type": "string"}],
}
V2: dict[str, Any] = V1 | {"fields": [V1["fields"][0], {"name": "name", "type": "string", "aliases": ["who"]}]}
AVRO = Avro(registry_conn_id="registry")


class ThroughText(InlineLauncher):
    """Runs what a submitted application would get."""

    def __call__(self, job: StageJob) -> None:
        super().__call__(StageJob.from_text(job.to_text()))


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    return MemoryLog().install(monkeypatch)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    monkeypatch.setattr(schema_registry, "_PAUSE_SECONDS", 0.0)
    with fake_registry() as registry:
        registry.authorization = f"Basic {base64.b64encode(f'ada:{CANARY}'.encode()).decode()}"
        yield registry


@pytest.fixture
def loader(kafka: Kafka, registry: FakeRegistry, tmp_path: Path) -> Iterator[Loader]:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/warehouse.db")
    config = registry.config | {"basic.auth.user.info": f"ada:{CANARY}"}
    yield Loader(kafka, engine, ThroughText(), connections={"registry": config})
    engine.dispose()


def put(loader: Loader, topic: str, *records: tuple[bytes | None, bytes | None]) -> None:
    writer = producer(loader.kafka)
    for key, value in records:
        writer.produce(topic, partition=0, key=key, value=value)
    assert writer.flush(30) == 0


def order(version: int, number: int, name: str) -> bytes:
    schema, field = (V1, "who") if version == 1 else (V2, "name")
    return wire(version, encode(schema, {"id": number, field: name}))


@pytest.fixture
def orders(loader: Loader, registry: FakeRegistry, topic: TopicFactory) -> str:
    name = topic()
    registry.register(f"{name}-value", V1)
    registry.register(f"{name}-value", V2)
    return name


def test_keys_and_values_of_several_schemas(loader: Loader, registry: FakeRegistry, orders: str) -> None:
    registry.register(f"{orders}-key", '"long"')
    key = wire(3, encode("long", 5))
    put(
        loader, orders, (key, order(1, 1, "Ada")), (None, order(2, 2, "größer")), (key, None), (key, order(1, 4, "Lin"))
    )

    loader(
        orders,
        value_format=AVRO,
        extra_columns=ExtraColumns(key_format=Avro("customer BIGINT", registry_conn_id="registry")),
    )

    found = rows(loader.engine, "SELECT customer, id, name FROM target ORDER BY _kafka_offset")
    assert found == [(5, 1, "Ada"), (None, 2, "größer"), (5, None, None), (5, 4, "Lin")]
    assert_exactly_once(loader.engine)


def test_an_unknown_id_names_id_topic_partition_and_offset(loader: Loader, orders: str) -> None:
    put(loader, orders, (None, order(1, 1, "Ada")), (None, wire(99, b"\x02")))
    with pytest.raises(
        RecordError, match=f"topic '{orders}' partition 0 offset 1 cannot be loaded: schema 99: the schema"
    ):
        loader(orders, value_format=AVRO)
    assert positions(loader.engine) == {}


def test_bad_records_are_dead_lettered(loader: Loader, orders: str) -> None:
    good = order(2, 7, "Grace")
    put(loader, orders, *((None, value) for value in (good[:-1], b"", good, wire(99, b"\x02"), good + b"\0", b"{}")))

    result = loader(orders, value_format=AVRO, on_bad_record=DeadLetters())

    assert (result.rows, result.dead_letters) == (1, 5)
    assert rows(loader.engine, "SELECT id, name, _kafka_offset FROM target") == [(7, "Grace", 2)]
    found = dict(rows(loader.engine, "SELECT offset_value, value FROM dead_letters"))
    assert found == {0: good[:-1], 1: b"", 3: wire(99, b"\x02"), 4: good + b"\0", 5: b"{}"}


def test_a_registry_that_goes_away_makes_no_record_bad(loader: Loader, registry: FakeRegistry, orders: str) -> None:
    put(loader, orders, (None, order(1, 1, "Ada")), (None, wire(50, encode(V2, {"id": 2, "name": "Lin"}))))
    known = len(registry.requests) + 3  # the versions of the subject, and each of the two
    registry.register("elsewhere", V2, number=50)
    asked = registry.answer

    def away_for_tasks(path: str, authorization: str | None) -> tuple[int, Any]:
        return asked(path, authorization) if len(registry.requests) < known else (503, {})

    registry.answer = away_for_tasks  # type: ignore[method-assign]
    with pytest.raises(RegistryUnavailableError, match="did not answer /schemas/ids/50"):
        loader(orders, value_format=AVRO, on_bad_record=DeadLetters())
    registry.answer = asked  # type: ignore[method-assign]

    assert loader(orders, value_format=AVRO, on_bad_record=DeadLetters()).rows == 2
    assert rows(loader.engine, "SELECT name FROM target ORDER BY id") == [("Ada",), ("Lin",)]


def test_a_registry_that_is_away_ends_the_load_before_anything_is_planned(
    loader: Loader, registry: FakeRegistry, orders: str
) -> None:
    registry.answers = [503] * 4
    with pytest.raises(RegistryUnavailableError):
        loader(orders, value_format=AVRO)
    assert not sa.inspect(loader.engine).get_table_names()


def test_the_secrets_are_in_the_job_alone(
    loader: Loader, orders: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(loader, orders, (None, order(1, 1, "Ada")), (None, wire(99, b"\x02")))
    with caplog.at_level(logging.DEBUG):
        loader(orders, value_format=AVRO, on_bad_record=DeadLetters(), staging=Staging(dir=str(tmp_path)))

    (job,) = loader.launcher.jobs
    assert CANARY in str(job.connections)
    assert CANARY.encode() not in pickle.dumps(replace(job, connections={}))
    assert CANARY not in repr(loader.launcher.jobs)
    assert CANARY not in caplog.text
    assert not [file for file in tmp_path.rglob("*") if file.is_file() and CANARY.encode() in file.read_bytes()]
