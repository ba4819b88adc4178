"""Verifications that a click starts, and their results."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from fastapi import HTTPException
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.plugin import verifications
from airflow_kafka_offsets.plugin.sources import Source
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.process import wait_until
from tests.support.web import Web, of_group, ticket_of

if TYPE_CHECKING:
    import httpx2

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("of_shop", "no_results")]

GROUP = of_group("loader")


@pytest.fixture
def no_results(web: Web) -> None:
    """Results of other tests are gone."""
    from airflow.models.log import Log  # noqa: TID251
    from airflow.utils.session import create_session  # noqa: TID251

    with create_session() as session:
        session.execute(sa.delete(Log).where(Log.event.startswith("kafka_offsets.")))


def click(web: Web) -> httpx2.Response:
    return web.post("/verification", "editor", GROUP, ticket=ticket_of(web.get("/group", "editor", **GROUP)))


def results(web: Web) -> list[verifications.Verification]:
    found: list[verifications.Verification] = web.app.state.verifications.latest(Source("warehouse"), "loader")
    return found


def ended(web: Web) -> verifications.Verification:
    wait_until(lambda: bool(results(web)) and not results(web)[0].is_running, 60, "the verification to end")
    return results(web)[0]


def test_a_click_proves_a_group_and_the_result_is_kept(web: Web, orders: str) -> None:
    answer = click(web)

    assert answer.status_code == 303
    assert answer.headers["location"].endswith("/verification?conn_id=warehouse&group=loader")
    found = ended(web)
    assert (found.outcome, found.who) == ("proved", "editor")
    assert found.text == "1 partition, 1 committed batch, 6 records, 3 rows, 3 dead letters, 0 skipped offsets."
    page = web.get("/verification", "viewer", **GROUP).text
    assert found.text in page
    assert "<button" not in page
    # Another process of the API server shows it, too.
    assert verifications.Verifications(web.readings).latest(Source("warehouse"), "loader") == [found]


def test_violations_are_shown(web: Web, orders: str, postgres_engine: Engine) -> None:
    with postgres_engine.begin() as conn:
        conn.execute(sa.text("DELETE FROM target WHERE _kafka_offset = 1"))
    click(web)

    assert ended(web).outcome == "wrong"
    assert "batch 1" in web.get("/verification", "viewer", **GROUP).text


def test_one_of_a_group_runs_at_a_time(web: Web, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, end = threading.Event(), threading.Event()
    real = verifications.verify  # type: ignore[attr-defined]  # the name that the module calls

    def wait(*args: object, **options: object) -> object:
        begun.set()
        end.wait()
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(verifications, "verify", wait)
    click(web)
    begun.wait()

    assert results(web)[0].outcome == "running"
    answer = click(web)
    assert answer.status_code == 409
    assert "A verification of this group is running" in answer.text
    monkeypatch.setattr(verifications, "AT_ONCE", 1)
    with pytest.raises(HTTPException, match="1 verifications are running"):
        web.app.state.verifications.start(Source("warehouse"), "other", SqlTable("target"), who="x", dag_id=None)
    end.set()
    ended(web)


def test_a_verification_whose_process_ended_is_lost(web: Web, orders: str) -> None:
    of_group = {"process": web.app.state.verifications._process, "number": "of no thread"}
    verifications._write(verifications._STARTED, Source("warehouse"), "loader", "ann", None, **of_group)

    assert [each.outcome for each in results(web)] == ["lost"]


def test_an_error_names_no_secret(web: Web, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise sa.exc.OperationalError("SELECT 1", {}, Exception("canary-of-the-password"))

    monkeypatch.setattr(verifications, "verify", fail)
    click(web)

    assert ended(web).outcome == "failed"
    assert "canary" not in web.get("/verification", "operator", **GROUP).text
