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
from selenium.webdriver.common.keys import Keys

from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.airflow import USER, AirflowHome
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.topics import create_topic, delete_topic
from tests.support.browser import Browser, chromium
from tests.support.clients import produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader
from tests.support.verifying import LEFT_OUT
from tests.support.web_airflow import api_server, register, write_dags
from tests.support.web_groups import DAG, TASK, many, mapped, shop

pytestmark = [pytest.mark.server, pytest.mark.long]

WIDE, NARROW = (1280, 800), (390, 844)
PAGE, FRAMELESS = "/plugin/kafka-offsets", "/kafka-offsets/"
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
        mapped(loader)
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
    assert [row.text for row in browser.all("#groups .name a")] == ["payments", "clicks", "orders", "events_events_eu"]
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
    assert "kafka_down" not in browser.driver.page_source
    browser.screenshot(shots / "dag.png")


def test_the_filter_leaves_what_it_finds(browser: Browser) -> None:
    browser.open(PAGE)
    browser.enter_frame()
    browser.find("#groups a", "payments")
    browser.find("#filters input[name=q]").send_keys("orders")
    browser.wait(lambda: [row.text for row in browser.all("#groups .name a")] == ["orders"])
    browser.find("#filters input[name=q]").clear()
    browser.find("#filters select[name=state]").send_keys("stalled")
    browser.wait(lambda: [row.text for row in browser.all("#groups .name a")] == ["clicks"])
    browser.find("#tiles a", "4").click()
    browser.find("#groups a", "payments")


def test_the_keyboard_is_enough_and_a_refresh_keeps_focus_and_selection(browser: Browser) -> None:
    payments = '#groups a[href*="group=payments"]'
    browser.open(f"{FRAMELESS}?sort=group")
    browser.find(payments)
    browser.tab_to(payments)
    browser.driver.execute_script(
        "getSelection().selectAllChildren([...document.querySelectorAll('#groups a')].find((a) => a.text === 'orders'))"
    )

    browser.refreshed()

    assert browser.has_focus(payments)
    assert browser.driver.execute_script("return getSelection().toString()") == "orders"
    browser.keys(Keys.ENTER)
    batch = browser.find("#batch-rows th a").text
    browser.tab_to("a[href*=rewind]")
    browser.keys(Keys.ENTER)
    browser.find("#rewind")
    browser.tab_to("input[name=value-to-batch]")
    browser.keys(batch, Keys.ENTER)
    browser.find(".facts b", f"to-batch {batch}")
    browser.tab_to("input[name=reason]")


def test_a_mapped_task_has_its_group_and_a_command(browser: Browser) -> None:
    group = "conn_id=warehouse&group=events_events_eu"
    browser.open(f"/kafka-offsets/group?{group}")
    browser.find("#about dd", "mapped")
    browser.find("td.by a", "load [0] log")
    browser.open(f"/kafka-offsets/verification?{group}")
    browser.find(".command code", "kafka-offsets verify events_events_eu --conn-id warehouse --table events_eu")


def test_from_a_failed_batch_to_a_rewind_that_the_next_run_loads(browser: Browser, loader: Loader, shots: Path) -> None:
    browser.open(PAGE)
    browser.enter_frame()
    browser.find("#groups a", "clicks").click()
    browser.find("#fragment .state.planned")
    browser.find("#batch-rows th a").click()
    browser.find("h1", "Batch")
    browser.find("a.button", "Log of the task")
    browser.open(ORDERS_IN_FRAME)
    browser.find("dl.tiles a", "3").click()
    browser.find("article.dead-letter")

    browser.open(ORDERS_IN_FRAME)
    browser.find("a.button", "Rewind").click()
    browser.find("input[type=datetime-local]")
    browser.screenshot(shots / "rewind.png")
    assert browser.find("input[value=undo]").get_attribute("disabled")
    browser.find("#rewind summary", "More ways").click()
    browser.find("input[name=value-shift-by]").send_keys("-60")
    browser.find("input[name=replace]").click()
    browser.find("button", "Preview").click()
    browser.find(".facts b", "shift-by -60")
    rows = int(browser.all("dl.tiles dd")[3].text)
    assert rows > 0
    browser.screenshot(shots / "rewind-preview.png")
    browser.find("input[name=reason]").send_keys("the prices were wrong")
    browser.find("button", "Rewind").click()
    browser.find("h1", "Batch")
    browser.find("dl.tiles dd", "deleted, the next load reads")
    assert not browser.all("a[href*='scenario=undo']")
    browser.screenshot(shots / "rewound.png")
    browser.find("dl.attributes dd", "the prices were wrong")
    browser.find("dl.attributes dd", USER)

    loader(
        "orders", run=TaskRun("scheduled__24", DAG, TASK, -1, 1), group_id="orders", sink=SqlTable("orders"), **LEFT_OUT
    )

    browser.open(ORDERS_IN_FRAME)
    browser.find("#batch-rows td", "load").find_element("xpath", "../th/a").click()
    browser.find("dl.attributes dd", "scheduled__24")
    assert int(browser.all("dl.tiles dd")[1].text.replace(",", "")) >= rows
    browser.open(f"{ORDERS_IN_FRAME.replace('/group?', '/rewind?')}&scenario=undo")
    browser.find(".choice p", "cannot be undone any more: batches have moved")


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
    browser.find(".command code", "kafka-offsets verify payments --conn-id warehouse --dag-id payments_hourly")
    browser.find(".command button", "Copy").click()
    browser.find(".command button", "Copied")
    browser.screenshot(shots / "command.png")
    browser.open(f"/kafka-offsets/rewind?{group}&scenario=to-earliest")
    assert not browser.all("input[name=replace]")
    browser.find("button", "Preview").click()
    browser.find(".command code", "--to-earliest --replace --dag-id payments_hourly --task-id load_payments")
    browser.find("form#execute button", "Rewind")
    browser.screenshot(shots / "rewind-command.png")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_every_page_is_accessible_in_any_window(
    browser: Browser, shots: Path, size: tuple[int, int], theme: str
) -> None:
    browser.size(*size)
    browser.dark(theme == "dark")
    for name, path, css in (
        ("groups", FRAMELESS, "#groups tbody"),
        ("group", ORDERS_IN_FRAME, "#plots canvas"),
        ("batch", ORDERS_IN_FRAME.replace("/group?", "/batch?") + "&batch=1", "table"),
        ("dead-letters", ORDERS_IN_FRAME.replace("/group?", "/dead-letters?"), "article.dead-letter"),
        ("rewind", ORDERS_IN_FRAME.replace("/group?", "/rewind?"), "#rewind"),
        ("verification", ORDERS_IN_FRAME.replace("/group?", "/verification?"), "#fragment"),
        ("error", ORDERS_IN_FRAME.replace("orders", "nosuch"), "h1"),
    ):
        browser.open(path)
        browser.find(css)
        wide = browser.driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0, "the page does not scroll sideways"
        shot = f"{'narrow' if size == NARROW else 'wide'}-{theme}.png"
        browser.screenshot(shots / f"{name}-{shot}")
        assert browser.violations() == []
        if name == "group":
            browser.driver.execute_script("document.getElementById('history').scrollIntoView()")
            browser.screenshot(shots / f"history-{shot}")
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


def test_1000_groups(browser: Browser, loader: Loader, postgres: PostgresServer, dags: Path, shots: Path) -> None:
    topics = [f"many-{number:02}" for number in range(10)]
    for topic in topics:
        create_topic(loader.kafka.bootstrap_servers, topic, 4, {})
        produce(loader.kafka, topic, [b"{}"] * 16)
    engine = sa.create_engine(postgres.url("big"))
    many(engine, loader.kafka, topics, 1_000)
    engine.dispose()
    register(browser.home, dags, "big")
    for name, size in ("wide", WIDE), ("narrow", NARROW):
        browser.size(*size)
        browser.open(f"{FRAMELESS}?db=big&sort=lag")
        browser.find("#pages", "1 to 50 of 1,000")
        browser.wait(lambda: "being measured" not in browser.find("#groups").text)
        browser.screenshot(shots / f"many-{name}.png")
        assert browser.violations() == []
    browser.find("#pages a", "Next").click()
    browser.find("#pages", "51 to 100 of 1,000")
    size = browser.driver.execute_async_script(
        "const [done] = arguments; fetch(location.href, { headers: { 'X-Part': 'live' } })"
        ".then((answer) => answer.text()).then((text) => done(new Blob([text]).size))"
    )
    assert size < 60_000
    browser.size(*WIDE)


def test_no_script_failed_and_nothing_was_blocked(browser: Browser) -> None:
    browser.errors()
    browser.open(ORDERS_IN_FRAME)
    browser.find("#plots canvas")

    assert [message for message in browser.errors() if "kafka-offsets" in message] == []


def test_a_deleted_topic_a_frozen_broker_and_a_frozen_database_are_in_words(
    browser: Browser, loader: Loader, postgres: PostgresServer, shots: Path
) -> None:
    delete_topic(loader.kafka.bootstrap_servers, "payments")
    browser.open(f"{FRAMELESS}?db=warehouse")
    browser.find("#groups .reasons", "has no topic 'payments'")
    assert "all loaded" not in browser.find("#groups tr.critical").text
    browser.screenshot(shots / "deleted-topic.png")
    broker = loader.kafka
    assert isinstance(broker, KafkaBroker)
    broker.pause()
    try:
        browser.find(".message.critical", "The Kafka cluster of connection 'kafka_default' does not answer")
        browser.find("#tiles small", "unknown")
        browser.find(".message.critical b", "big, warehouse")
        browser.screenshot(shots / "frozen-broker.png")
        assert "kafka_down" not in browser.driver.page_source
    finally:
        broker.resume()
    browser.wait(lambda: not browser.all(".message.critical"))
    postgres.pause()
    try:
        browser.find(".message.critical", "The database of connection 'warehouse' does not answer")
        browser.find("#groups a", "orders")
        browser.screenshot(shots / "frozen-database.png")
        browser.open(ORDERS_IN_FRAME)
        browser.find("h1", "No answer")
        browser.find(".message", "The database of connection 'warehouse' does not answer")
        browser.screenshot(shots / "frozen-group.png")
    finally:
        postgres.resume()
    browser.find("a.button", "Try again").click()
    browser.find("#plots canvas")
