"""The pages below the path of `[api] base_url`, with Airflow's FAB auth manager: in this process, and in a real API
server.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from html import unescape
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from devstack.airflow import AirflowHome
from tests.support.clients import Kafka, produce
from tests.support.fab import FAB
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.verifying import LEFT_OUT
from tests.support.web import PREFIX, Web, of_group, ticket_of
from tests.support.web_airflow import api_server, write_dags

pytestmark = pytest.mark.server

BELOW = "/team/airflow"
GROUP, BATCH = of_group("loader"), of_group("loader", batch=1)
PAGES = {
    "/": {},
    "/dags/shop": {},
    "/group": GROUP,
    "/batch": BATCH,
    "/dead-letters": GROUP,
    "/verification": GROUP,
    "/rewind": GROUP,
}


def urls(page: str) -> set[str]:
    """Return where a page leads to, beside itself with another query, and what it loads."""
    found = {unescape(url) for url in re.findall(r'\b(?:href|src|action|data-url)="([^"]+)"', page)}
    return {url for url in found if not url.startswith("?")} - {"data:,"}


def test_links_forms_and_redirects_stay_below_the_prefix(web: Web, orders: str, of_shop: None) -> None:
    web.serve_below(BELOW)
    client = web.client("editor")
    client.headers["Sec-Fetch-Site"] = "same-origin"

    def get(url: str, **query: str) -> httpx2.Response:
        answer = client.get(f"{BELOW}{url}", params=query or None, follow_redirects=False)
        assert answer.status_code == 200, url
        return answer

    found = set().union(*(urls(get(f"{PREFIX}{page}", **query).text) for page, query in PAGES.items()))
    form = {"scenario": "to-earliest", "ticket": ticket_of(get(f"{PREFIX}/rewind", **GROUP))}
    preview = client.post(f"{BELOW}{PREFIX}/rewind/preview", params=GROUP, data=form)
    sent = {"ticket": ticket_of(preview), "reason": "it"}
    done = client.post(f"{BELOW}{PREFIX}/rewind/execute", params=GROUP, data=sent, follow_redirects=False)
    found |= urls(preview.text) | {done.headers["location"]}

    assert done.status_code == 303
    assert {url for url in found if not url.startswith(f"{BELOW}/")} == set()
    ours = {url.removeprefix(BELOW) for url in found if url.startswith(f"{BELOW}{PREFIX}/")}
    for url in ours:
        if "/rewind/" not in url:
            get(url)
    assert found - {f"{BELOW}{url}" for url in ours} == {f"{BELOW}/dags/shop/runs/run-1/tasks/load_orders?try_number=1"}


class Site:
    """A browser without scripts, as a user of an Airflow with FAB's auth manager."""

    def __init__(self, home: AirflowHome, client: httpx2.Client, user: str | None) -> None:
        self.home, self.client = home, client
        if user is not None:
            login = self.client.get(f"{home.url}/auth/login/")
            (token,) = re.findall(r'name="csrf_token"[^>]* value="([^"]+)"', login.text)
            form = {"csrf_token": token, "username": user, "password": "password"}
            landed = self.client.post(str(login.url), data=form)
            assert landed.status_code == 200, landed.text
            assert landed.url.path == f"{BELOW}/", landed.url

    def get(self, path: str, **query: str) -> httpx2.Response:
        return self.client.get(f"{self.home.url}{PREFIX}{path}", params=query or None)

    def send(self, page: httpx2.Response, number: int = 0, **fields: str) -> httpx2.Response:
        """Send a form of a page as it is, with these fields."""
        form = re.findall(r'<form method="post" action="([^"]+)".*?</form>', page.text, re.S)[number]
        return self.client.post(
            str(page.url.join(unescape(form))), data={"ticket": ticket_of(page), **fields}, follow_redirects=False
        )


@pytest.fixture
def airflow(tmp_path: Path, kafka: Kafka, postgres_engine: Engine, topic: TopicFactory) -> Iterator[AirflowHome]:
    """An Airflow below a path, with a load by the DAG `shop` and one by `clicks`, and a user for each role."""
    loader = Loader(kafka, postgres_engine, InlineLauncher())
    for dag_id, task_id, group in ("shop", "load_orders", "loader"), ("clicks", "load_clicks", "clicks"):
        name = topic()
        produce(kafka, name, names(0, 6))
        loader(name, group_id=group, run=TaskRun("run-1", dag_id, task_id, -1, 1), **LEFT_OUT)
    extra = json.dumps({"bootstrap.servers": kafka.bootstrap_servers})
    connections = {
        "kafka_default": json.dumps({"conn_type": "kafka", "extra": extra}),
        "warehouse": postgres_engine.url.set(drivername="postgres").render_as_string(hide_password=False),
    }
    config = {"core.auth_manager": FAB}
    with AirflowHome(dags=write_dags(tmp_path), connections=connections, config=config, prefix=BELOW) as home:
        code = "from tests.support.fab import fab_users; fab_users()"
        subprocess.run([sys.executable, "-c", code], env=home.env, check=True, capture_output=True)
        with api_server(home):
            yield home


@pytest.fixture
def login(airflow: AirflowHome) -> Iterator[Callable[..., Site]]:
    with ExitStack() as clients:

        def login(user: str | None = None) -> Site:
            client = httpx2.Client(follow_redirects=True, timeout=60, headers={"Sec-Fetch-Site": "same-origin"})
            return Site(airflow, clients.enter_context(client), user)

        yield login


@pytest.mark.long
@pytest.mark.broker
def test_users_of_fab_use_the_pages_of_an_airflow_below_a_path(
    login: Callable[..., Site], postgres_engine: Engine
) -> None:
    nobody = login().get("/")
    assert (nobody.status_code, nobody.text) == (401, "Not authenticated")
    assert login("newcomer").get("/").status_code == 403

    reader = login("reader")
    assert reader.get("/group", **GROUP).status_code == 200
    assert reader.get("/group", **of_group("clicks")).status_code == 404
    assert "loader</a>" in reader.get("/").text
    assert "clicks</a>" not in reader.get("/").text
    assert "/rewind?" not in reader.get("/group", **GROUP).text
    assert reader.get("/dead-letters", **GROUP).status_code == 403

    site = login("editor")
    cookie = next(cookie for cookie in site.client.cookies.jar if cookie.name == "_token")
    assert cookie.path.rstrip("/") == BELOW
    group = site.get("/group", **GROUP)
    for url in urls(group.text):
        assert url.startswith(f"{BELOW}/")
        assert site.client.get(str(group.url.join(url))).status_code == 200, url
    preview = site.send(site.get("/rewind", **GROUP), scenario="to-earliest", replace="1")
    assert preview.status_code == 200, preview.text
    (action,) = re.findall(r'<form method="post" action="([^"]+)"', preview.text)
    assert urlsplit(unescape(action)).path == f"{BELOW}{PREFIX}/rewind/execute"
    done = site.send(preview, reason="the prices were wrong")
    assert (done.status_code, urlsplit(done.headers["location"]).path) == (303, f"{BELOW}{PREFIX}/batch")
    assert site.client.get(str(preview.url.join(done.headers["location"]))).status_code == 200
    history = rows(postgres_engine, "SELECT scenario, reason, who FROM offset_batches WHERE kind = 'rewind'")
    assert history == [("to-earliest", "the prices were wrong", "editor")]
    # Airflow's own menu and tabs lead to the pages, relative to the address of the interface.
    operator = login("operator")
    views = operator.client.get(f"{operator.home.url}/api/v2/plugins").json()["plugins"]
    (ours,) = [plugin for plugin in views if plugin["name"] == "kafka_offsets"]
    assert [view["href"] for view in ours["external_views"]] == ["kafka-offsets/", "kafka-offsets/dags/{DAG_ID}"]
