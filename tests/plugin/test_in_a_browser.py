"""The pages in a real Airflow and a real Chromium. With SCREENSHOTS=docs/images, those of the documents are made anew."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from devstack.airflow import AirflowHome
from devstack.kafka import KafkaBroker
from devstack.postgres import PostgresServer
from devstack.topics import create_topic
from tests.support.browser import Browser, chromium
from tests.support.clients import produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader
from tests.support.web_airflow import api_server, write_dags
from tests.support.web_groups import many, shop

pytestmark = [pytest.mark.server, pytest.mark.long]

WIDE, NARROW = (1280, 800), (430, 900)
PAGE = "/plugin/kafka-offsets"
ORDERS = f"{PAGE}/kafka-offsets/group?conn_id=warehouse&group=orders"


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with KafkaBroker() as broker, PostgresServer() as postgres:
        shop(Loader(broker, sa.create_engine(postgres.create_database("warehouse")), InlineLauncher()))
        topics = [f"many-{number:02}" for number in range(25)]
        for topic in topics:
            create_topic(broker.bootstrap_servers, topic, 20, {})
            produce(broker, topic, [b"{}"] * 16)
        many(sa.create_engine(postgres.create_database("big")), broker, topics, 500)
        connections = {
            "kafka_default": json.dumps(
                {"conn_type": "kafka", "extra": json.dumps({"bootstrap.servers": broker.bootstrap_servers})}
            ),
            "kafka_down": json.dumps({"conn_type": "kafka", "extra": json.dumps({"bootstrap.servers": "127.0.0.1:1"})}),
            "warehouse": postgres.airflow_uri("warehouse"),
            "big": postgres.airflow_uri("big"),
            "dead": "postgres://loader:canary-of-the-password@127.0.0.1:1/dead",
        }
        dags = write_dags(tmp_path_factory.mktemp("dags"))
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
    browser.find("dl.tiles a", "3").click()
    browser.find("article.letter")
    browser.screenshot(shots / "letters.png")
    browser.find("article.letter a", "batch").click()
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


def test_narrow_windows_and_dark_ones(browser: Browser, shots: Path) -> None:
    for name, size, theme in (("dark", WIDE, "dark"), ("narrow", NARROW, "light")):
        browser.size(*size)
        for page, path, css in (("groups", PAGE, "#groups tbody"), ("group", ORDERS, "#plots canvas")):
            browser.open(path)
            browser.driver.execute_script(f"localStorage.setItem('theme', '{theme}')")
            browser.open(path)
            browser.enter_frame()
            browser.find(css)
            assert browser.driver.execute_script("return document.documentElement.dataset.theme") == theme
            wide = browser.driver.execute_script("return document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, "the page does not scroll sideways"
            browser.screenshot(shots / f"{page}-{name}.png")
    browser.size(*WIDE)


def test_no_script_failed_and_nothing_was_blocked(browser: Browser) -> None:
    browser.errors()
    browser.open(ORDERS)
    browser.enter_frame()
    browser.find("#plots canvas")

    assert [message for message in browser.errors() if "kafka-offsets" in message] == []
