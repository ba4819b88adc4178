"""What operators refuse when a DAG file is parsed, so that it is an import error of the DAG and not a task that
fails.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
from airflow.sdk import DAG
from jinja2 import UndefinedError

from airflow_kafka_offsets import (
    Avro,
    BatchBounds,
    Coordination,
    Json,
    KafkaBatchOperator,
    KafkaReplayOperator,
    SqlTable,
    Staging,
)
from airflow_kafka_offsets.core.offsets import OffsetRange, PartitionLog
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.hooks import connections
from airflow_kafka_offsets.operators.base import PipelineOperator
from airflow_kafka_offsets.operators.batch import KafkaReplayPlanOperator
from airflow_kafka_offsets.operators.positions import KafkaRewindOperator, KafkaVerifyOperator
from airflow_kafka_offsets.replaying import bounds
from airflow_kafka_offsets.sensors.lag import KafkaLagSensor
from airflow_kafka_offsets.triggers.lag import KafkaLagEventTrigger

GIVEN: dict[str, Any] = {
    "task_id": "load",
    "group_id": "group",
    "topics": ["orders"],
    "value_format": Json("id BIGINT"),
    "sink": SqlTable("target", conn_id="warehouse"),
}


OWN: dict[type, dict[str, Any]] = {KafkaBatchOperator: {}, KafkaReplayOperator: {"bounds": {"orders": {0: [0, 1]}}}}

WRONG: list[tuple[str, Any, str]] = [
    (
        "value_format",
        "id BIGINT",
        "value_format must be a format, such as Json(…) or Raw(…); got value_format='id BIGINT'",
    ),
    ("sink", "target", "sink must be a sink, such as SqlTable(…); got sink='target'"),
    ("sink", SqlTable("target"), "The sink 'target' has no conn_id"),
    (
        "transform",
        len,
        "transform must be the import path of a function, 'package.module.function', an ArrowTransform(…), Sql(…), or "
        "None; got ",
    ),
    ("limits", 1000, "limits must be Limits(…); got limits=1000"),
    ("on_data_loss", "ignore", "on_data_loss must be one of fail, skip"),
    (
        "on_bad_record",
        "dead_letter",
        "on_bad_record must be 'fail', or DeadLetters(…); got on_bad_record='dead_letter'",
    ),
    ("extra_columns", {"at": "timestamp"}, "extra_columns must be ExtraColumns(…)"),
    ("reading", "committed", "reading must be Reading(…); got reading='committed'"),
    ("staging", "/tmp", "staging must be Staging(…); got staging='/tmp'"),
    ("state_tables", None, "state_tables must be StateTables(…); got state_tables=None"),
    ("spark", "spark_default", "spark must be Spark(…); got spark='spark_default'"),
    ("kafka_conn_id", None, "got kafka_conn_id=None"),
    ("assets", "no", "assets must be True or False"),
]


@pytest.mark.parametrize("operator", [KafkaBatchOperator, KafkaReplayOperator])
@pytest.mark.parametrize(("name", "value", "told"), WRONG, ids=[f"{name}-{n}" for n, (name, _, _) in enumerate(WRONG)])
def test_invalid_parameter_of_both_is_refused(
    operator: type[PipelineOperator], name: str, value: Any, told: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        operator(**(GIVEN | OWN[operator] | {name: value}))


def test_a_load_refuses_another_coordination() -> None:
    with pytest.raises(ConfigurationError, match=r"^coordination must be Coordination\(…\); got coordination='skip'"):
        KafkaBatchOperator(**GIVEN, coordination="skip")  # type: ignore[arg-type]


def test_a_replay_replaces_only_where_it_is_told_so() -> None:
    with pytest.raises(ConfigurationError, match="replace must be True or False; got replace='no'"):
        KafkaReplayOperator(**GIVEN, **OWN[KafkaReplayOperator], replace="no")  # type: ignore[arg-type]


GROUP: dict[str, Any] = {"task_id": "task", "group_id": "group"}
SINK = SqlTable("target", conn_id="warehouse")
LAG: dict[str, Any] = GROUP | {"conn_id": "warehouse", "min_lag": 1}


@pytest.mark.parametrize(
    ("operator", "given", "told"),
    [
        (KafkaVerifyOperator, {"sink": "target"}, "sink must be a sink, such as SqlTable(…); got sink='target'"),
        (KafkaVerifyOperator, {"sink": SqlTable("target")}, "The sink 'target' has no conn_id"),
        (KafkaVerifyOperator, {"sink": SINK, "kafka_conn_id": ""}, "got kafka_conn_id=''"),
        (KafkaVerifyOperator, {"sink": SINK, "isolation_level": "all"}, "got isolation_level='all'"),
        (
            KafkaRewindOperator,
            {"replace": "target"},
            "replace must be a sink, such as SqlTable(…), or None; got replace='target'",
        ),
        (KafkaRewindOperator, {"abandon_open_batch": "no"}, "abandon_open_batch must be True or False"),
        (KafkaRewindOperator, {"new_cluster": 1}, "new_cluster must be True or False; got new_cluster=1"),
        (KafkaRewindOperator, {"conn_id": None}, "got conn_id=None"),
        (KafkaReplayPlanOperator, {"conn_id": 5}, "got conn_id=5"),
        (KafkaReplayPlanOperator, {"state_tables": "x_"}, "state_tables must be StateTables(…); got state_tables='x_'"),
        (KafkaLagSensor, {"kafka_conn_id": None}, "got kafka_conn_id=None"),
        (KafkaLagSensor, {"isolation_level": "all"}, "got isolation_level='all'"),
        (KafkaLagSensor, {"per_partition": "no"}, "per_partition must be True or False; got per_partition='no'"),
    ],
)
def test_invalid_parameter_of_other_operators_is_refused(operator: Any, given: dict[str, Any], told: str) -> None:
    needed = {
        KafkaVerifyOperator: GROUP,
        KafkaRewindOperator: GROUP | {"scenario": "undo", "conn_id": "warehouse"},
        KafkaReplayPlanOperator: GROUP | {"topics": ["orders"], "parts": 2, "bounds": BatchBounds(1)},
        KafkaLagSensor: LAG,
    }
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        operator(**needed[operator] | given)


TEMPLATE = "{{ params.of_the_run }}"


@pytest.mark.parametrize(
    ("operator", "given", "name"),
    [
        (KafkaBatchOperator, GIVEN | {"on_data_loss": TEMPLATE}, "on_data_loss"),
        (
            KafkaBatchOperator,
            GIVEN | {"value_format": Avro(registry_conn_id="registry", columns_from=TEMPLATE)},  # type: ignore[arg-type]
            "value_format.columns_from",
        ),
        (KafkaReplayOperator, GIVEN | OWN[KafkaReplayOperator] | {"on_data_loss": TEMPLATE}, "on_data_loss"),
        (
            KafkaReplayPlanOperator,
            GROUP | {"topics": ["orders"], "parts": 2, "bounds": BatchBounds(1), "isolation_level": TEMPLATE},
            "isolation_level",
        ),
        (KafkaRewindOperator, GROUP | {"scenario": "undo", "conn_id": "w", "new_group": TEMPLATE}, "new_group"),
        (KafkaVerifyOperator, GROUP | {"sink": SINK, "isolation_level": TEMPLATE}, "isolation_level"),
        (KafkaLagSensor, LAG | {"isolation_level": TEMPLATE}, "isolation_level"),
    ],
)
def test_a_template_that_airflow_does_not_render_is_refused(operator: Any, given: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} is not templated, .* templated are group_id"):
        operator(**given)


@pytest.mark.parametrize("name", ["group_id", "topics", "conn_id", "start"])
def test_event_trigger_has_no_templates(name: str) -> None:
    given: dict[str, Any] = {"group_id": "group", "conn_id": "warehouse", "min_lag": 1, name: TEMPLATE}

    with pytest.raises(ConfigurationError, match=f"^{name} is not templated"):
        KafkaLagEventTrigger(**given)


def test_templated_parameters_are_checked_at_run_time() -> None:
    KafkaBatchOperator(
        **GIVEN | {"group_id": "{{ params.group }}", "topics": "{{ params.topics }}"},
        transform="{{ params.transform }}",
        staging=Staging(dir="{{ params.staging_dir }}"),
        start="{{ params.start }}",
        until="{{ data_interval_end }}",
        coordination=Coordination(mirror_to="{{ params.mirror_to }}"),
    )


def test_a_run_without_a_data_interval_is_told_so_where_its_end_is_rendered() -> None:
    operator = KafkaBatchOperator(**GIVEN, until="{{ data_interval_end }}")
    operator.until = "None"

    told = "until is rendered to 'None': this run has no data interval, because an asset triggered it"
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        operator.execute({})


@pytest.mark.parametrize(
    "operator",
    [
        partial(KafkaBatchOperator, **GIVEN, until="{{ data_interval_end }}"),
        partial(
            KafkaRewindOperator,
            **GROUP,
            scenario="to-datetime",
            value="{{ data_interval_start }}",
            conn_id="warehouse",
        ),
    ],
    ids=["load", "rewind"],
)
def test_a_template_of_a_data_interval_that_a_run_does_not_have_is_explained(operator: Any) -> None:
    with DAG("no_interval"):
        task = operator()

    with pytest.raises(ConfigurationError, match="' is undefined: this run has no data interval"):
        task.render_template_fields({})


def test_another_name_that_a_template_does_not_know_is_airflows_error() -> None:
    with DAG("typo"):
        operator = KafkaBatchOperator(**GIVEN, until="{{ data_intervall_end }}")

    with pytest.raises(UndefinedError, match="'data_intervall_end' is undefined"):
        operator.render_template_fields({})


def test_the_plan_of_a_replay_logs_the_first_of_its_ranges(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranges = [OffsetRange("orders", partition, 0, 10, 10) for partition in range(1000)]
    logs = {one.topic_partition: PartitionLog(0, 10) for one in ranges}
    monkeypatch.setattr(connections, "kafka_config", lambda conn_id: {"bootstrap.servers": "127.0.0.1:1"})
    monkeypatch.setattr(bounds, "resolve_bounds", lambda *_: (ranges, logs))
    operator = KafkaReplayPlanOperator(
        task_id="plan", group_id="group", topics=["orders"], parts=2, bounds={"orders": {0: [0, 10]}}
    )
    assert len(operator.execute({})) == 2
    logged = capsys.readouterr().out
    assert "10,000 offsets in 2 parts: orders[0] 0..10, " in logged
    assert ", orders[9] 0..10, and 990 more" in logged
    assert "orders[10]" not in logged
