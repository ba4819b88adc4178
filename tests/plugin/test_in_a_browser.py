"""The pages in a real Airflow and a real Chromium. With SCREENSHOTS=docs/images, those of the documents are made
anew.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.airflow import USER, AirflowHome
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.topics import create_topic
from tests.support.browser import Browser, chromium
from tests.support.clients import produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader
from tests.support.verifying import LEFT_OUT
from tests.support.web_airflow import api_server, register, write_dags
from tests.support.web_groups import DAG, TASK, many, shop

pytestmark = [pytest.mark.server, pytest.mark.long]

WIDE, NARROW = (1280, 800), (430, 900)
PAGE = "/plugin/kafka-offsets"
# Airflow's frame shows the first page only; the others are opened as they are in it.
ORDERS_IN_FRAME = "/kafka-offsets/group?conn_id=warehouse&group=orders"


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def loader(postgres: PostgresServer) -> Iterator[Loader]:
    with KafkaBroker() as broker:
        loader = Loader(broker, sa.create_engine(postgres.create_database("warehouse")), InlineLauncher())
        shop(loader)
        yield loader
        loader.engine.dispose()


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dags(tmp_path_factory.mktemp("dags"))


@pytest.fixture(scope="module")
def browser(loader: Loader, postgres: PostgresServer, dags: Path) -> Iterator[Browser]:
    broker = loader.kafka
    postgres.create_database("big")
    connections = {
        "kafka_default": json.dumps(
            {"conn_type": "kafka", "extra": json.dumps({"bootstrap.servers": broker.bootstrap_servers})}
        ),
        "kafka_down": json.dumps({"conn_type": "kafka", "extra": json.dumps({"bootstrap.servers": "127.0.0.1:1"})}),
        "warehouse": postgres.airflow_uri("warehouse"),
        "big": postgres.airflow_uri("big"),
        "dead": "postgres://loader:canary-of-the-password@127.0.0.1:1/dead",
    }
    with (
        AirflowHome(dags=dags, connections=connections, config={"kafka_offsets.conn_ids": ""}) as home,
        api_server(home),
        chromium(home) as window,
    ):
        window.size(*WIDE)
        window.login()
        yield window


def test_the_anonymous_are_refused(browser: Browser) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{browser.home.url}/kafka-offsets/", timeout=30)


def test_from_the_groups_to_a_dead_letter(browser: Browser, shots: Path) -> None:
    browser.open(PAGE)
    browser.enter_frame()
    browser.find("#groups a", "payments")
    browser.find("#groups tbody tr td.num", "1,200")
    assert [row.text for row in browser.all("#groups .name a")] == ["payments", "clicks", "orders"]
    browser.screenshot(shots / "groups.png")
    browser.find("#groups a", "orders").click()
    browser.find("#plots canvas")
    browser.screenshot(shots / "group.png")
    browser.driver.execute_script("document.getElementById('history').scrollIntoView()")
    browser.screenshot(shots / "history.png")
    marks = browser.driver.execute_async_script(
        "const [done] = arguments, url = document.getElementById('plots').dataset.url;"
        "fetch(url).then((answer) => answer.json()).then(({ marks }) => done(marks.map(({ kind }) => kind)))"
    )
    assert set(marks) == {"gap", "rewind"}
    browser.find("dl.tiles a", "3").click()
    browser.find("article.dead-letter")
    browser.screenshot(shots / "dead-letters.png")
    browser.find("article.dead-letter a", "batch").click()
    browser.find("a.button", "Log of the task").click()
    browser.driver.switch_to.default_content()
    browser.wait(lambda: "/dags/shop/runs/scheduled__23/tasks/load_orders" in browser.driver.current_url)


def test_a_dag_has_a_tab(browser: Browser, shots: Path) -> None:
    browser.open("/dags/shop/plugin/kafka-offsets-of-dag")
    browser.enter_frame()
    browser.find("#groups a", "orders")

    assert len(browser.all("#groups tbody tr")) == 1
    browser.screenshot(shots / "dag.png")


def test_the_filter_leaves_what_it_finds(browser: Browser) -> None:
    browser.open(PAGE)
    browser.enter_frame()
    browser.find("#groups a", "payments")
    browser.find("#filter").send_keys("orders")

    assert [row.text for row in browser.all("#groups .name a")] == ["orders"]


def test_from_a_failed_batch_to_a_rewind_that_the_next_run_loads(browser: Browser, loader: Loader, shots: Path) -> None:
    browser.open(PAGE)
    browser.enter_frame()
    browser.find("#groups a", "clicks").click()
    browser.find("#fragment .state.planned")
    browser.find("td a", "").click()
    browser.find("h1", "Batch")
    browser.find("a.button", "Log of the task")
    browser.open(ORDERS_IN_FRAME)
    browser.find("dl.tiles a", "3").click()
    browser.find("article.dead-letter")

    browser.open(ORDERS_IN_FRAME)
    browser.find("a.button", "Rewind").click()
    browser.find("input[value=shift-by]")
    browser.screenshot(shots / "rewind.png")
    browser.find("input[name=value-shift-by]").send_keys("-60")
    browser.find("input[name=replace]").click()
    browser.find("button", "Preview").click()
    browser.find("h1", "shift-by -60")
    rows = int(browser.all("dl.tiles dd")[3].text)
    assert rows > 0
    browser.screenshot(shots / "rewind-preview.png")
    browser.find("input[name=reason]").send_keys("the prices were wrong")
    browser.find("button", "Rewind").click()
    browser.find("h1", "Batch")
    browser.find("dl.attributes dd", "the prices were wrong")
    browser.find("dl.attributes dd", USER)

    loader(
        "orders", run=TaskRun("scheduled__24", DAG, TASK, -1, 1), group_id="orders", sink=SqlTable("orders"), **LEFT_OUT
    )

    browser.open(ORDERS_IN_FRAME)
    browser.find("#batches ~ div td", "load").find_element("xpath", "../td[1]/a").click()
    browser.find("dl.attributes dd", "scheduled__24")
    assert int(browser.all("dl.tiles dd")[1].text.replace(",", "")) >= rows
    browser.open(f"{ORDERS_IN_FRAME.replace('/group?', '/rewind?')}&scenario=undo")
    browser.find("button", "Preview").click()
    browser.find("p.message.critical", "removed the rows of the offsets to load again")


def test_a_click_verifies(browser: Browser, shots: Path) -> None:
    browser.open(ORDERS_IN_FRAME)
    browser.find("button", "Verify").click()
    browser.find(".state.proved")
    browser.screenshot(shots / "verification.png")


def test_a_target_elsewhere_has_a_command_to_copy(browser: Browser, loader: Loader, shots: Path) -> None:
    """The groups of other tests keep their targets."""
    with loader.engine.begin() as conn:
        elsewhere = (
            "UPDATE offset_batches SET target_table = 'delta://s3://lake/payments' WHERE consumer_group = 'payments'"
        )
        assert conn.execute(sa.text(elsewhere)).rowcount
    group = "conn_id=warehouse&group=payments"
    browser.open(f"/kafka-offsets/group?{group}")
    browser.find("header a", "How to verify").click()
    browser.find(".command code", "airflow kafka-offsets verify payments --conn-id warehouse --dag-id payments_hourly")
    browser.find(".command button", "Copy").click()
    browser.find(".command button", "Copied")
    browser.screenshot(shots / "command.png")
    browser.open(f"/kafka-offsets/rewind?{group}&scenario=to-earliest")
    assert not browser.all("input[name=replace]")
    browser.find("button", "Preview").click()
    browser.find(".command code", "--to-earliest --replace --dag-id payments_hourly --task-id load_payments")
    browser.find("form#execute button", "Rewind")
    browser.screenshot(shots / "rewind-command.png")


def test_narrow_windows_and_dark_ones(browser: Browser, shots: Path) -> None:
    for name, size, theme in (("dark", WIDE, "dark"), ("narrow", NARROW, "light"), ("narrow-dark", NARROW, "dark")):
        browser.size(*size)
        browser.dark(theme == "dark")
        for page, path, css in (
            ("groups", "/kafka-offsets/", "#groups tbody"),
            ("group", ORDERS_IN_FRAME, "#plots canvas"),
            ("dead-letters", ORDERS_IN_FRAME.replace("/group?", "/dead-letters?"), "article.dead-letter"),
            ("rewind", ORDERS_IN_FRAME.replace("/group?", "/rewind?"), "#rewind"),
        ):
            browser.open(path)
            browser.find(css)
            wide = browser.driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, "the page does not scroll sideways"
            browser.screenshot(shots / f"{page}-{name}.png")
    browser.size(*WIDE)
    browser.dark(False)


def test_the_frame_has_the_theme_of_airflow(browser: Browser, shots: Path) -> None:
    for theme in ("dark", "light"):
        browser.open(PAGE)
        browser.driver.execute_script(f"localStorage.setItem('theme', '{theme}')")
        browser.open(PAGE)
        browser.enter_frame()
        browser.find("#groups tbody")
        assert browser.driver.execute_script("return document.documentElement.dataset.theme") == theme
        browser.screenshot(shots / f"airflow-{theme}.png")


def test_500_groups(browser: Browser, loader: Loader, postgres: PostgresServer, dags: Path, shots: Path) -> None:
    topics = [f"many-{number:02}" for number in range(25)]
    for topic in topics:
        create_topic(loader.kafka.bootstrap_servers, topic, 20, {})
        produce(loader.kafka, topic, [b"{}"] * 16)
    engine = sa.create_engine(postgres.url("big"))
    many(engine, loader.kafka, topics, 500)
    engine.dispose()
    register(browser.home, dags, "big")
    for name, size in ("wide", WIDE), ("narrow", NARROW):
        browser.size(*size)
        browser.open("/kafka-offsets/")
        browser.wait(lambda: len(browser.driver.find_elements("css selector", "#groups tbody tr")) > 500)
        browser.wait(
            lambda: browser.driver.execute_script(
                "return !document.getElementById('groups').textContent.includes('being measured')"
            )
        )
        browser.screenshot(shots / f"many-{name}.png")
    browser.size(*WIDE)


def test_no_script_failed_and_nothing_was_blocked(browser: Browser) -> None:
    browser.errors()
    browser.open(ORDERS_IN_FRAME)
    browser.find("#plots canvas")

    assert [message for message in browser.errors() if "kafka-offsets" in message] == []
