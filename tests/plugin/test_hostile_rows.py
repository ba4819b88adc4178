"""State tables of which one group has rows that no program of this package writes: its pages answer, and nothing that
they show does anything; the pages of other groups are as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.plugin import readings
from tests.support.clients import produce
from tests.support.command_line import leave_open
from tests.support.hostile import HostileRows, controls
from tests.support.loads import BESIDE_OTHERS, Loader, TopicFactory, names, rows
from tests.support.verifying import LEFT_OUT
from tests.support.web import of_group, ticket_of

if TYPE_CHECKING:
    from tests.support.web import Web

RUN = TaskRun("run-1", "shop", "load_orders", -1, 1)

pytestmark = [pytest.mark.server, pytest.mark.usefixtures("of_shop")]

PAGES = ("/group", "/group/history", "/dead-letters", "/verification", "/rewind")


@pytest.fixture(params=["database", "mariadb_database"])
def postgres_engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """The positions are in Postgres, or in MariaDB."""
    engine = sa.create_engine(request.getfixturevalue(request.param))
    yield engine
    engine.dispose()


@pytest.fixture
def hostile(loader: Loader, orders: str, postgres_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> HostileRows:
    for name in ("STORED_SECONDS", "LAG_SECONDS"):
        monkeypatch.setattr(readings, name, 0.0)
    options = {"group_id": "hostile", **LEFT_OUT, **BESIDE_OTHERS}
    loader(orders, run=RUN, **options)
    produce(loader.kafka, orders, names(8, 1))
    leave_open(loader, orders, run=replace(RUN, run_id="run-2"), **options)
    return HostileRows(postgres_engine, "hostile")


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(data=st.data())
def test_pages_answer_whatever_the_rows_of_a_group_are(web: Web, hostile: HostileRows, data: st.DataObject) -> None:
    hostile.restore()
    hostile.write(data.draw(hostile.changes()))
    group = of_group("hostile")

    answers = {path: web.get(path, **group) for path in PAGES}
    answers["/batch"] = web.get("/batch", **group, batch=2)
    form = answers["/rewind"]
    if form.status_code == 200:
        typed = {"scenario": "to-earliest", "ticket": ticket_of(form)}
        answers["/rewind/preview"] = web.post("/rewind/preview", "operator", group, **typed)
    overview = web.get("/")

    assert {path: answer.status_code for path, answer in answers.items() if answer.status_code >= 500} == {}
    for answer in (*answers.values(), overview):
        assert controls(answer.text) <= {"\n", "\t"}
    assert overview.text.count('href="/kafka-offsets/group?') == 2
    good = web.get("/group", **of_group("loader")).text
    assert "Batch 1" in good or "batch=1" in good
    assert "unknown" not in good


VALUES = {
    b'{"id": "\\ud800"}': r"\ud800",
    b'{"id": "x", "n": 1e5, "n": 1.10}': "{&#34;id&#34;: &#34;x&#34;, &#34;n&#34;: 1e5, &#34;n&#34;: 1.10}",
    b'{"id": ' + b"[" * 100_000: "[[[[",
    b'{"id": "\x1b]0;t\x07\xc2\x9b\xe2\x80\xae"}': r"\x1b]0;t\x07\x9b\u202e",
    b'{"id": "\xe2\x80\xa8<script>"}': r"\u2028&lt;script&gt;",
}
HEADERS = ("{", "[1]", '[["h", 1]]', '[["h", "\\ud800"]]', '[["\\ud800", "AA=="]]', '{"h": "x"}', "[" * 9_000, "1e999")


def test_dead_letters_are_shown_whatever_a_producer_wrote(
    web: Web, loader: Loader, topic: TopicFactory, postgres_engine: Engine
) -> None:
    name = topic()
    produce(loader.kafka, name, list(VALUES))
    loader(name, run=RUN, **LEFT_OUT)
    assert rows(postgres_engine, "SELECT count(*) FROM dead_letters") == [(len(VALUES),)]

    for headers in HEADERS:
        with postgres_engine.begin() as conn:
            conn.execute(sa.text("UPDATE dead_letters SET headers = :headers"), {"headers": headers})
        page = web.get("/dead-letters", **of_group("loader"))

        assert page.status_code == 200
        assert controls(page.text) <= {"\n", "\t"}
        assert [shown for shown in VALUES.values() if shown not in page.text] == []
