"""The commands of docs/backfill.md, one after another, as they stand there."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.test_docs import python_snippet, snippets
from tests.support.command_line import CommandLine
from tests.support.loads import rows
from tests.support.runbook import Orders, load_days, once

# The commands of the runbook, which run every day, are the same ones.
pytestmark = [pytest.mark.server, pytest.mark.long]


def test_tuesday_is_loaded_again_and_a_copy_starts_at_its_positions(
    orders: Orders, airflow: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "orders.py").write_text(python_snippet("from datetime import datetime"), encoding="utf-8")
    bundle = {
        "name": "orders",
        "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
        "kwargs": {"path": str(tmp_path / "dags")},
    }
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([bundle]))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    load_days(orders)
    positions = orders.positions()
    orders.write("UPDATE orders SET amount = 0 WHERE _batch_id = 2")

    # tests/cli/test_dead_letters_in_docs.py runs those of dead letters.
    typed = "".join(code for code in snippets("docs/backfill.md", "sh") if "dead-letters" not in code)
    for line in typed.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        assert words[0] == "kafka-offsets"
        done = airflow(*words[1:])
        assert done.status == 0, done.stderr

    assert orders.placed() == once(30, 30)
    assert rows(orders.engine, "SELECT count(*) FROM orders WHERE amount = 0") == [(0,)]
    batches = Counter(batch for (batch,) in rows(orders.engine, "SELECT _batch_id FROM orders"))
    assert [batches[1], batches[2], batches[3]] == [20, 0, 20]
    groups = ("orders_loader", "orders_copy_loader")
    assert [
        dict(
            rows(
                orders.engine, f"SELECT partition, offset_value FROM consumed_offsets WHERE consumer_group = '{group}'"
            )
        )
        for group in groups
    ] == [positions, positions]
