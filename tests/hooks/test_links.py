"""Links from tasks to the pages of the web interface."""

from __future__ import annotations

from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import DAG, BaseOperator
from airflow.serialization.serialized_objects import DagSerialization

from airflow_kafka_offsets import (
    Json,
    KafkaBatchOperator,
    KafkaLagSensor,
    KafkaReplayOperator,
    KafkaReplayPlanOperator,
    KafkaRewindOperator,
    SqlTable,
    StateTables,
    TimeBounds,
)
from airflow_kafka_offsets.get_provider_info import get_provider_info
from airflow_kafka_offsets.hooks.links import BatchLink, GroupLink, RewindLink
from airflow_kafka_offsets.operators.positions import KafkaVerifyOperator

SINK = SqlTable("orders", conn_id="warehouse")
BASE = "https://example.com/team"
LOAD: dict[str, Any] = {"topics": ["orders"], "value_format": Json("id BIGINT"), "sink": SINK}
KEY: Any = SimpleNamespace(dag_id="dag", task_id="task", run_id="run", map_index=-1)


@pytest.fixture(autouse=True)
def base_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", f"{BASE}/")


def load(**options: Any) -> KafkaBatchOperator:
    return KafkaBatchOperator(task_id="load", group_id="eu/orders & more", **LOAD, **options)


def url(link: Any, operator: BaseOperator) -> str:
    return cast("str", link.get_link(operator, ti_key=KEY))


def test_every_operator_and_sensor_has_its_links_after_serialization() -> None:
    with DAG("dag", schedule=None, start_date=datetime(2026, 1, 1)) as dag:
        plan = KafkaReplayPlanOperator(
            task_id="plan", group_id="loader", topics=["orders"], bounds=TimeBounds("2026-01-01"), parts=1
        )
        load()
        KafkaReplayOperator.partial(task_id="replay", group_id="loader", **LOAD).expand(bounds=plan.output)
        KafkaRewindOperator(task_id="rewind", group_id="loader", scenario="to-earliest", conn_id="warehouse")
        KafkaVerifyOperator(task_id="verify", group_id="loader", sink=SINK)
        KafkaLagSensor(task_id="wait", group_id="loader", conn_id="warehouse", min_lag=1)

    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))

    found = {task.task_id: {link.name: link.xcom_key for link in task.operator_extra_links} for task in stored.tasks}
    group, batch, rewind = ({link.name: link.xcom_key} for link in (GroupLink(), BatchLink(), RewindLink()))
    assert found == {
        "plan": group | rewind,
        "load": group | batch | rewind,
        "replay": group | batch | rewind,
        "rewind": group | batch | rewind,
        "verify": group | rewind,
        "wait": group | rewind,
    }


def test_airflow_reads_which_links_there_are_from_the_provider_info() -> None:
    names = [path.rpartition(".")[2] for path in get_provider_info()["extra-links"]]
    assert names == [link.__name__ for link in (GroupLink, BatchLink, RewindLink)]
    assert {path.rpartition(".")[0] for path in get_provider_info()["extra-links"]} == {GroupLink.__module__}


def test_a_link_names_the_group_and_its_state_tables() -> None:
    page = f"{BASE}/kafka-offsets/group?conn_id=warehouse&group=eu%2Forders+%26+more"
    assert url(GroupLink(), load()) == page
    assert (
        url(GroupLink(), load(state_tables=StateTables(schema="team", prefix="x_"))) == f"{page}&schema=team&prefix=x_"
    )


def test_the_last_batch_is_linked_be_it_committed_or_failed() -> None:
    operator = load()
    assert url(BatchLink(), operator) == ""
    operator._launcher = cast("Any", SimpleNamespace(last_batch=8))
    assert url(BatchLink(), operator).endswith("&batch=8")
    operator._done = {"batches": [8, 9]}
    assert url(BatchLink(), operator).endswith("&batch=9")
    assert url(BatchLink(), operator).startswith(f"{BASE}/kafka-offsets/batch?")


def test_a_mapped_task_whose_parameters_do_not_fit_has_no_links() -> None:
    """Airflow asks for its links after the error of the parameters, which a second one would hide."""
    with DAG("dag", schedule=None, start_date=datetime(2026, 1, 1)):
        mapped: Any = KafkaBatchOperator.partial(task_id="load", **LOAD).expand_kwargs([{"group": "a"}])

    assert [url(link, mapped) for link in mapped.operator_extra_links] == ["", "", ""]


FORM = f"{BASE}/kafka-offsets/rewind?conn_id=warehouse&group=loader"


def test_a_load_is_rewound_to_the_state_before_its_first_batch() -> None:
    operator = KafkaBatchOperator(task_id="load", group_id="loader", **LOAD)
    assert url(RewindLink(), operator) == FORM
    operator._done = {"batches": [8, 9]}
    assert url(RewindLink(), operator) == f"{FORM}&scenario=to-batch&value=8"


def test_a_replay_leaves_positions_that_no_rewind_brings_back() -> None:
    operator = KafkaReplayOperator(task_id="replay", group_id="loader", bounds=TimeBounds("2026-01-01"), **LOAD)
    operator._done = {"batches": [8]}
    assert url(RewindLink(), operator) == FORM


def test_a_deployment_without_rewinds_has_no_link_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__KAFKA_OFFSETS__REWIND_IN_WEB_INTERFACE", "False")
    assert url(RewindLink(), load()) == ""


def test_a_rewind_is_linked_once_it_has_moved_something() -> None:
    operator = KafkaRewindOperator(task_id="rewind", group_id="loader", scenario="to-earliest", conn_id="warehouse")
    assert (url(BatchLink(), operator), url(RewindLink(), operator)) == ("", FORM)
    operator._done = {"batch_id": 7}
    assert url(BatchLink(), operator) == f"{BASE}/kafka-offsets/batch?conn_id=warehouse&group=loader&batch=7"
    assert url(RewindLink(), operator) == f"{FORM}&scenario=undo"


def test_a_plan_without_a_database_has_no_page() -> None:
    plan = KafkaReplayPlanOperator(
        task_id="plan", group_id="loader", topics=["orders"], bounds=TimeBounds("2026-01-01"), parts=1
    )
    assert (url(GroupLink(), plan), url(RewindLink(), plan)) == ("", "")
