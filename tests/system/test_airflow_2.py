"""Airflow 2.11, whose SQLAlchemy this package cannot use, loads with another Python, as the documents show."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from devstack.kafka import KafkaBroker
from devstack.orders import produce_orders
from devstack.paths import BUILD, REPOSITORY, environment

pytestmark = [pytest.mark.server, pytest.mark.long]

_VERSION, _DATE = "2.11.2", "2026-03-25"


@pytest.fixture(scope="module")
def airflow_2() -> Path:
    """The command of an Airflow 2.11 with the dependencies of its time."""
    home = BUILD / f"airflow-{_VERSION}"
    if not (home / "complete").exists():
        uv = str(BUILD / "tools" / "bin" / "uv") if (BUILD / "tools" / "bin" / "uv").exists() else "uv"
        python = ("--python", str(home / "bin" / "python"))
        subprocess.run([uv, "venv", "--clear", "--python", "3.11", str(home)], check=True)
        subprocess.run(
            [uv, "pip", "install", *python, "--exclude-newer", _DATE, f"apache-airflow=={_VERSION}"], check=True
        )
        (home / "complete").touch()
    return home / "bin" / "airflow"


def test_a_load_runs_with_an_external_python(
    airflow_2: Path, kafka: KafkaBroker, postgres_engine: Engine, tmp_path: Path
) -> None:
    section = (REPOSITORY / "docs" / "loads.md").read_text().partition("## From Airflow 2.11 and 3.0")[2]
    code = section.partition("```py\n")[2].partition("```")[0]
    assert "/opt/kafka-offsets/bin/python" in code
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "orders.py").write_text(code.replace("/opt/kafka-offsets/bin/python", sys.executable))
    produce_orders(kafka.bootstrap_servers, "orders", 1_000)
    config = {"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.bootstrap_servers}}
    env = {name: value for name, value in environment().items() if not name.startswith("AIRFLOW_")} | {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_WAREHOUSE": re.sub("^postgresql[^:]*", "postgres", _url(postgres_engine)),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(config),
    }
    for command in (("db", "migrate"), ("dags", "test", "load_orders", "2026-01-01")):
        done = subprocess.run([airflow_2, *command], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    with postgres_engine.connect() as conn:
        assert conn.execute(sa.text("SELECT count(*), count(DISTINCT id) FROM orders")).one() == (1_000, 1_000)


def _url(engine: Engine) -> str:
    return engine.url.render_as_string(hide_password=False)
