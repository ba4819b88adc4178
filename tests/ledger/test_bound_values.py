"""A statement of Postgres has 65,535 bound values at most: how many groups there are of others, and how many schemas a
batch has read, stops none.
"""

from __future__ import annotations

import hashlib
import json

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.formats.read_schemas import ReadSchema
from airflow_kafka_offsets.ledger.batch_notes import store_schemas
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.rewinding.previewing import preview_rewind
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, rows

pytestmark = pytest.mark.server

engine = fixtures.postgres_engine

_MANY = 66_000

_OTHERS = f"""
INSERT INTO consumer_groups (group_id, generation, epoch) SELECT 'g' || n, 0, 0 FROM generate_series(1, {_MANY}) n;
INSERT INTO offset_batches (batch_id, consumer_group, generation, kind, state, attempt, target_table, planned_at,
        committed_at, row_count)
    SELECT n + 10, 'g' || n, 0, 'load', 'committed', 1, 'target', now(), now(), 1 FROM generate_series(1, {_MANY}) n;
INSERT INTO consumed_offsets (consumer_group, topic, partition, offset_value, batch_id, updated_at)
    SELECT 'g' || n, '{{topic}}', 0, 5, n + 10, now() FROM generate_series(1, {_MANY}) n;
"""


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory."""
    return log


@pytest.mark.long
def test_many_groups_that_load_a_topic_into_the_table_stop_none(
    kafka: Kafka, engine: Engine, topic: TopicFactory
) -> None:
    """In its own minute: a load compares its offsets with those of each group."""
    loader, name = Loader(kafka, engine, InlineLauncher()), topic()
    produce(kafka, name, names(0, 10))
    loader(name)
    with engine.begin() as conn:
        conn.exec_driver_sql(_OTHERS.format(topic=name))
    produce(kafka, name, names(10, 1))

    assert loader(name).rows == 1
    assert verify("loader", sink=SqlTable("target"), engine=engine).rows == 11
    scenario = Scenario.of("to-earliest", None, group_id="loader")
    assert preview_rewind("loader", scenario, engine=engine, kafka_config=loader.config).changed


@pytest.mark.long
def test_a_batch_may_have_read_more_schemas_than_a_statement_has_values(engine: Engine) -> None:
    tables = Tables.of()
    initialize(Ledger(engine, tables))
    schemas = [ReadSchema("value", number, "avro", [str(number)]) for number in range(_MANY)]
    texts = [
        {"digest": hashlib.sha256(json.dumps([each.type, each.text]).encode()).hexdigest(), "type": "avro", "texts": ""}
        for each in schemas
    ]
    with engine.begin() as conn:
        # All but a few are there already: each new one has a savepoint.
        conn.execute(tables.schema_texts.insert(), texts[10:])
        store_schemas(conn, tables, 1, schemas)

    assert rows(engine, "SELECT count(*) FROM batch_schemas") == [(_MANY,)]
    assert rows(engine, "SELECT count(*) FROM schema_texts") == [(_MANY,)]
    with engine.connect() as conn:
        assert conn.scalar(
            sa.select(tables.schema_texts.c.texts).where(tables.schema_texts.c.digest == texts[0]["digest"])
        )
