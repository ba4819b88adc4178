"""Who gets what from every route: nobody without a login, and nobody more than their rights."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Set
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
import sqlalchemy as sa
from fastapi.routing import APIRoute
from sqlalchemy.engine import Engine
from starlette.routing import BaseRoute

from airflow_kafka_offsets.plugin import group_request
from airflow_kafka_offsets.plugin.sources import Discovery, LoadingDags, RegisteredTask, Source
from devstack.airflow import AirflowHome
from tests.support.fab import FAB, fab_users
from tests.support.mariadb import do
from tests.support.web import PREFIX, ROLES, Web, of_group, simple_user, ticket_of

pytestmark = pytest.mark.server

GROUP, BATCH = of_group("loader"), of_group("loader", batch=1)

# By path: the query, and the answers to a viewer, an editor and an operator. The DAG of the group is not one of this
# Airflow, so that only who may read the connection sees the group.
ROUTES = {
    "/": ({}, (200, 200, 200)),
    "/dags/{dag_id}": ({}, (200, 200, 200)),
    "/static/{name}": ({}, (200, 200, 200)),
    "/group": (GROUP, (404, 404, 200)),
    "/group/history": (GROUP, (404, 404, 200)),
    "/batch": (BATCH, (404, 404, 200)),
    "/dead-letters": (GROUP, (404, 404, 200)),
    "/verification": (GROUP, (404, 404, 200)),
    "/rewind": (GROUP, (404, 404, 403)),
}
# Those that change something: the answers where the DAG of the group is one that all may read and the editor and the
# operator may edit, to a form without a ticket. Without that, nobody gets further than 404 or 403.
FORMS = {
    "/rewind/preview": (403, 403, 403),
    "/rewind/execute": (403, 403, 403),
    "/verification": (403, 403, 403),
}
VALUES = {"{dag_id}": "shop", "{name}": "page.js"}


@pytest.fixture(params=["simple", "fab"])
def users(request: pytest.FixtureRequest, airflow_home: AirflowHome, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "simple":
        return simple_user
    from airflow.api_fastapi import app

    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", FAB)
    # What another test finds afterwards is the manager that it has configured; Airflow 3.1 keeps it in its module.
    holder, name = (app._AuthManagerState, "instance") if hasattr(app, "_AuthManagerState") else (app, "auth_manager")
    monkeypatch.setattr(holder, name, getattr(holder, name))
    return fab_users().__getitem__


def path(route: str) -> str:
    for name, value in VALUES.items():
        route = route.replace(name, value)
    return route


def routes(web: Web) -> list[BaseRoute]:
    return list(web.app.routes)


def test_the_table_has_every_route(web: Web) -> None:
    found = {route.path for route in routes(web) if isinstance(route, APIRoute)}

    assert found == ROUTES.keys() | FORMS.keys()
    assert all(isinstance(route, APIRoute) for route in routes(web)), "a mount has no dependencies"


@pytest.mark.parametrize("users", ["simple"], indirect=True)
def test_annotations_of_classes_are_none_that_an_older_fastapi_cannot_read(web: Web) -> None:
    """Airflow 3.1 has one that resolves no text in those of a class."""
    asked = [route.dependant for route in routes(web) if isinstance(route, APIRoute)]
    for dependant in asked:
        asked += dependant.dependencies
    classes = {dependant.call for dependant in asked if inspect.isclass(dependant.call)}

    assert classes
    for each in classes:
        parameters = inspect.signature(each).parameters.values()
        assert [name for name in parameters if isinstance(name.annotation, str)] == []


def test_the_anonymous_get_nothing(web: Web, orders: str) -> None:
    for route, (query, _) in ROUTES.items():
        answer = web.get(path(route), None, **query)

        assert (answer.status_code, answer.text) == (401, "Not authenticated")
    for route in FORMS:
        answer = web.post(route, None, GROUP)
        assert (answer.status_code, answer.text) == (401, "Not authenticated")


def test_users_get_what_their_role_may_see(web: Web, orders: str) -> None:
    found = {
        route: tuple(web.get(path(route), role, **query).status_code for role in ROLES)
        for route, (query, _) in ROUTES.items()
    }

    assert found == {route: answers for route, (_, answers) in ROUTES.items()}


def test_a_group_of_a_readable_dag_is_shown_to_a_viewer(web: Web, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "loader</a>" not in web.get("/", "viewer").text

    monkeypatch.setattr(web.auth_manager, "get_authorized_dag_ids", lambda **_: {"shop"})

    assert "loader</a>" in web.get("/", "viewer").text
    for page, query in (("/group", GROUP), ("/batch", BATCH), ("/dead-letters", GROUP)):
        assert web.get(page, "viewer", **query).status_code == 200


def test_a_row_of_the_state_tables_gives_no_group_to_another_dag(
    web: Web, orders: str, postgres_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web.auth_manager, "get_authorized_dag_ids", lambda **_: {"mine"})
    do(postgres_engine, "UPDATE offset_batches SET dag_id = 'mine'")

    for page, query in (("/group", GROUP), ("/batch", BATCH), ("/dead-letters", GROUP), ("/rewind", GROUP)):
        assert web.get(page, "editor", **query).status_code == 404
    assert "loader</a>" not in web.get("/", "editor").text
    assert "loader</a>" not in web.get("/dags/mine", "editor").text


@pytest.mark.parametrize(
    ("named", "dag_ids"),
    [
        ({"mine": ["loader"], "shop": ["loader"]}, {"mine", "shop"}),
        # A template has the name of the group: the state tables say which ones it loads.
        ({"mine": [None]}, {"mine"}),
        ({"mine": [None], "shop": ["loader"]}, {"shop"}),
        ({"mine": ["other"]}, set()),
        ({"shop": [None]}, set()),
        ({}, set()),
    ],
)
def test_a_group_is_loaded_by_the_dags_whose_tasks_name_it(
    named: dict[str, list[str | None]], dag_ids: set[str]
) -> None:
    source = Source("warehouse")
    tasks = {dag: [RegisteredTask("load", group, source) for group in groups] for dag, groups in named.items()}
    group: Any = SimpleNamespace(group_id="loader", dag_ids=frozenset({"mine"}))

    assert LoadingDags(tasks).of(source, group) == dag_ids
    assert LoadingDags(tasks).of(Source("elsewhere"), group) == set()


def test_a_dag_that_only_verifies_a_group_shows_it_and_does_not_change_it() -> None:
    source = Source("warehouse")
    tasks = {
        "shop": [RegisteredTask("load", "loader", source)],
        "audit": [RegisteredTask("prove", "loader", source, loads=False, verifies=True)],
        # As a sensor has it.
        "wait": [RegisteredTask("lag", loads=False)],
    }
    loader: Any = SimpleNamespace(group_id="loader", dag_ids=frozenset({"wait"}))
    other: Any = SimpleNamespace(group_id="other", dag_ids=frozenset({"wait"}))

    loading = LoadingDags(tasks)

    assert (loading.of(source, loader), loading.naming(source, loader)) == ({"shop"}, {"shop", "audit"})
    assert (loading.of(source, other), loading.naming(source, other)) == (set(), set())


def test_a_row_of_the_state_tables_has_a_group_measured_over_no_connection_of_another_dag() -> None:
    source = Source("warehouse")
    tasks = {
        "mine": [RegisteredTask("load", None, source, "kafka_orders")],
        "payroll": [RegisteredTask("load", "payroll", source, "kafka_payroll")],
    }
    loading = LoadingDags(tasks)

    def conn_ids(group_id: str, *dag_ids: str) -> Set[str]:
        group: Any = SimpleNamespace(group_id=group_id, dag_ids=frozenset(dag_ids))
        return loading.kafka_conn_ids(source, group)

    assert conn_ids("made-up", "mine") == conn_ids("made-up", "mine", "payroll") == {"kafka_orders"}
    assert conn_ids("payroll", "mine") == {"kafka_payroll"}
    assert conn_ids("mapped", "elsewhere") == set()


def test_records_need_the_right_to_read_xcoms(web: Web, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web.auth_manager, "get_authorized_dag_ids", lambda **_: {"shop"})
    allowed = web.auth_manager.is_authorized_dag

    def no_xcoms(*, access_entity: object = None, **options: object) -> bool:
        return access_entity is None and allowed(access_entity=access_entity, **options)

    monkeypatch.setattr(web.auth_manager, "is_authorized_dag", no_xcoms)

    assert web.get("/dead-letters", "viewer", **GROUP).status_code == 403
    page = web.get("/group", "viewer", **GROUP)
    assert page.status_code == 200
    assert "/dead-letters" not in page.text


def test_user_without_plugin_access_sees_nothing(web: Web, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web.auth_manager, "is_authorized_view", lambda **_: False)

    for route, (query, _) in ROUTES.items():
        assert web.get(path(route), "operator", **query).status_code == 403


@pytest.mark.parametrize("users", ["fab"], indirect=True)
def test_editor_with_fabs_own_role_sees_no_page(web: Web, orders: str, of_shop: None) -> None:
    """As Airflow's menu has no entry for it: the API of plugins needs the same right."""
    for route, (query, _) in ROUTES.items():
        assert web.get(path(route), "newcomer", **query).status_code == 403
    for route in FORMS:
        assert web.post(route, "newcomer", GROUP).status_code == 403


def test_editor_of_a_dag_may_edit_its_groups(web: Web, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For routes that change state."""
    from airflow_kafka_offsets.plugin.access import Caller

    monkeypatch.setattr(web.auth_manager, "get_authorized_dag_ids", lambda **_: {"shop"})
    source = Source("warehouse")
    (look,) = web.readings.look({source: Discovery()}, 60.0, lambda _: True)
    assert look.stored.value is not None
    (group,) = look.stored.value.groups or ()

    edits = {role: Caller(web.user(role)).edited_dags(source, group.dag_ids) for role in ROLES}

    assert edits == {"viewer": [], "editor": ["shop"], "operator": ["shop"]}


def test_a_dag_needs_its_own_right(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web.auth_manager, "is_authorized_dag", lambda **_: False)

    assert web.get("/dags/shop", "operator").status_code == 403


@pytest.mark.skipif(version("apache-airflow").startswith("3.1."), reason="Airflow 3.1 has no teams")
@pytest.mark.parametrize("users", ["simple"], indirect=True)  # FAB knows no teams
def test_a_connection_of_another_team_is_no_business_of_a_user(
    web: Web, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_kafka_offsets.plugin import access

    monkeypatch.setattr(web.auth_manager, "get_authorized_dag_ids", lambda **_: {"shop"})
    monkeypatch.setattr(access, "_team_of", lambda conn_id: "red")

    assert "loader" not in web.get("/", "viewer").text
    assert web.get("/group", "viewer", **GROUP).status_code == 404
    for teams, status in (["blue"], 404), (["red"], 200):
        client = web.client("viewer", teams=teams)
        assert client.get(f"{PREFIX}/group", params=GROUP).status_code == status


@pytest.mark.skipif(version("apache-airflow").startswith("3.1."), reason="Airflow 3.1 has no teams")
@pytest.mark.parametrize("users", ["simple"], indirect=True)  # FAB knows no teams
def test_a_connection_of_kafka_of_another_team_is_not_opened(
    web: Web, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes a DAG can name it."""
    from airflow_kafka_offsets.plugin import access

    def refuse(conn_id: str) -> None:
        raise AssertionError(conn_id)

    monkeypatch.setattr(web.auth_manager, "get_authorized_dag_ids", lambda **_: {"shop"})
    monkeypatch.setattr(access, "_team_of", lambda conn_id: {"kafka_default": "blue"}.get(conn_id))
    monkeypatch.setattr(web.readings, "cluster", refuse)
    for path in (f"{PREFIX}/", f"{PREFIX}/group"):
        page = web.client("viewer", teams=["red"]).get(path, params=GROUP if path.endswith("group") else None)
        assert page.status_code == 200
        assert "Connection &#39;kafka_default&#39; of Kafka belongs to another team" in page.text


def test_a_url_opens_no_connection_that_nobody_registered(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(conn_id: str, *_: object) -> None:
        raise AssertionError(conn_id)

    monkeypatch.setattr(web.readings, "ledger", refuse)

    assert web.get("/group", **of_group("loader", "other")).status_code == 404
    assert web.get("/group", **of_group("loader", schema="other")).status_code == 404


def test_a_group_with_a_character_that_no_database_takes_is_missing(web: Web, orders: str, of_shop: None) -> None:
    for route, (query, _) in ROUTES.items():
        if "group" in query:
            assert web.get(route, "operator", **query | {"group": "loader\0"}).status_code == 404
    for route in FORMS:
        assert web.post(route, "operator", GROUP | {"group": "\0"}).status_code == 404


def test_state_tables_are_named_to_those_who_see_a_group_or_read_the_connection(
    web: Web, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured = {Source("canary", "schema-canary", "x_"): Discovery(is_configured=True)}
    monkeypatch.setattr(web.readings, "configured", lambda: configured)

    assert "canary" not in web.get("/", "viewer").text
    assert "canary" not in web.get("/dags/shop", "viewer").text
    assert "canary (schema schema-canary, prefix x_)" in web.get("/", "operator").text


def test_only_forms_are_posted(web: Web, orders: str) -> None:
    posted = set()
    for route in routes(web):
        assert isinstance(route, APIRoute)
        posted |= {route.path} if route.methods == {"POST"} else set()
        assert route.methods in ({"GET"}, {"POST"})

    assert posted == FORMS.keys()


def test_get_requests_change_no_state(web: Web, orders: str, of_shop: None, postgres_engine: Engine) -> None:
    """Every statement of every page only reads."""
    statements: list[str] = []
    sa.event.listen(postgres_engine, "before_cursor_execute", lambda *args: statements.append(args[2].split()[0]))

    for route, (query, _) in ROUTES.items():
        assert web.get(path(route), "editor", **query).status_code == 200
    for route in FORMS.keys() - ROUTES.keys():
        assert web.get(route, "editor", **GROUP).status_code == 405

    assert {statement.upper() for statement in statements} <= {"SELECT", "SET", "WITH", "SHOW"}


def test_a_form_needs_a_user_who_edits_the_dag_and_a_ticket(web: Web, orders: str, of_shop: None) -> None:
    found = {route: tuple(web.post(route, role, GROUP).status_code for role in ROLES) for route in FORMS}

    assert found == FORMS
    for route in FORMS:
        assert "right to edit a DAG" in web.post(route, "viewer", GROUP).text
        assert "This form is not yours" in web.post(route, "editor", GROUP).text


def test_a_form_of_another_site_is_refused(web: Web, orders: str, of_shop: None) -> None:
    """Also with a ticket."""
    ticket = ticket_of(web.get("/rewind", "editor", **GROUP))
    form = {"ticket": ticket, "scenario": "to-earliest"}
    statuses = {}
    for headers in (
        {},
        {"Origin": "null"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://testserver"},
        {"Origin": "http://testserver", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://testserver", "Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "same-origin"},
    ):
        answer = web.client("editor").post(f"{PREFIX}/rewind/preview?{urlencode(GROUP)}", data=form, headers=headers)
        statuses[str(headers)] = answer.status_code

    assert list(statuses.values()) == [403, 403, 403, 200, 403, 403, 200]


def test_a_ticket_is_of_one_user_one_group_and_one_purpose(
    web: Web, orders: str, of_shop: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticket = ticket_of(web.get("/rewind", "editor", **GROUP))
    scenario = {"scenario": "to-earliest"}

    assert web.post("/rewind/preview", "operator", GROUP, ticket=ticket, **scenario).status_code == 403
    assert web.post("/rewind/execute", "editor", GROUP, ticket=ticket, reason="it").status_code == 403
    assert web.post("/rewind/preview", "editor", GROUP, ticket=f"A{ticket}", **scenario).status_code == 403
    assert web.post("/rewind/preview", "editor", GROUP, ticket=ticket, **scenario).status_code == 200
    monkeypatch.setattr(group_request, "TICKET_SECONDS", -1)
    assert web.post("/rewind/preview", "editor", GROUP, ticket=ticket, **scenario).status_code == 403


def test_rewinds_can_be_turned_off(web: Web, orders: str, of_shop: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "/rewind?" in web.get("/group", "editor", **GROUP).text
    assert "/rewind?" not in web.get("/group", "viewer", **GROUP).text
    monkeypatch.setenv("AIRFLOW__KAFKA_OFFSETS__REWIND_IN_WEB_INTERFACE", "False")

    assert "/rewind?" not in web.get("/group", "editor", **GROUP).text
    assert web.get("/rewind", "editor", **GROUP).status_code == 403
    for route in ("/rewind/preview", "/rewind/execute"):
        assert "turned off" in web.post(route, "editor", GROUP).text


def test_a_page_cannot_be_framed_by_others_nor_run_foreign_scripts(web: Web) -> None:
    for role in (None, "viewer"):
        policy = web.get("/", role).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "frame-ancestors 'self'" in policy
    page = web.get("/").text
    assert not re.search(r"<script(?![^>]* src=\"/kafka-offsets/static/)|\son\w+=|style=", page)


def test_without_airflows_login_there_is_no_app() -> None:
    """In a process of its own, in which the module cannot be imported."""
    code = (
        "import sys; sys.modules['airflow.api_fastapi.core_api.security'] = None\n"
        "from airflow_kafka_offsets.plugin import KafkaOffsetsPlugin\n"
        "print(KafkaOffsetsPlugin.fastapi_apps)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


def test_the_plugin_imports_no_web_server_in_workers() -> None:
    code = "import sys, airflow_kafka_offsets.plugin; print('fastapi' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "False"


def test_sources_are_named() -> None:
    assert str(Source("lake", "team", "x_")) == "lake (schema team, prefix x_)"
