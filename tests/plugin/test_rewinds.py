"""Rewinds on the page: the preview, its execution, and what is refused."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.offsets import OffsetRange
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter, drop_dead_letters
from airflow_kafka_offsets.exceptions import KafkaUnavailableError
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.plugin import rewinds
from airflow_kafka_offsets.plugin.rendering import time_zone
from airflow_kafka_offsets.plugin.rewinds import zoned
from airflow_kafka_offsets.plugin.sources import RegisteredTask, Source
from airflow_kafka_offsets.rewinding.scenarios import SCENARIOS
from tests.support.clients import Kafka, produce
from tests.support.command_line import leave_open
from tests.support.loads import BESIDE_OTHERS, Loader, names, positions, rows
from tests.support.verifying import LEFT_OUT
from tests.support.web import Web, of_group, readings, ticket_of

if TYPE_CHECKING:
    import httpx2

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("of_shop")]

GROUP = of_group("loader")


def preview(web: Web, scenario: str, value: str = "", **form: str) -> httpx2.Response:
    ticket = ticket_of(web.get("/rewind", "editor", **GROUP))
    typed = {"scenario": scenario, f"value-{scenario}": value, **form}
    return web.post("/rewind/preview", "editor", GROUP, ticket=ticket, **typed)


def execute(web: Web, page: httpx2.Response, reason: str = "wrong day") -> httpx2.Response:
    return web.post("/rewind/execute", "editor", GROUP, ticket=ticket_of(page), reason=reason)


def tiles(page: httpx2.Response) -> list[str]:
    return [part.partition("</dd>")[0] for part in page.text.split("<dd>")[1:]]


def test_a_rewind_is_previewed_executed_and_in_the_history(
    web: Web, orders: str, loader: Loader, postgres_engine: Engine
) -> None:
    page = preview(web, "to-offset", "2", replace="1")

    assert page.status_code == 200
    # Positions, records to load again, offsets never loaded, rows, dead letters.
    assert tiles(page) == ["1", "4", "0", "1", "3"]
    assert positions(postgres_engine) == {(orders, 0): 6}

    answer = execute(web, page)

    assert answer.status_code == 303
    assert answer.headers["location"].endswith("/batch?conn_id=warehouse&group=loader&batch=2")
    assert positions(postgres_engine) == {(orders, 0): 2}
    history = rows(postgres_engine, "SELECT kind, scenario, reason, who FROM offset_batches WHERE batch_id = 2")
    assert history == [("rewind", "to-offset 2", "wrong day", "editor")]
    assert rows(postgres_engine, "SELECT count(*) FROM target") == [(2,)]

    loader(orders, **LEFT_OUT)

    assert rows(postgres_engine, "SELECT count(*), count(DISTINCT _kafka_offset) FROM target") == [(5, 5)]


def test_a_preview_says_which_erased_records_may_become_rows(web: Web, orders: str, postgres_engine: Engine) -> None:
    dropped = DeadLetterFilter("loader", ranges=[OffsetRange(orders, 0, 3, 5, 5, None, "")])
    assert "erased" not in preview(web, "to-offset", "2", replace="1").text

    number = drop_dead_letters(dropped, engine=postgres_engine, reason="request 17")
    page = preview(web, "to-offset", "2", replace="1")

    assert number
    assert tiles(page)[-1] == "3"
    words = f"{number} dead letters were erased" if number > 1 else "1 dead letter was erased"
    assert f"{words}: the next dead letter of such a record has no contents either" in page.text
    assert "erased" not in preview(web, "to-offset", "5", replace="1").text, "it is before the position"


def test_a_preview_is_executed_as_it_was_shown_or_not_at_all(
    web: Web, orders: str, loader: Loader, postgres_engine: Engine
) -> None:
    page = preview(web, "to-earliest")
    loader(orders, run=TaskRun("run-2", "shop", "load_orders", -1, 1), **LEFT_OUT)

    answer = execute(web, page)

    assert answer.status_code == 409
    assert f"{orders}[0]: position 6 in the preview, position 8 now" in answer.text
    assert positions(postgres_engine) == {(orders, 0): 8}


def test_the_page_of_a_rewind_has_its_result_and_an_undo_only_where_it_can_be_done(
    web: Web, orders: str, loader: Loader
) -> None:
    execute(web, preview(web, "to-offset", "4"))
    moved = web.get("/batch", "editor", **GROUP, batch=2).text
    execute(web, preview(web, "to-offset", "2", replace="1"))
    removed = web.get("/batch", "editor", **GROUP, batch=3).text

    assert "<dd>1 position moved, the next load reads 2 offsets again</dd>" in moved
    assert "scenario=undo" in moved
    assert "1 position moved, 1 row and 3 dead letters deleted, the next load reads 2 offsets again" in removed
    for page in (removed, web.get("/batch", "editor", **GROUP, batch=2).text):
        assert "scenario=undo" not in page
        assert "<dt>Attempt</dt>" not in page
    form = web.get("/rewind", "editor", **GROUP).text
    assert 'value="undo" required disabled' in form


@pytest.mark.parametrize(
    ("zone", "typed", "utc"),
    [
        ("utc", "2026-07-01T08:30", "2026-07-01T08:30:00+00:00"),
        ("Europe/Zurich", "2026-07-01T08:30", "2026-07-01T08:30:00+02:00"),
        ("Europe/Zurich", "2026-07-01T08:30Z", "2026-07-01T08:30Z"),
        ("Europe/Zurich", "tomorrow", "tomorrow"),
    ],
)
def test_an_instant_of_the_date_picker_is_in_the_time_zone_of_airflow(
    monkeypatch: pytest.MonkeyPatch, zone: str, typed: str, utc: str
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__DEFAULT_TIMEZONE", zone)
    time_zone.cache_clear()
    try:
        assert zoned(typed) == utc
    finally:
        time_zone.cache_clear()


def test_a_form_that_is_sent_twice_is_executed_once(web: Web, orders: str, postgres_engine: Engine) -> None:
    page = preview(web, "shift-by", "-2")

    first, second = execute(web, page), execute(web, page)

    assert first.headers["location"] == second.headers["location"]
    assert positions(postgres_engine) == {(orders, 0): 4}


def test_a_rewind_needs_a_reason(web: Web, orders: str, postgres_engine: Engine) -> None:
    assert execute(web, preview(web, "to-earliest"), reason=" ").status_code == 422
    assert positions(postgres_engine) == {(orders, 0): 6}


def test_a_rewind_is_undone_once(web: Web, orders: str, loader: Loader, postgres_engine: Engine) -> None:
    refusal = "has no rewind that could be undone"
    assert refusal in web.get("/rewind", "editor", **GROUP).text
    assert refusal in preview(web, "undo").text
    execute(web, preview(web, "to-earliest"))

    assert execute(web, preview(web, "undo")).status_code == 303

    assert positions(postgres_engine) == {(orders, 0): 6}
    assert "<dd>1 position moved</dd>" in web.get("/batch", "editor", **GROUP, batch=3).text


def test_the_page_of_a_rewind_counts_the_offsets_that_are_never_loaded(web: Web, orders: str, kafka: Kafka) -> None:
    produce(kafka, orders, names(8, 3))
    page = preview(web, "to-latest")
    assert "To the end of the topics: what is unread is never loaded (<b>to-latest</b>). Nothing is" in page.text

    execute(web, page)

    result = web.get("/batch", "editor", **GROUP, batch=2).text
    assert "<dd>1 position moved, 5 offsets skipped</dd>" in result


def test_an_undo_is_refused_with_its_reason(web: Web, orders: str) -> None:
    execute(web, preview(web, "to-earliest", replace="1"))

    answer = preview(web, "undo")

    assert answer.status_code == 409
    assert "removed the rows of the offsets to load again" in answer.text
    assert "/rewind/execute" not in answer.text


VALUES = {
    "to-offset": "1", "shift-by": "-1", "to-datetime": "2020-01-01T00:00:00Z", "by-duration": "P1D", "to-batch": "1",
    "to-group": "other", "import": "app",
}  # fmt: skip


def test_every_scenario_and_scope_of_the_command_line(
    web: Web, orders: str, loader: Loader, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader(orders, group_id="other", **LEFT_OUT, **BESIDE_OTHERS)
    monkeypatch.setattr(rewinds, "_check_other_group", lambda *_: None)
    refusals = {"undo": "no rewind that could be undone", "import": "no consumer group"}

    for scenario in SCENARIOS:
        value = f"{orders},0,3" if scenario == "from-file" else VALUES.get(scenario, "")
        page = preview(web, scenario, value, scope=f"{orders}:0")
        if scenario in refusals:
            assert refusals[scenario] in page.text
        else:
            assert page.status_code == 200, page.text
            assert f"<b>{scenario}" in page.text


@pytest.mark.parametrize(
    ("scenario", "value", "scope", "reason"),
    [
        ("", "", "", "Choose where the positions move to"),
        ("to-offset", "two", "", "needs a whole number"),
        ("to-earliest", "", "nothing", "nothing"),
        ("to-earliest", "", "orders:x", "partitions as numbers"),
    ],
)
def test_impossible_rewind_is_explained_at_the_form(
    web: Web, orders: str, scenario: str, value: str, scope: str, reason: str
) -> None:
    page = preview(web, scenario, value, scope=scope)

    assert page.status_code == 409
    assert reason in page.text
    assert f'name="scope" value="{scope}"' in page.text


def test_a_group_that_the_user_may_not_see_lends_no_positions(web: Web, orders: str, loader: Loader) -> None:
    loader(orders, group_id="secret", **LEFT_OUT, **BESIDE_OTHERS)

    page = preview(web, "to-group", "secret")

    assert page.status_code == 409
    assert "or you may not see it" in page.text


def test_a_preview_names_no_group_that_the_user_may_not_see(web: Web, orders: str, loader: Loader) -> None:
    loader(orders, group_id="secret", **LEFT_OUT, **BESIDE_OTHERS)

    page = preview(web, "to-offset", "2")

    assert page.status_code == 200
    assert f"another group has loaded {orders}[0] 2..8 into" in page.text
    assert "secret" not in page.text


def test_an_open_batch_is_in_the_way_until_it_is_abandoned(
    web: Web, orders: str, loader: Loader, postgres_engine: Engine
) -> None:
    leave_open(loader, orders)

    page = preview(web, "to-earliest")
    assert "Batch 2 is open" in page.text
    assert "/rewind/execute" not in page.text

    assert execute(web, preview(web, "to-earliest", abandon="1")).status_code == 303
    assert rows(postgres_engine, "SELECT state FROM offset_batches WHERE batch_id = 2") == [("abandoned",)]


def test_the_rows_of_an_unknown_target_stay(web: Web, orders: str, postgres_engine: Engine) -> None:
    with postgres_engine.begin() as conn:
        conn.execute(sa.text("UPDATE offset_batches SET target_table = 'delta://elsewhere'"))

    page = preview(web, "to-earliest", replace="1")

    assert page.status_code == 409
    assert "delta://elsewhere is not a table of this database" in page.text


def test_a_broker_that_is_down_names_no_host(web: Web, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: object, **__: object) -> None:
        raise KafkaUnavailableError("10.1.2.3:9092 refuses canary-of-the-password")

    monkeypatch.setattr(rewinds, "preview_rewind", down)

    page = preview(web, "to-earliest")

    assert page.status_code == 503
    assert "The Kafka cluster of connection &#39;kafka_default&#39; does not answer" in page.text
    assert "10.1.2.3" not in page.text
    assert "canary" not in page.text


@pytest.mark.parametrize(
    "config",
    [
        {"bootstrap.servers": "10.1.2.3:9092", "ssl.ca.location": "/canary/ca.pem", "security.protocol": "ssl"},
        {"bootstrap.servers": "10.1.2.3:9092", "sasl.mechanism": "CANARY", "security.protocol": "sasl_ssl"},
        {"bootstrap.servers": "10.1.2.3:9092", "plugin.library.paths": "/canary.so"},
    ],
    ids=["certificate", "mechanism", "refused property"],
)
def test_what_the_client_says_of_its_configuration_is_for_readers_of_the_connection(
    web: Web, orders: str, monkeypatch: pytest.MonkeyPatch, config: dict[str, str]
) -> None:
    monkeypatch.setattr(web.readings, "kafka_config", lambda _: config)

    page = preview(web, "to-earliest")
    monkeypatch.setattr(web.auth_manager, "is_authorized_connection", lambda **_: True)
    told = preview(web, "to-earliest")

    assert (page.status_code, told.status_code) == (409, 409)
    for text in ("ca.location", "mechanism", "plugin", "canary", "CANARY", "10.1.2.3"):
        assert text not in page.text
    assert "Connection &#39;kafka_default&#39;: ConfigurationError" in page.text
    assert any(text in told.text for text in ("ca.location", "mechanism", "plugin"))


def test_a_topic_that_is_not_there_names_no_host(web: Web, orders: str, kafka: Kafka) -> None:
    page = preview(web, "to-earliest", scope="nothing")

    assert page.status_code == 409
    assert "has no such topic or partition, or does not show it" in page.text
    assert kafka.bootstrap_servers not in page.text


def test_a_connection_of_kafka_that_was_deleted_is_named(
    web: Web, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.providers.common.compat.sdk import AirflowNotFoundException

    def missing(_: str) -> None:
        raise AirflowNotFoundException("canary")

    monkeypatch.setattr(web.readings, "kafka_config", missing)

    page = preview(web, "to-earliest")

    assert page.status_code == 409
    assert "There is no connection &#39;kafka_default&#39;" in page.text


def test_a_connection_that_only_other_dags_name_is_not_offered(
    users: Any, orders: str, kafka: Kafka, postgres_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source("warehouse")
    tasks = {
        "shop": [RegisteredTask("load_orders", "loader", source, "kafka_default")],
        "payroll": [RegisteredTask("load_payroll", "payroll", source, "kafka_payroll")],
    }
    web = Web(readings({"warehouse": postgres_engine}, kafka, lambda: tasks), users)
    web.readings.dags(time.monotonic() + 60)
    monkeypatch.setattr(web.auth_manager, "get_authorized_dag_ids", lambda **_: {"shop"})
    # Unlike an editor, an operator may read connections.
    form, of_reader = (web.get("/rewind", user, **GROUP) for user in ("editor", "operator"))

    refused = web.post(
        "/rewind/preview", "editor", GROUP, ticket=ticket_of(form), scenario="to-latest", kafka_conn_id="kafka_payroll"
    )

    assert "kafka_payroll" not in form.text
    assert "kafka_payroll" in of_reader.text
    assert "The group is not loaded through connection &#39;kafka_payroll&#39;" in refused.text


def test_a_form_with_a_character_that_no_database_takes_is_refused(web: Web, orders: str) -> None:
    for form in ({"scope": "orders\0"}, {"value-to-group": "\0"}, {"kafka_conn_id": "\0"}, {"ticket": "\0"}):
        answer = web.post("/rewind/preview", "editor", GROUP, **{"scenario": "to-group", **form})
        assert answer.status_code == 400
        assert "that no database takes" in answer.text


def test_a_form_of_unknown_size_is_refused(web: Web, orders: str) -> None:
    for length, status in (("abc", 400), ("-1", 400), ("", 400), ("٣", 400), ("9" * 5_000, 413)):
        headers = {
            b"Sec-Fetch-Site": b"same-origin",
            b"Content-Type": b"application/x-www-form-urlencoded",
            b"Content-Length": length.encode(),
        }
        answer = web.client("editor").post("/kafka-offsets/rewind/preview", params=GROUP, headers=headers)
        assert answer.status_code == status, length


@pytest.mark.parametrize("path", ["/rewind/preview", "/rewind/execute", "/verification"])
@pytest.mark.parametrize(
    "kind",
    ["multipart/form-data; boundary=x", "multipart/form-data; boundary=x; charset=punycode", "application/json", ""],
)
def test_a_form_of_another_type_is_not_read(web: Web, orders: str, path: str, kind: str) -> None:
    """Starlette decodes parts as these say, in the event loop; of punycode, 200 KB take a minute."""
    part = b'--x\r\nContent-Disposition: form-data; name="ticket"\r\n\r\n' + b"a" * 1000 + "-\U0001f600".encode()
    answer = web.client("editor").post(
        f"/kafka-offsets{path}",
        params=GROUP,
        content=part + b"\r\n--x--\r\n",
        headers={"Sec-Fetch-Site": "same-origin", "Content-Type": kind},
    )
    assert answer.status_code == 415
    assert "application/x-www-form-urlencoded is expected" in answer.text


def test_waiting_records_count_as_never_loaded(web: Web, orders: str, kafka: Kafka) -> None:
    produce(kafka, orders, names(8, 3))

    assert tiles(preview(web, "to-latest"))[:3] == ["1", "0", "5"]
