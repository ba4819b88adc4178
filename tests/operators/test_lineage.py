"""Lineage of real runs, in the events that Airflow's OpenLineage provider writes to a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from tests.support.airflow_runs import DAGS, airflow_uri
from tests.support.clients import produce
from tests.support.loads import TopicFactory, names

# A process of its own loads the provider anew. `test_lineage_names` has what needs no run.
pytestmark = [pytest.mark.server, pytest.mark.long]

SECRET = "canary-8d2f"


class Lineage:
    """An Airflow whose OpenLineage provider writes to a file."""

    def __init__(self, home: AirflowHome, file: Path) -> None:
        self._home = home
        self._file = file

    def run(self, dag_id: str, date: str = "2026-01-01", **env: Any) -> list[dict[str, Any]]:
        """Run a DAG, and return the events of its task."""
        self._home.env.update({name: json.dumps(value) for name, value in env.items()})
        self._file.unlink(missing_ok=True)
        run = self._home.run("dags", "test", dag_id, date)
        written = self._file.read_text() if self._file.exists() else ""
        assert written, run.stdout[-8000:] + run.stderr[-8000:]
        assert SECRET not in written
        events = [json.loads(line) for line in written.splitlines()]
        return [event for event in events if event["job"]["name"].startswith(f"{dag_id}.")]


@contextmanager
def lineage(kafka: KafkaBroker, engine: Engine, tmp_path: Path) -> Iterator[Lineage]:
    file = tmp_path / "events.json"
    extra = {"bootstrap.servers": kafka.bootstrap_servers, "sasl.password": SECRET}
    url = engine.url if engine.url.password else engine.url.set(password=SECRET)
    connections = {
        "kafka_default": json.dumps({"conn_type": "kafka", "extra": extra}),
        "spark_default": json.dumps({"conn_type": "spark", "host": "local[1]"}),
        "warehouse": airflow_uri(engine)
        if url is engine.url
        else url.set(drivername="postgres").render_as_string(False),
    }
    transport = json.dumps({"type": "file", "log_file_path": str(file), "append": True})
    config = {"openlineage.transport": transport, "openlineage.execution_timeout": "120"}
    with AirflowHome(dags=DAGS, connections=connections, config=config) as home:
        yield Lineage(home, file)


def facet(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event["run"]["facets"]["kafkaOffsets"].items() if not name.startswith("_")}


def test_events_have_topic_table_ranges_counts_schema_and_errors(
    kafka: KafkaBroker, topic: TopicFactory, postgres_engine: Engine, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    for partition in range(2):
        produce(kafka, name, names(partition * 500, 5 + partition), partition)
    url = postgres_engine.url
    cluster, database = f"kafka://{kafka.bootstrap_servers}", f"postgres://{url.host}:{url.port}"

    with lineage(kafka, postgres_engine, tmp_path) as airflow:
        start, complete = airflow.run("load_under_test", LOAD_UNDER_TEST={"topics": [name]})
        assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
        for event in (start, complete):
            (read,), (written,) = event["inputs"], event["outputs"]
            assert (read["namespace"], read["name"]) == (cluster, name)
            assert (written["namespace"], written["name"]) == (database, f"{url.database}.public.target")
        assert facet(start)["groupId"] == "loader"
        assert facet(complete) == {
            "groupId": "loader",
            "kind": "load",
            "ranges": [
                {"topic": name, "partition": 0, "start": 0, "end": 5},
                {"topic": name, "partition": 1, "start": 0, "end": 6},
            ],
            "batches": [1],
            "records": 11,
            "rows": 11,
            "deadLetters": 0,
            "complete": True,
        }
        assert read["inputFacets"]["inputStatistics"]["rowCount"] == 11
        assert read["inputFacets"]["inputStatistics"]["size"] > 0
        assert written["outputFacets"]["outputStatistics"]["rowCount"] == 11
        columns = [(field["name"], field["type"]) for field in written["facets"]["schema"]["fields"]]
        assert columns[:2] == [("id", "BIGINT"), ("name", "TEXT")]
        assert [field["name"] for field in read["facets"]["schema"]["fields"]] == ["id", "name"]

        # The first batch is committed before the second one fails.
        produce(kafka, name, names(5, 3), 0)
        produce(kafka, name, [b"no JSON"], 0)
        _, failed = airflow.run(
            "load_under_test", "2026-01-02", LOAD_UNDER_TEST={"topics": [name], "limits": {"max_records": 3}}
        )
        assert failed["eventType"] == "FAIL"
        assert (facet(failed)["ranges"], facet(failed)["complete"]) == (
            [{"topic": name, "partition": 0, "start": 5, "end": 8}],
            False,
        )
        assert f"topic {name!r} partition 0 offset 8" in failed["run"]["facets"]["errorMessage"]["message"]
        assert [output["name"] for output in failed["outputs"]] == [f"{url.database}.public.target"]
