"""What users get wrong: a message says what is wrong, where, which parameter named the connection, and what to do."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import airflow_kafka_offsets as kafka_offsets
from airflow_kafka_offsets import (
    Avro,
    CommittedBy,
    DeltaTable,
    IcebergTable,
    Json,
    KafkaBatchOperator,
    Limits,
    Spark,
    Sql,
    SqlTable,
    TimeBounds,
)
from airflow_kafka_offsets.exceptions import ForeignBatchError
from airflow_kafka_offsets.hooks import connections
from airflow_kafka_offsets.hooks.named_errors import with_names
from devstack.topics import create_topic
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.task_context import task_context


class Launcher(InlineLauncher):
    """Takes what the launcher of a connection takes."""

    def __init__(self, conn_id: str, **options: Any) -> None:
        super().__init__()


Given = Callable[[], dict[str, Any]]


def load(**given: Any) -> KafkaBatchOperator:
    parameters: dict[str, Any] = {
        "task_id": "load",
        "assets": False,
        "group_id": "loader",
        "topics": ["orders"],
        "value_format": Json("id BIGINT"),
        "sink": SqlTable("loaded", conn_id="warehouse"),
    }
    return KafkaBatchOperator(**parameters | given)


IN_THE_FILE: dict[str, tuple[Given, list[str]]] = {
    "type": (lambda: {"value_format": Json("id BIGNT")}, ["'id BIGNT', near 'BIGNT'", "known types are BOOLEAN"]),
    "nested type": (lambda: {"value_format": Json("a ARRAY<STRNG>")}, ["near 'STRNG'", "known types are"]),
    "foreign type": (lambda: {"value_format": Json("a MAP<STRING,INT>")}, ["unknown type 'MAP<STRING, INT>'"]),
    "BIGNT in Avro": (lambda: {"value_format": Avro("id BIGNT", registry_conn_id="r")}, ["near 'BIGNT'"]),
    "column twice": (lambda: {"value_format": Json("id BIGINT, ID STRING")}, ["Column 'ID' is declared twice"]),
    "no schema": (lambda: {"value_format": Avro()}, ["Avro needs registry_conn_id, or a schema"]),
    "text as a key": (
        lambda: {"sink": SqlTable("t", conn_id="w", upsert_key="id")},  # type: ignore[arg-type]
        ["upsert_key must be a tuple of different column names", "got upsert_key='id'"],
    ),
    "key twice": (
        lambda: {"sink": IcebergTable("s.t", conn_id="w", upsert_key=("id", "id"))},
        ["got upsert_key=('id', 'id')"],
    ),
    "SQL as a path": (
        lambda: {"transform": "SELECT id FROM records"},
        ["transform must be the import path of a function", "Sql(…)", "got transform='SELECT id FROM records'"],
    ),
    "duplicate": (lambda: {"value_format": Json("`id` INT, ID INT")}, ["Column 'ID' is declared twice"]),
    "start": (lambda: {"start": "beginning"}, ["start must be one of earliest, latest", "got start='beginning'"]),
    "until": (lambda: {"until": "tomorrow"}, ["until must be a timestamp (ISO 8601)", "until='tomorrow'"]),
    "limit": (lambda: {"limits": Limits(max_records=0)}, ["Limits.max_records must be an int of at least 1"]),
    "aggregate": (
        lambda: {"transform": Sql("SELECT count(*) FROM records")},
        ["count() is refused", "one batch of records"],
    ),
    "table of Sql": (lambda: {"transform": Sql("SELECT a FROM orders")}, ["its FROM must be records"]),
    "parameter": (lambda: {"sink": IcebergTable("s.t", warehous="x")}, ["IcebergTable", "argument 'warehous'"]),  # type: ignore[call-arg]
    "field of a group": (
        lambda: {"max_records": 5},
        ["max_records is not a parameter of KafkaBatchOperator: Limits(max_records=…)"],
    ),
    "namespace": (
        lambda: {"sink": IcebergTable("orders", conn_id="warehouse")},
        ["IcebergTable needs namespace and name", "got 'orders'"],
    ),
    "place": (
        lambda: {"sink": DeltaTable("lake/orders", conn_id="warehouse")},
        ["DeltaTable needs an absolute path or a URI; got uri='lake/orders'"],
    ),
    "no conn_id": (lambda: {"sink": SqlTable("loaded")}, ["no conn_id: name the connection of the database that has"]),
}


@pytest.mark.parametrize("mistake", IN_THE_FILE)
def test_a_mistake_in_a_literal_fails_when_the_file_is_parsed(mistake: str) -> None:
    given, words = IN_THE_FILE[mistake]
    with pytest.raises((kafka_offsets.exceptions.ConfigurationError, TypeError)) as raised:
        load(**given())

    assert raised.value.__cause__ is None
    assert [word for word in words if word not in str(raised.value)] == []


def test_templates_are_checked_when_they_are_rendered() -> None:
    load(sink=DeltaTable("{{ params.place }}", conn_id="w"))
    load(sink=IcebergTable("{{ params.name }}", conn_id="w"))
    TimeBounds("{{ params.since }}", "2026-01-01")
    load(value_format=Json("id {{ params.type }}"), start="{{ params.start }}", until="{{ data_interval_end }}")


MISSING = ["there is no such connection", "airflow connections add"]

AT_RUN_TIME: dict[str, tuple[Given, list[str]]] = {
    "no database": (lambda: {"sink": SqlTable("t", conn_id="warehose")}, ["sink.conn_id='warehose': ", *MISSING]),
    "no kafka": (lambda: {"kafka_conn_id": "kafka"}, ["kafka_conn_id='kafka': ", *MISSING]),
    "no spark": (lambda: {"spark": Spark("sprak")}, ["spark.conn_id='sprak': ", *MISSING]),
    "no registry": (
        lambda: {"value_format": Avro(registry_conn_id="registri")},
        ["value_format.registry_conn_id='registri': ", *MISSING],
    ),
    "database": (
        lambda: {"sink": SqlTable("t", conn_id="files")},
        ["sink.conn_id='files': ", "of type 'generic', which is not a SQL database"],
    ),
    "kafka": (
        lambda: {"kafka_conn_id": "files"},
        ["kafka_conn_id='files': ", "The connection is of type 'generic', not 'kafka'"],
    ),
    "kafka that names the sink's": (
        lambda: {"kafka_conn_id": "warehouse"},
        ["kafka_conn_id='warehouse': The connection is of type 'sqlite', not 'kafka'"],
    ),
    "spark": (lambda: {"spark": Spark("files")}, ["spark.conn_id='files': ", "of type spark, spark_connect"]),
    "registry": (
        lambda: {"value_format": Avro(registry_conn_id="spark_default")},
        ["value_format.registry_conn_id='spark_default'", "has type 'http' or 'generic'"],
    ),
    "property": (
        lambda: {"kafka_conn_id": "misspelt"},
        ["kafka_conn_id='misspelt': The Kafka", "sets sasl.pasword", "did you mean sasl.password?", "correct"],
    ),
    "port": (
        lambda: {"sink": SqlTable("t", conn_id="no_port")},
        [
            "sink.conn_id='no_port': Group 'loader' was not loaded",
            "Check that the database runs, and its host and port",
        ],
    ),
    "topic": (
        lambda: {"topics": ["ordres"]},
        ["kafka_conn_id='kafka_default': ", "no topic 'ordres'", "Check the spelling (this user sees 'orders')"],
    ),
    "consumer group": (
        lambda: {"start": CommittedBy("nobody")},
        ["kafka_conn_id='kafka_default': Consumer group 'nobody' has committed nothing of orders"],
    ),
    "pattern": (
        lambda: {"topics": ["orders_*"]},
        ["Name each topic: patterns are not supported. Check the spelling (this user sees 'orders')"],
    ),
    "bucket": (
        lambda: {"sink": DeltaTable("s3://no-such-bucket/t", conn_id="warehouse", storage_conn_id="store")},
        [
            "sink.storage_conn_id='store': delta+s3://no-such-bucket/t cannot be opened: ",
            "Check the name of the bucket",
        ],
    ),
    "column of Sql": (
        lambda: {"transform": Sql("SELECT idd FROM records")},
        ["No field named idd. Did you mean 'records.id'? Valid fields are records.id"],
    ),
    "key": (
        lambda: {"sink": SqlTable("t", conn_id="warehouse", upsert_key=("idd",))},
        ["upsert_key names 'idd', which the rows do not hold; they hold 'id'"],
    ),
    "table": (
        lambda: {"sink": SqlTable("theirs", conn_id="warehouse"), "value_format": Json("id BIGINT, at DATE")},
        ["Table 'theirs' does not fit", "'at' is BIGINT, the rows hold DATE", "Correct the declared columns"],
    ),
    "record": (
        lambda: {"topics": ["bad"]},
        ["topic 'bad' partition 0 offset 1", "at byte 9", "set on_bad_record=DeadLetters()"],
    ),
    "type of a record": (
        lambda: {"topics": ["texts"]},
        ["field 'id' is declared as BIGINT, but holds string", "set on_bad_record=DeadLetters()"],
    ),
}


@pytest.fixture
def warehouse(log: Kafka, unknown_at_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    servers = {"bootstrap.servers": log.bootstrap_servers}
    known = {
        "kafka_default": {"conn_type": "kafka", "extra": servers},
        "misspelt": {"conn_type": "kafka", "extra": servers | {"sasl.pasword": "secret"}},
        "spark_default": {"conn_type": "spark", "host": "local[1]"},
        "warehouse": {"conn_type": "sqlite", "host": str(tmp_path / "warehouse.db")},
        "no_port": {"conn_type": "postgres", "host": "127.0.0.1", "port": 1, "login": "a", "password": "b"},
        "files": {"conn_type": "generic"},
        # Nobody listens there.
        "store": {
            "conn_type": "aws",
            "login": "a",
            "password": "b",
            "extra": {"endpoint_url": "http://127.0.0.1:1", "region_name": "us-east-1"},
        },
    }
    for name, connection in known.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))
    monkeypatch.setitem(connections.LAUNCHERS, "spark", f"{__name__}:Launcher")
    for topic, values in {"orders": [b'{"id": 1}'], "bad": [b"{}", b'{"id": 1,}'], "texts": [b'{"id": "a"}']}.items():
        create_topic(log.bootstrap_servers, topic, 1)
        produce(log, topic, values)
    return tmp_path / "warehouse.db"


def names(database: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(database)) as conn:
        return [name for (name,) in conn.execute(query)]


# A client of object stores takes its time.
_LONG = {"bucket": [pytest.mark.long]}


@pytest.mark.parametrize("mistake", [pytest.param(name, marks=_LONG.get(name, [])) for name in AT_RUN_TIME])
def test_a_mistake_names_the_connection_and_what_to_do(mistake: str, warehouse: Path) -> None:
    given, words = AT_RUN_TIME[mistake]
    with closing(sqlite3.connect(warehouse)) as conn:
        conn.execute("CREATE TABLE theirs (id BIGINT, at BIGINT)")
    with pytest.raises(Exception, match=r"\w") as raised:
        load(**given()).execute(task_context("load"))

    error = raised.value
    assert [word for word in words if word not in str(error)] == [], str(error)
    assert error.__cause__ is None
    assert error.__suppress_context__
    # Below the method that Airflow calls, nothing is shown.
    assert str(raised.traceback[-1].path).endswith("named_errors.py")


def test_a_command_in_an_error_names_the_connection_of_the_task() -> None:
    task = load(sink=SqlTable("t", conn_id="the warehouse"))
    error = with_names(task, ForeignBatchError("abandon it: kafka-offsets abandon g --conn-id CONN_ID --reason WHY"))
    assert str(error) == "abandon it: kafka-offsets abandon g --conn-id 'the warehouse' --reason WHY"


def test_a_misspelt_topic_leaves_no_group_and_no_table(warehouse: Path) -> None:
    with pytest.raises(kafka_offsets.exceptions.UnknownTopicError):
        load(topics=["ordres"]).execute(task_context("load"))

    assert names(warehouse, "SELECT group_id FROM consumer_groups") == []
    assert "loaded" not in names(warehouse, "SELECT name FROM sqlite_master")


def test_a_table_that_never_got_a_row_is_created_again(warehouse: Path) -> None:
    with pytest.raises(kafka_offsets.exceptions.RecordError):
        load(value_format=Json("id STRING")).execute(task_context("load"))
    assert names(warehouse, "SELECT type FROM pragma_table_info('loaded') WHERE name = 'id'") == ["TEXT"]

    load().execute(task_context("load"))

    assert names(warehouse, "SELECT type FROM pragma_table_info('loaded') WHERE name = 'id'") == ["BIGINT"]
    assert names(warehouse, "SELECT id FROM loaded") == [1]


def test_a_table_that_a_load_wrote_to_is_kept(warehouse: Path) -> None:
    load().execute(task_context("load"))
    with closing(sqlite3.connect(warehouse)) as conn, conn:
        conn.execute("DELETE FROM loaded")
    with pytest.raises(kafka_offsets.exceptions.TargetError, match="'id' is BIGINT, the rows hold STRING"):
        load(value_format=Json("id STRING"), group_id="another").execute(task_context("load"))

    assert names(warehouse, "SELECT type FROM pragma_table_info('loaded') WHERE name = 'id'") == ["BIGINT"]
