"""The example DAG that rewinds: a preview unless it is told otherwise."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.loading.load import load
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from tests.support.command_line import database_connection, kafka_connection
from tests.support.inline import InlineLauncher
from tests.support.warm_airflow import WarmAirflowHome

pytestmark = pytest.mark.server

EXAMPLES = Path(__file__).resolve().parents[2] / "example_dags"


def test_rewind_example_previews_then_moves_positions(kafka: KafkaBroker, database: str) -> None:
    produce_orders(kafka.bootstrap_servers, "orders", 2000)
    engine = sa.create_engine(database)
    # As the DAG load_orders does it, without Spark.
    orders = SqlTable("orders")
    pipeline = Pipeline(
        group_id="orders_loader",
        topics=("orders",),
        value_format=Json("id BIGINT NOT NULL, customer STRING, amount DECIMAL(10,2), created TIMESTAMP"),
        sink=orders,
    )
    config = {"bootstrap.servers": kafka.bootstrap_servers}
    load(pipeline, kafka_config=config, engine=engine, launcher=InlineLauncher())
    loaded = state(engine)
    connections = {"kafka_default": kafka_connection(kafka), "warehouse": database_connection(engine)}
    back = {"scenario": "shift-by", "value": "-100", "reason": "a test"}
    with WarmAirflowHome(dags=EXAMPLES, connections=connections) as home:
        previewed = home.run("dags", "test", "rewind_orders", "2026-01-01", "--conf", json.dumps(back))
        assert previewed.returncode == 0, (previewed.stdout + previewed.stderr)[-8000:]
        assert state(engine) == loaded
        assert ", 100 offsets to be read again, 0 skipped" in previewed.stdout
        assert "Nothing was changed: this is a preview. 400 offsets would be read again" in previewed.stdout
        conf = json.dumps(back | {"preview_only": False})
        executed = home.run("dags", "test", "rewind_orders", "2026-01-02", "--conf", conf)
        assert executed.returncode == 0, (executed.stdout + executed.stderr)[-8000:]
        assert "The next load reads 400 offsets again; 400 rows and 0 dead letters were removed" in executed.stdout
        shown, done = pushed(home)

    assert (shown["executed"], shown["batch_id"], shown["offsets_reread"]) == (False, None, 400)
    assert [one["difference"] for one in shown["partitions"]] == [-100] * 4
    assert (done["executed"], done["rows_removed"], done["partitions"]) == (True, 400, shown["partitions"])
    (moved, count), (before, all_rows) = state(engine), loaded
    assert moved == {partition: offset - 100 for partition, offset in before.items()}
    assert count == all_rows - 400
    with engine.connect() as conn:
        rewinds = conn.execute(sa.text("SELECT reason, triggered_by FROM offset_batches WHERE kind = 'rewind'"))
        # The name that `airflow dags test` gives the user.
        assert [tuple(row) for row in rewinds] == [("a test", "dag_test")]
    load(pipeline, kafka_config=config, engine=engine, launcher=InlineLauncher())
    verify("orders_loader", sink=orders, engine=engine, kafka_config=config)
    assert state(engine)[1] == sum(state(engine)[0].values())
    engine.dispose()


def state(engine: sa.Engine) -> tuple[dict[int, int], int]:
    """The positions, and how many rows there are."""
    with engine.connect() as conn:
        offsets = conn.execute(sa.text("SELECT partition, offset_value FROM consumed_offsets"))
        positions = {int(partition): int(offset) for partition, offset in offsets}
        ((count,),) = conn.execute(sa.text("SELECT count(*) FROM orders")).all()
    return positions, int(count)


def pushed(home: WarmAirflowHome) -> list[dict[str, Any]]:
    """What the task returned, run by run."""
    with contextlib.closing(sqlite3.connect(home.directory / "airflow.db")) as metadata:
        found = metadata.execute("SELECT value FROM xcom WHERE key = 'return_value' ORDER BY timestamp").fetchall()
    return [json.loads(value) for (value,) in found]
