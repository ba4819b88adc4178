"""The example of `kafka-offsets` in the documents, as a shell runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import Json, LoadOptions, Pipeline, SqlTable, load
from devstack.kafka import KafkaBroker
from tests.docs.test_docs import snippets
from tests.support.clients import produce
from tests.support.inline import InlineLauncher
from tests.support.loads import TopicFactory

pytestmark = pytest.mark.server


def test_program_example_prints_groups_and_lag(broker: KafkaBroker, topic: TopicFactory, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/warehouse.db"
    name = topic()
    produce(broker, name, [b'{"id": 1}', b'{"id": 2}'])
    engine = sa.create_engine(url)
    load(
        Pipeline(group_id="orders_loader", topics=(name,), value_format=Json("id BIGINT"), sink=SqlTable("orders")),
        LoadOptions(start="earliest"),
        kafka_config={"bootstrap.servers": broker.bootstrap_servers},
        engine=engine,
        launcher=InlineLauncher(),
    )
    engine.dispose()
    produce(broker, name, [b'{"id": 3}'])
    (tmp_path / ".warehouse-url").write_text(url, encoding="utf-8")
    (tmp_path / "client.properties").write_text(f"bootstrap.servers={broker.bootstrap_servers}\n", encoding="utf-8")

    (example,) = [code for code in snippets("docs/commands.md", "sh") if "kafka-offsets groups" in code]
    environment = os.environ | {"HOME": str(tmp_path), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-c", example], env=environment, capture_output=True, text=True, timeout=300, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    groups, _, lag = done.stdout.partition("\n\n")
    assert "orders_loader" in groups
    total = next(line for line in (lag or groups).splitlines() if "TOTAL" in line)
    assert [cell.strip() for cell in total.split("|")][:3] == ["orders_loader", "TOTAL", "1"]
