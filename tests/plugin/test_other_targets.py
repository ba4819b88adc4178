"""Targets that the API server cannot read or change: the page says so, and has the commands that do it where the DAG
files are.
"""

from __future__ import annotations

import html
import re
import shlex

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.cli.program import parser
from airflow_kafka_offsets.plugin.group_targets import GroupTarget, replace_command, verify_command
from airflow_kafka_offsets.plugin.rewinds import RewindEstimate, RewindForm
from airflow_kafka_offsets.plugin.sources import RegisteredTask, Source
from airflow_kafka_offsets.rewinding.preview import RewindPreview
from airflow_kafka_offsets.sinks.sink import DatabaseTable
from tests.support.loads import positions
from tests.support.web import Web, of_group, ticket_of

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("of_shop")]

GROUP = of_group("loader")
VERIFY = "kafka-offsets verify loader --conn-id warehouse"
OF_TASK = "--dag-id shop --task-id load_orders"


def estimate(target: GroupTarget, kafka_conn_id: str, open_batch: int | None = None) -> RewindEstimate:
    preview = RewindPreview("g", "cluster", 1, "to-earliest", "rewind", (), open_batch=open_batch)
    return RewindEstimate(preview, target, kafka_conn_id)


@pytest.fixture
def lake(web: Web, orders: str, postgres_engine: Engine) -> None:
    """The group has loaded into a table of a lake."""
    with postgres_engine.begin() as conn:
        conn.execute(sa.text("UPDATE offset_batches SET target_table = 'delta://s3://bucket/orders'"))


def commands(page: str) -> list[str]:
    return [
        html.unescape(text)
        for text in re.findall(r"<code>((?:printf|kafka-offsets)[^<]*)</code></pre><button[^>]*data-copy", page)
    ]


def preview(web: Web, scenario: str, value: str = "", **form: str) -> str:
    ticket = ticket_of(web.get("/rewind", "editor", **GROUP))
    return web.post(
        "/rewind/preview", "editor", GROUP, ticket=ticket, **{"scenario": scenario, f"value-{scenario}": value}, **form
    ).text


def forget_dags(web: Web) -> None:
    """Have the DAGs name the database, and nothing else."""
    task = RegisteredTask("other", source=Source("warehouse"), kafka_conn_id="kafka_default")
    web.readings.registered = lambda: {"shop": [task]}
    web.readings.__post_init__()


def test_target_the_page_cannot_verify_has_a_command_instead_of_a_button(web: Web, lake: None) -> None:
    group = web.get("/group", "editor", **GROUP).text
    page = web.get("/verification", "editor", **GROUP).text

    assert "How to verify</a>" in group
    assert "<form" not in group + page
    assert "Target delta://s3://bucket/orders is not a table of this database" in page
    assert commands(page) == [f"{VERIFY} {OF_TASK}"]
    assert "--upsert-key" not in page


def test_a_form_of_earlier_starts_no_verification_that_would_fail(
    web: Web, orders: str, postgres_engine: Engine
) -> None:
    """By which key its rows are replaced is not known."""
    ticket = ticket_of(web.get("/group", "editor", **GROUP))
    forget_dags(web)

    answer = web.post("/verification", "editor", GROUP, ticket=ticket)

    assert answer.status_code == 409
    assert "No task of a DAG names table target" in answer.text
    page = web.get("/verification", "editor", **GROUP).text
    assert commands(page) == [f"{VERIFY} --table target --table-schema public"]
    assert "If the table has an upsert key, add <code>--upsert-key</code>" in page


def test_a_target_that_no_arguments_name_is_for_the_operator(web: Web, lake: None) -> None:
    forget_dags(web)

    page = web.get("/verification", "editor", **GROUP).text

    assert commands(page) == []
    assert "Verify with <code>KafkaVerifyOperator</code>" in page
    assert "data-copy" not in preview(web, "to-earliest")


def test_a_task_that_verifies_the_group_is_linked(web: Web, lake: None) -> None:
    task = RegisteredTask("prove", "loader", Source("warehouse"), "kafka_default", loads=False, verifies=True)
    load = RegisteredTask("load", "loader", Source("warehouse"), "kafka_default")
    web.readings.registered = lambda: {"shop": [load, task], "secret": [task]}
    web.readings.__post_init__()

    page = web.get("/verification", "editor", **GROUP).text

    assert '<a href="/dags/shop/tasks/prove" data-airflow>prove</a>' in page
    assert "secret" not in page


def test_a_rewind_that_leaves_rows_is_offered_with_the_command_that_removes_them(
    web: Web, lake: None, orders: str, postgres_engine: Engine
) -> None:
    form = web.get("/rewind", "editor", **GROUP).text
    assert 'name="replace"' not in form
    assert "this page leaves its rows as they are" in form

    page = preview(web, "shift-by", "-2", scope=f"{orders}:0")

    assert commands(page) == [
        f"kafka-offsets rewind loader --conn-id warehouse --topic {orders}:0 --shift-by=-2 --replace {OF_TASK}"
    ]
    answer = web.post(
        "/rewind/execute", "editor", GROUP, ticket=re.findall(r'name="ticket" value="([^"]+)"', page)[0], reason="again"
    )
    assert answer.status_code == 303
    assert positions(postgres_engine) == {(orders, 0): 4}


def test_no_row_is_deleted_from_a_table_that_only_the_state_tables_name(
    web: Web, orders: str, postgres_engine: Engine
) -> None:
    """Also with a form that was shown before."""
    with postgres_engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE salaries AS SELECT * FROM target"))
        conn.execute(sa.text("UPDATE offset_batches SET target_table = 'salaries'"))

    form = web.get("/rewind", "editor", **GROUP).text
    left, refused = preview(web, "to-earliest"), preview(web, "to-earliest", replace="1")

    for page in (form, left):
        assert "No task of a DAG names table salaries" in page
        assert "leaves its rows as they are" in page
    assert 'name="replace"' not in form
    assert commands(left) == [f"kafka-offsets rewind loader --conn-id warehouse --to-earliest --replace {OF_TASK}"]
    assert "its rows cannot be removed here. Rewind with KafkaRewindOperator(replace=…)" in refused
    assert "/rewind/execute" not in refused


def test_a_preview_without_a_task_names_the_operator_that_deletes_rows(web: Web, orders: str) -> None:
    forget_dags(web)

    form, page = web.get("/rewind", "editor", **GROUP).text, preview(web, "to-earliest")

    for text in (form, page):
        assert "<code>KafkaRewindOperator</code> and its parameter <code>replace</code>" in text
    assert commands(page) == []


def test_a_rewind_forward_removes_nothing_and_needs_no_command(web: Web, lake: None) -> None:
    assert commands(preview(web, "to-latest")) == []


@pytest.mark.parametrize(
    "wish",
    [
        RewindForm("to-earliest", scope="orders payments:0,1"),
        RewindForm("to-offset", "2", isolation_level="read_uncommitted", abandon=True),
        RewindForm("shift-by", "-2"),
        RewindForm("to-datetime", "2026-01-01T00:00:00Z"),
        RewindForm("by-duration", "P1D"),
        RewindForm("to-batch", "7"),
        RewindForm("to-group", "it's; rm -rf $HOME"),
        RewindForm("import", "orders app"),
        RewindForm("undo"),
    ],
    ids=lambda wish: wish.scenario,
)
def test_the_commands_are_those_of_the_command_line(wish: RewindForm) -> None:
    target = GroupTarget("delta://x", task=("shop", "load orders"))
    source = Source("warehouse", "team", "x_")

    text = replace_command(source, "eu orders", estimate(target, "kafka_eu", open_batch=9), wish)

    assert text is not None
    args = vars(parser(with_airflow=True).parse_args(shlex.split(text)[1:]))
    assert (args["group"], args["conn_id"], args["schema"], args["prefix"]) == ("eu orders", *source)
    assert (args["dag_id"], args["task_id"], args["replace"]) == ("shop", "load orders", None)
    assert (args["kafka_conn_id"], args["execute"]) == ("kafka_eu", False)
    assert (args["abandon"], args["isolation_level"]) == (9 if wish.abandon else None, wish.isolation_level)
    name = "from_group" if wish.scenario == "import" else wish.scenario.replace("-", "_")
    assert str(args[name]) == (wish.value or "True")


def test_offsets_of_a_file_are_typed_into_the_command() -> None:
    wish = RewindForm("from-file", "orders,0,3\r\norders,1,4")

    text = replace_command(Source("w"), "g", estimate(GroupTarget("delta://x", task=("d", "t")), "kafka_default"), wish)

    assert text == (
        "printf '%s\\n' orders,0,3 orders,1,4 | kafka-offsets rewind g --conn-id w --from-file - --replace "
        "--dag-id d --task-id t"
    )


def test_a_table_is_verified_with_its_schema() -> None:
    target = GroupTarget("shop.orders", existing=DatabaseTable("orders", "shop"))

    text = verify_command(Source("w"), "g", target)

    assert text == "kafka-offsets verify g --conn-id w --table orders --table-schema shop"
