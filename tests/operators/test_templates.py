"""Templates in the parameters of operators: what Airflow renders, what it becomes, and what Rendered Templates
shows.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from airflow.sdk import DAG, BaseOperator, XComArg
from airflow.sdk.execution_time.task_runner import _serialize_rendered_fields

from airflow_kafka_offsets import (
    Avro,
    Branch,
    Coordination,
    DeadLetters,
    ExtraColumns,
    Header,
    IcebergTable,
    Json,
    KafkaBatchOperator,
    KafkaLagSensor,
    KafkaReplayOperator,
    KafkaRewindOperator,
    KafkaVerifyOperator,
    Limits,
    Reading,
    Spark,
    Sql,
    SqlTable,
    Staging,
    StateTables,
)
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.sinks.fan_out import FanOut

PARAMS = {"number": 5, "share": 0.5, "table": "orders", "none": None, "empty": ""}

NUMBER: Any = "{{ params.number }}"

LIMITS = Limits(max_records=NUMBER)

GIVEN: dict[str, Any] = {
    "task_id": "load",
    "group_id": "group",
    "topics": ["orders"],
    "value_format": Json("id BIGINT"),
    "sink": SqlTable("target", conn_id="warehouse"),
}


def rendered(operator: type, *, native: bool = False, **given: Any) -> Any:
    """Return an operator as it is when its task runs."""
    with DAG("templates", render_template_as_native_obj=native):
        task = operator(**given)
    task.render_template_fields({"params": PARAMS, "task": task})
    return task


def test_sink_templates_are_rendered() -> None:
    sink = SqlTable(
        "{{ params.table }}",
        schema="{% if true %}shop{% endif %}",
        conn_id="{{ params.table }}_db",
        upsert_key=("{{ params.table }}_id",),
    )
    operator = rendered(KafkaBatchOperator, **GIVEN | {"sink": sink})

    assert operator.sink == SqlTable("orders", schema="shop", conn_id="orders_db", upsert_key=("orders_id",))
    assert operator.pipeline().sink.name == "shop.orders"


def test_format_and_column_templates_are_rendered() -> None:
    operator = rendered(
        KafkaBatchOperator,
        **GIVEN
        | {
            "value_format": Json("{{ params.table }}_id BIGINT"),
            "extra_columns": ExtraColumns(
                key_format=Avro(
                    registry_conn_id="{{ params.table }}", subject="{{ params.table }}-key", schema='{"type": "int"}\n'
                ),
                metadata={"source": Header("{{ params.table }}"), "at": "timestamp"},
            ),
            "transform": Sql("SELECT * FROM records WHERE orders_id > {{ params.number }}"),
        },
    )

    pipeline = operator.pipeline()
    assert pipeline.value_format == Json("orders_id BIGINT")
    # A text without a template stays as it is, also where it ends with a newline.
    assert pipeline.key_format == Avro(registry_conn_id="orders", subject="orders-key", schema='{"type": "int"}\n')
    assert pipeline.extra_columns.metadata == {"source": Header("orders"), "at": "timestamp"}
    assert pipeline.transform == Sql("SELECT * FROM records WHERE orders_id > 5")


@pytest.mark.parametrize("native", [False, True])
def test_numbers_are_read_from_what_is_rendered(native: bool) -> None:
    number: Any = "{{ params.number }}"
    operator = rendered(
        KafkaBatchOperator,
        native=native,
        **GIVEN,
        limits=Limits(max_records=number, max_bytes="{{ params.none }}"),  # type: ignore[arg-type]
        on_bad_record=DeadLetters(limit="{{ params.share }}"),  # type: ignore[arg-type]
        staging=Staging(slice_offsets=number),
        reading=Reading(max_record_bytes=number),
    )

    assert operator.limits == Limits(max_records=5)
    assert operator.on_bad_record == DeadLetters(limit=0.5)
    assert (operator.staging, operator.reading) == (Staging(slice_offsets=5), Reading(max_record_bytes=5))


def test_an_empty_text_is_none_where_none_has_a_meaning() -> None:
    empty: Any = "{{ params.empty }}"
    operator = rendered(
        KafkaBatchOperator,
        **GIVEN,
        on_bad_record=DeadLetters(topic=empty),
        coordination=Coordination(mirror_to=empty),
        state_tables=StateTables(schema=empty),
        limits=Limits(max_records=empty),
        staging=Staging(dir=empty),
    )

    assert operator.on_bad_record == DeadLetters()
    assert (operator.coordination, operator.state_tables) == (Coordination(), StateTables())
    assert (operator.limits, operator.staging) == (Limits(), Staging())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"limits": Limits(max_records="{{ params.table }}")},  # type: ignore[arg-type]
            "Limits.max_records must be an int of at least 1, or None for the usual size; got max_records='orders'",
        ),
        (
            {"staging": Staging(slice_offsets="{{ params.empty }}")},  # type: ignore[arg-type]
            "Staging.slice_offsets must be an int of at least 1; got slice_offsets=''",
        ),
        ({"group_id": "{{ params.empty }}"}, "group_id must be a text that is not empty; got group_id=''"),
        (
            {"kafka_conn_id": "{{ params.empty }}"},
            "kafka_conn_id must be a text that is not empty; got kafka_conn_id=''",
        ),
    ],
)
def test_rendered_values_are_checked_like_literals(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        rendered(KafkaBatchOperator, **GIVEN | given)


def test_a_mapped_task_is_rendered_too() -> None:
    with DAG("mapped"):
        mapped = KafkaReplayOperator.partial(
            **GIVEN | {"sink": SqlTable("{{ params.table }}", conn_id="warehouse")},
            limits=LIMITS,
        ).expand(bounds=[{"orders": {0: [0, 5]}}])
    task: Any = mapped.unmap({"bounds": {"orders": {0: [0, 5]}}})
    context: Any = {"params": PARAMS, "task": task}
    # As Airflow's mapped operators do.
    task._do_render_template_fields(task, mapped.template_fields, context, task.get_template_env(), set())

    assert (task.sink.name, task.limits.max_records) == ("orders", 5)


def test_several_sinks_are_in_the_order_of_their_rendered_names() -> None:
    first, second = SqlTable("{{ 'z' }}", conn_id="warehouse"), SqlTable("b", conn_id="{{ 'warehouse' }}")
    operator = rendered(
        KafkaBatchOperator, **GIVEN | {"sink": [Branch(first, Sql("SELECT {{ 'id' }} FROM records")), second]}
    )

    assert isinstance(operator.sink, FanOut)
    assert [branch.sink.name for branch in operator.sink.branches] == ["b", "z"]
    assert operator.sink.branches[1].transform == Sql("SELECT id FROM records")


def test_several_sinks_that_turn_out_to_be_the_same_are_refused() -> None:
    sinks = [SqlTable("orders", conn_id="warehouse"), SqlTable("{{ params.table }}", conn_id="warehouse")]

    with pytest.raises(ConfigurationError, match="has 'orders' twice"):
        rendered(KafkaBatchOperator, **GIVEN | {"sink": sinks})


def test_other_operators_render_theirs() -> None:
    sink, connection = SqlTable("{{ params.table }}", conn_id="warehouse"), "{{ params.table }}"
    verify = rendered(
        KafkaVerifyOperator, task_id="verify", group_id="g", sink=sink, kafka_conn_id="{{ params.empty }}"
    )
    given: dict[str, Any] = {"task_id": "r", "group_id": "g", "scenario": "undo", "conn_id": connection}
    rewind = rendered(KafkaRewindOperator, **given, replace=sink, preview_only="{{ params.empty or 'True' }}")

    assert (verify.sink.name, verify.kafka_conn_id) == ("orders", None)
    assert (rewind.replace.name, rewind.conn_id, rewind.preview_only) == ("orders", "orders", True)
    with pytest.raises(ConfigurationError, match="preview_only must be True or False; got preview_only='orders'"):
        rendered(KafkaRewindOperator, **given, preview_only=connection)


def test_thresholds_of_a_sensor_are_rendered() -> None:
    given: dict[str, Any] = {"task_id": "wait", "group_id": "g", "conn_id": "{{ params.table }}"}
    sensor = rendered(KafkaLagSensor, **given, min_lag="{{ params.number }}", max_lag="{{ params.none }}")
    options = sensor._rendered_watch()
    assert (options.min_lag, options.max_lag, options.conn_id) == (5, None, "orders")

    with pytest.raises(ConfigurationError, match=r"min_lag must be a whole number of offsets .*; got min_lag='orders'"):
        rendered(KafkaLagSensor, **given, min_lag="{{ params.table }}")._rendered_watch()
    with pytest.raises(ConfigurationError, match="got min_lag='5'"):
        KafkaLagSensor(task_id="wait", group_id="g", conn_id="warehouse", min_lag="5")
    with pytest.raises(ConfigurationError, match=r"^per_partition is not templated"):
        KafkaLagSensor(**given, min_lag="{{ params.number }}", per_partition="{{ params.none }}")  # type: ignore[arg-type]


def test_rendered_templates_show_target_columns_and_caps() -> None:
    sink = SqlTable("{{ params.table }}", conn_id="warehouse", upsert_key=("id",))
    operator = rendered(KafkaBatchOperator, **GIVEN | {"sink": sink, "limits": LIMITS})

    shown = _serialize_rendered_fields(operator)
    assert shown["sink"] == {"type": "SqlTable", "table": "orders", "conn_id": "warehouse", "upsert_key": ["id"]}
    assert shown["value_format"] == {"type": "Json", "ddl": "id BIGINT"}
    caps = {"max_records": 5, "max_bytes": None, "time_budget": None, "history_retention": None}
    assert shown["limits"] == {"type": "Limits"} | caps
    assert shown["reading"] == {
        "type": "Reading",
        "isolation_level": "read_committed",
        "every_offset": False,
        "max_record_bytes": 64 << 20,
        "idle_timeout": "0:02:00",
        "decode_timeout": "0:05:00",
    }
    assert shown["on_bad_record"] == "fail"
    assert KafkaBatchOperator.template_fields_renderers.keys() >= {"limits", "reading", "on_bad_record", "spark"}


def test_rendered_templates_show_no_secrets() -> None:
    secret = "canary-5e1f"
    sink = IcebergTable(
        "shop.orders",
        {"uri": f"https://user:{secret}@catalog", "credential": secret},
        conn_id="warehouse",
        properties={"s3.secret-access-key": secret},
    )
    operator = rendered(KafkaBatchOperator, **GIVEN | {"sink": sink})

    shown = json.dumps(_serialize_rendered_fields(operator))
    assert "shop.orders" in shown
    assert secret not in shown


@pytest.mark.parametrize(
    "name", ["spark.hadoop.fs.azure.account.key.x", "spark.sql.catalog.lake.credential", "x.sas.y"]
)
def test_rendered_templates_show_no_secret_properties_of_spark(name: str) -> None:
    """Airflow masks passwords of connections, and few words in their extras."""
    secret = "{{ params.table }}"  # rendered: orders
    spark = Spark(
        conf={name: secret, "spark.executor.memory": "2g"},
        options={
            "cluster": {"conf": [{name: secret}], "size": "{{ params.number }}"},
            "parameters": f"--conf {name}={secret} --conf spark.executor.cores=2",
        },
    )
    shown: Any = _serialize_rendered_fields(rendered(KafkaBatchOperator, **GIVEN | {"spark": spark}))["spark"]
    assert shown == {
        "type": "Spark",
        "conn_id": "spark_default",
        "conf": {name: "***", "spark.executor.memory": "2g"},
        "options": {
            "cluster": {"conf": [{name: "***"}], "size": "5"},
            "parameters": f"--conf {name}=*** --conf spark.executor.cores=2",
        },
    }
    assert "params.table" not in repr(spark)
    written = Spark(conf={name: "abc"}), Spark(options={"clusters": [{"conf": {name: "abc"}}]})
    for each in written:
        with pytest.raises(ConfigurationError, match="holds a secret, which every user who may see the DAG"):
            KafkaBatchOperator(**GIVEN | {"spark": each})


def test_an_xcom_is_a_parameter_of_the_task_and_no_part_of_a_sink() -> None:
    with DAG("xcoms"):
        plan = BaseOperator(task_id="plan")
        load = KafkaBatchOperator(**GIVEN, start=XComArg(plan))  # type: ignore[arg-type]
        assert load.upstream_task_ids == {"plan"}
        with pytest.raises(ConfigurationError, match=r"^limits\.max_records is not templated"):
            KafkaBatchOperator(**GIVEN | {"task_id": "limited", "limits": Limits(max_records=XComArg(plan))})  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=r"^sink\.table is not templated"):
            KafkaBatchOperator(**GIVEN | {"task_id": "other", "sink": SqlTable(XComArg(plan), conn_id="warehouse")})  # type: ignore[arg-type]
