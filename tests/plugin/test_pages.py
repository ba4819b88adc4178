"""The pages of groups, over real data."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError

from airflow_kafka_offsets import DeadLetters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter, drop_dead_letters
from airflow_kafka_offsets.exceptions import KafkaUnavailableError
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.ledger.group_changes import delete_group, rename_group
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.plugin import background
from airflow_kafka_offsets.plugin.readings import Readings, SourceLook
from airflow_kafka_offsets.plugin.sources import RegisteredTask, Source
from devstack.airflow import AirflowHome
from devstack.topics import create_topic, delete_records, delete_topic
from tests.support.clients import Kafka, produce
from tests.support.command_line import leave_open
from tests.support.loads import BESIDE_OTHERS, Loader, names
from tests.support.web import PREFIX, Web, of_group, readings
from tests.support.web_groups import many, rewind

pytestmark = pytest.mark.server

CANARY = "canary-of-the-password"


def test_the_table_has_what_a_group_needs(web: Web, orders: str) -> None:
    page = web.get("/").text

    assert 'conn_id=warehouse&amp;group=loader">loader</a>' in page
    assert '<td class="num" data-label="Lag">2</td>' in page
    assert "3 dead letters in the last batch" in page
    assert "3 rows" in page


def test_a_batch_that_nobody_finishes_needs_attention(web: Web, loader: Loader, orders: str) -> None:
    leave_open(loader, orders)

    page = web.get("/").text

    assert '<tr class="warning"' in page
    assert "batch 2 is open, and no run holds the group: the next run loads it, or its log says why not" in page


def test_a_group_has_partitions_batches_and_links_to_logs(web: Web, orders: str) -> None:
    page = web.get("/group", **of_group("loader")).text

    assert f'<th scope="row" data-label="Topic">{orders}</th>' in page
    assert '<td class="num" data-label="Position">6</td><td class="num" data-label="End">8</td>' in page
    assert 'href="/dags/shop/runs/run-1/tasks/load_orders?try_number=1" data-airflow' in page


def test_the_history_has_a_point_for_each_batch(web: Web, orders: str, loader: Loader) -> None:
    loader(orders, on_bad_record=DeadLetters())

    history = web.get("/group/history", **of_group("loader")).json()

    assert [(point["batch"], point["records"], point["rows"]) for point in history["points"]] == [(1, 6, 3), (2, 2, 2)]
    assert all(point["stage"] >= 0 and point["commit"] >= 0 and point["delay"] >= 0 for point in history["points"])
    assert history["marks"] == []


def test_gaps_and_rewinds_are_marked_in_the_history(
    web: Web, orders: str, loader: Loader, kafka: Kafka, postgres_engine: Engine
) -> None:
    produce(kafka, orders, names(8, 3))
    delete_records(kafka.bootstrap_servers, orders, 8)
    loader(orders, on_data_loss="skip")
    rewind(loader, "loader", 1, "target")

    marks = web.get("/group/history", **of_group("loader")).json()["marks"]

    assert [(mark["kind"], mark["text"]) for mark in marks] == [
        ("gap", "gap: 2 offsets"),
        ("rewind", "rewind 3"),
    ]


def test_a_batch_has_its_ranges(web: Web, orders: str) -> None:
    page = web.get("/batch", **of_group("loader", batch=1)).text

    assert '<td data-label="Start" class="num">0</td><td data-label="End" class="num">6</td>' in page
    assert re.search(r'<td data-label="Size" class="num">\d+ B</td>', page)
    assert web.get("/batch", **of_group("loader", batch=99)).status_code == 404


def test_the_history_of_a_deleted_and_a_renamed_group_is_in_words(
    web: Web, orders: str, loader: Loader, postgres_engine: Engine
) -> None:
    ledger = Ledger(postgres_engine)
    rename_group(ledger, "loader", "shop", who="ana", reason="a test")
    rename_group(ledger, "shop", "loader", who="ana", reason="a test")
    delete_group(ledger, "loader", who="ana", reason="a test")

    page = web.get("/group", **of_group("loader")).text

    for text in (">group deleted</td>", "group renamed <span", ">from &#39;shop&#39;</span>"):
        assert text in page, text
    # Of the groups that are gone, a DAG names this one.
    groups = web.get("/").text
    assert "deleted by batch 6" in groups
    assert "group=shop" not in groups
    for group, became in (
        ("loader", "group deleted, by batch 6"),
        ("shop", "group renamed to &#39;loader&#39;, by batch 4"),
    ):
        assert f"<dt>Target</dt><dd>{became}" in web.get("/group", **of_group(group)).text
    assert "group=loader" in web.get("/group", **of_group("shop")).text, "a link to its name since"
    deleted, renamed = (web.get("/batch", **of_group("loader", batch=batch)).text for batch in (6, 5))
    assert "<dd>1 position removed, and the contents of the dead letters</dd>" in deleted
    assert "New position" not in deleted
    assert "<dd>group renamed (from &#39;shop&#39;)</dd>" in renamed
    for text in deleted, renamed:
        assert "Rewind to the state before it" not in text
        assert "<dt>Records</dt>" not in text


def test_dead_letters_are_decoded_and_escaped(web: Web, orders: str) -> None:
    page = web.get("/dead-letters", **of_group("loader")).text

    assert "&#34;id&#34;: &#34;&lt;script&gt;one&#34;" in page
    assert "<script>one" not in page
    assert "//4=" in page
    assert "Base64, 2 bytes" in page


def test_contents_that_were_deleted_are_not_null(web: Web, orders: str, postgres_engine: Engine) -> None:
    drop_dead_letters(DeadLetterFilter("loader"), engine=postgres_engine, who="ana", reason="request 17")

    page = web.get("/dead-letters", **of_group("loader")).text

    assert page.count("Key, value and headers were deleted") == 3
    assert "null" not in page


def test_dead_letters_are_paged(web: Web, orders: str, loader: Loader, kafka: Kafka) -> None:
    produce(kafka, orders, [b"[]"] * 40)
    loader(orders, on_bad_record=DeadLetters())

    pages = [web.get("/dead-letters", **of_group("loader", page=number)).text for number in (1, 2, 3, 4)]

    assert [page.count('<article class="dead-letter">') for page in pages] == [20, 20, 3, 0]
    assert ["Next" in page for page in pages] == [True, True, False, False]


def test_large_values_are_cut(web: Web, orders: str, loader: Loader, kafka: Kafka) -> None:
    produce(kafka, orders, [b"[" + "ü".encode() * 100_000 + b"]"])
    loader(orders, on_bad_record=DeadLetters())

    page = web.get("/dead-letters", **of_group("loader", batch=2)).text

    assert len(page) < 20_000
    assert "text, 200,002 bytes, the beginning" in page


def test_a_broker_that_is_down_is_a_state_of_the_page(web: Web, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(conn_id: str) -> None:
        raise KafkaUnavailableError(f"10.1.2.3:9092 does not answer to {CANARY}")

    monkeypatch.setattr(web.readings, "cluster", down)
    monkeypatch.setattr(web.auth_manager, "get_authorized_dag_ids", lambda **_: {"shop"})

    for path, query in (("/", {}), ("/group", of_group("loader"))):
        page = web.get(path, "viewer", **query)
        assert page.status_code == 200
        assert "The Kafka cluster of connection &#39;kafka_default&#39; does not answer" in page.text
        assert "10.1.2.3" not in page.text
        assert "10.1.2.3" in web.get(path, "operator", **query).text
    assert '<td class="num" data-label="Position">6</td>' in page.text


def test_each_group_names_its_own_connection_and_a_dead_one_of_another_dag_is_none_of_its_business(
    postgres_engine: Engine, airflow_home: AirflowHome, kafka: Kafka, orders: str
) -> None:
    source = Source("warehouse")
    tasks = {
        "shop": [RegisteredTask("load", "loader", source, "kafka_default")],
        "other": [RegisteredTask("load", "other", source, "kafka_badhost")],
    }
    web = Web(readings({"warehouse": postgres_engine}, kafka, lambda: tasks))
    web.readings.dags(time.monotonic() + 60)
    real = web.readings.cluster

    def cluster(conn_id: str) -> Cluster:
        if conn_id == "kafka_badhost":
            raise KafkaUnavailableError("127.0.0.1:1 does not answer")
        return real(conn_id)

    web.readings.cluster = cluster
    assert '<td class="num" data-label="Lag">2</td>' in (page := web.get("/").text)
    assert "kafka_badhost" not in page

    def down(conn_id: str) -> Cluster:
        raise KafkaUnavailableError(f"{conn_id} is down")

    web.readings.cluster = down
    web.readings._lags.clear()

    page = web.get("/").text
    assert "The Kafka cluster of connection &#39;kafka_default&#39; does not answer" in page
    assert "kafka_badhost" not in page
    assert "<dd>–" in page
    assert "<small>unknown</small>" in page


def test_one_message_says_that_a_cluster_does_not_answer_to_several_databases(
    postgres_engine: Engine, airflow_home: AirflowHome, kafka: Kafka, orders: str
) -> None:
    tasks = {"shop": [RegisteredTask("load", "loader", Source(name), "kafka_default") for name in ("big", "warehouse")]}
    web = Web(readings({"big": postgres_engine, "warehouse": postgres_engine}, kafka, lambda: tasks))
    reasons = iter(["transport failure", "timed out"])

    def down(_: str) -> Cluster:
        raise KafkaUnavailableError(f"127.0.0.1:1: {next(reasons)}")

    web.readings.cluster = down
    web.readings.dags(time.monotonic() + 60)

    page = web.get("/").text

    assert "<b>big, warehouse</b>" in page
    assert page.count("does not answer") == 1


def test_a_deleted_topic_is_no_lag_of_zero(web: Web, orders: str, kafka: Kafka) -> None:
    delete_topic(kafka.bootstrap_servers, orders)

    page = web.get("/").text
    group = web.get("/group", **of_group("loader")).text

    for text in (page, group):
        assert "all loaded" not in text
        assert "1 partition with an error" in text
        assert f"has no topic {orders!r}".replace("'", "&#39;") in text
        assert '<span class="state critical">error</span>' in text
    assert "<dt>Lag</dt><dd>unknown</dd>" in group


def test_why_headroom_is_unknown_names_hosts_to_readers_of_the_connection_alone(
    web: Web, orders: str, of_shop: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(_: Cluster, topics: Sequence[str], unknown: dict[str, str]) -> dict[str, timedelta]:
        unknown |= dict.fromkeys(topics, "Kafka at 10.1.2.3: the ACL DescribeConfigs is missing")
        return {}

    monkeypatch.setattr(Cluster, "retention", denied)

    seen = {role: web.get("/group", role, **of_group("loader")).text for role in ("viewer", "operator")}

    assert all("Headroom is unknown" in page for page in seen.values())
    assert ["10.1.2.3" in page for page in seen.values()] == [False, True]


def test_a_database_that_hangs_is_named_beside_what_it_said_last(
    web: Web, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "group=loader" in web.get("/").text
    end = threading.Event()

    def hangs(*_: object) -> AbstractContextManager[Ledger]:
        end.wait(60)
        raise OperationalError("SELECT 1", {}, Exception("gone"))

    monkeypatch.setattr(web.readings, "ledger", hangs)
    for name, seconds in (("PATIENCE_SECONDS", 0.0), ("LATE_SECONDS", 0.0)):
        monkeypatch.setattr(background, name, seconds)
    for cache in web.readings._stored.values():
        cache._max_age = 0.0

    page = web.get("/").text.replace("&#39;", "'")
    end.set()

    assert "The database of connection 'warehouse' does not answer. Its groups are shown as they were" in page
    assert "group=loader" in page
    assert "<small>and 1 database</small>" in page


def test_the_tab_of_a_dag_has_no_broken_database_of_another(
    postgres_engine: Engine, airflow_home: AirflowHome, kafka: Kafka, orders: str
) -> None:
    tasks = {
        "shop": [RegisteredTask("load", "loader", Source("warehouse"), "kafka_default")],
        "other": [RegisteredTask("load", "other", Source("wh_badpw"), "kafka_default")],
    }
    found = readings({"warehouse": postgres_engine}, kafka, lambda: tasks)
    found.configured = dict
    web = Web(found)
    found.dags(time.monotonic() + 60)

    assert "wh_badpw" in web.get("/").text
    page = web.get("/dags/shop").text
    assert "wh_badpw" not in page
    assert "group=loader" in page


def test_errors_are_pages_with_a_way_back(web: Web, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        web.get("/group", **of_group("nosuch")): (
            404,
            "There is no group &#39;nosuch&#39; in warehouse, or you may not see it<",
        ),
        web.get("/nosuch"): (404, "Not Found"),
        web.get("/batch", **of_group("loader", batch="x")): (422, "no value for batch"),
    }

    for answer, (status, text) in answers.items():
        assert answer.status_code == status
        assert text in answer.text
        assert '<a href="/kafka-offsets/">Kafka offsets</a>' in answer.text


@pytest.mark.usefixtures("orders")
def test_a_server_that_has_just_started_says_that_it_may_not_know_the_group_yet(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Readings, "has_dags", False)

    answer = web.get("/group", **of_group("nosuch"))

    assert answer.status_code == 404
    assert "or you may not see it, or the server has just started and knows no DAG yet: try again<" in answer.text


def test_a_refresh_sends_what_changes_alone(web: Web, orders: str) -> None:
    for path, query in (("/", {}), ("/group", of_group("loader")), ("/verification", of_group("loader"))):
        whole = web.get(path, **query).text
        part = web.client("operator").get(f"{PREFIX}{path}", params=query, headers={"X-Part": "live"}).text

        assert part.strip().startswith('<div id="fragment"')
        assert "<html" in whole
        assert "<html" not in part


def test_1000_groups_take_a_few_queries_and_little_space_and_are_filtered_sorted_and_paged(
    airflow_home: AirflowHome, postgres_engine: Engine, kafka: Kafka
) -> None:
    topics = [f"many_{number}" for number in range(25)]
    for topic in topics:
        create_topic(kafka.bootstrap_servers, topic, 10, {})
        produce(kafka, topic, [b"{}"] * 16)
    many(postgres_engine, kafka, topics, 1_000)
    statements: list[str] = []
    sa.event.listen(postgres_engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    web = Web(readings({"warehouse": postgres_engine}, kafka))

    def shown(**query: Any) -> list[str]:
        page = web.client("operator").get(f"{PREFIX}/", params=query, headers={"X-Part": "live"}).text
        assert len(page.encode()) < 60_000
        return re.findall(r'/group\?[^"]+">([^<]+)</a>', page)

    every = sorted(f"team-{number % 17:02}.loader-{number:03}" for number in range(1_000))
    assert shown(sort="group") == every[:50]
    # For the table and for the lag, each with the check of the version.
    assert len(statements) < 40
    assert shown(sort="group", page=2) == every[50:100]
    assert shown(sort="group", page=99) == every[-50:]
    assert shown(q="loader-017") == ["team-00.loader-017"]
    tiles = re.findall("<dd>(.*?)</dd>", web.get("/", q="loader-017").text)
    assert [re.sub("<.*?>", "", tile) for tile in tiles[:2]] == ["1 of 1,000", "0"]
    assert len(shown(state="stalled")) == 20
    assert shown(state="attention") == shown(state="stalled")
    assert shown(db="elsewhere") == []
    lags = re.findall(r'data-label="Lag">(\d+)', web.get("/", sort="lag").text)
    assert lags == sorted(lags, key=int, reverse=True)
    assert "1 to 50 of 1,000" in web.get("/").text


def test_a_database_that_does_not_answer_delays_no_other(
    airflow_home: AirflowHome, postgres_engine: Engine, kafka: Kafka, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(background, "LATE_SECONDS", 600.0)
    web = Web(readings({"dead": postgres_engine, "warehouse": postgres_engine}, kafka))
    real, end = web.readings.ledger, threading.Event()

    @contextmanager
    def ledger(conn_id: str, schema: str | None, prefix: str) -> Iterator[Ledger]:
        if conn_id == "dead":
            end.wait()
        with real(conn_id, schema, prefix) as opened:
            yield opened

    monkeypatch.setattr(web.readings, "ledger", ledger)

    while "group=loader" not in (page := web.get("/").text):
        pass
    end.set()

    assert "The database of connection 'dead' has not answered yet" in page


def test_an_error_of_a_database_shows_no_secret(web: Web, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def ledger(conn_id: str, *_: object) -> None:
        raise OperationalError("SELECT 1", {}, Exception(f"no route to {conn_id}"), connection_invalidated=True)

    monkeypatch.setattr(web.readings, "ledger", ledger)

    assert "cannot be read: no route to warehouse" in web.get("/").text.replace("&#39;", "'")
    assert "no route" not in web.get("/", "viewer").text
    assert web.get("/group", **of_group("loader")).status_code == 503


def test_no_url_of_a_connection_is_in_an_answer(
    airflow_home: AirflowHome, postgres_engine: Engine, kafka: Kafka
) -> None:
    """The password is wrong, so that the driver complains."""
    engine = sa.create_engine(postgres_engine.url.set(password=CANARY), hide_parameters=True)
    web = Web(readings({"warehouse": engine}, kafka))

    for role, shown in (("viewer", "No groups yet"), ("operator", "No groups in the databases that answer")):
        page = web.get("/", role).text
        assert shown in page
        assert CANARY not in page
    engine.dispose()


def test_a_database_without_state_tables_is_empty(web: Web) -> None:
    page = web.get("/").text

    assert "Nothing was loaded into this database yet" in page
    assert "A group appears with the first run of its task" in page


@pytest.mark.usefixtures("orders")
def test_what_needs_attention_is_counted_so_far_while_something_is_read_for_the_first_time(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "so far" not in web.get("/").text

    monkeypatch.setattr(SourceLook, "is_first", True)

    assert re.search(r">0</a> <small>so far</small>", web.get("/").text)


def test_a_dag_has_its_own_groups(web: Web, orders: str, loader: Loader, kafka: Kafka) -> None:
    loader(orders, group_id="other", on_bad_record=DeadLetters(), **BESIDE_OTHERS)

    page = web.get("/dags/shop").text

    assert "group=loader" in page
    assert "group=other" not in page
    assert "group=other" in web.get("/").text


def test_a_dag_that_names_a_database_registers_it(
    airflow_home: AirflowHome, postgres_engine: Engine, kafka: Kafka, orders: str
) -> None:
    found = readings({"warehouse": postgres_engine}, kafka)
    source = Source("warehouse")
    found.configured = dict
    web = Web(found)
    assert "No groups yet" in web.get("/").text

    task = RegisteredTask("load", "loader", source, "kafka_default")
    found = readings({"warehouse": postgres_engine}, kafka, lambda: {"shop": [task]})
    found.configured = dict

    assert "group=loader" in Web(found).get("/dags/shop").text
