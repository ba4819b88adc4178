"""Rows of one group that no program of this package writes: all other groups are shown as before."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.database.tables import Description, ShortenedText, TargetName
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.lag.measure import LagPolls, group_states
from airflow_kafka_offsets.lag.report import LagQuestion, LagReport
from airflow_kafka_offsets.ledger.batch_notes import note_added_columns
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.overview import batches, between_commits, group_summaries, history_points
from airflow_kafka_offsets.ledger.tables import Ledger
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names
from tests.support.mariadb import do

pytestmark = [pytest.mark.server, pytest.mark.broker]

AT = datetime(2026, 1, 2, tzinfo=UTC)

_MOST, _LEAST = 2**63 - 1, -(2**63)

_INSTANTS = {
    "postgresql": ("infinity", "-infinity", "0044-03-15 00:00+00 BC", "10000-01-01 00:00+00", "0001-01-01 00:00+14"),
    "mysql": ("0000-00-00 00:00:00", "9999-12-31 23:59:59.999999", "0000-01-01 00:00:00"),
}


@pytest.fixture(params=["psycopg", "psycopg2", "mariadb"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    of_mariadb = request.param == "mariadb"
    url = request.getfixturevalue("mariadb_database" if of_mariadb else "database")
    made = sa.create_engine(url if of_mariadb else url.replace("+psycopg", f"+{request.param}"))
    yield made
    made.dispose()


def be_hostile(engine: Engine, group: str, instant: str, offset: int, topic: str, number: int = 0) -> None:
    """Insert a group as a program with other sessions does."""
    is_mariadb = engine.dialect.name != "postgresql"
    partition, at = "`partition`" if is_mariadb else "partition", f"'{instant}'"
    do(
        engine,
        "SET SESSION sql_mode = ''" if is_mariadb else "SET DateStyle = 'ISO, MDY'",
        f"INSERT INTO consumer_groups VALUES ('{group}', NULL, 0, 1, 'somebody', {at})",
        "INSERT INTO offset_batches (consumer_group, generation, kind, state, attempt, planned_at, staged_at, "
        f"committed_at, publish_started_at) VALUES ('{group}', 0, 'load', 'committed', 1, {at}, {at}, {at}, {at})",
        f"INSERT INTO consumed_offsets (consumer_group, topic, {partition}, offset_value, record_timestamp, batch_id, "
        f"updated_at) VALUES ('{group}', '{topic}', {number}, {offset}, {at}, 1, {at})",
    )


def test_the_other_groups_are_shown(kafka: KafkaBroker, topic: TopicFactory, engine: Engine) -> None:
    name = topic()
    produce(kafka, name, names(0, 5))
    loader = Loader(kafka, engine, InlineLauncher())
    loader(name)
    produce(kafka, name, names(5, 2))
    ledger = Ledger(engine)
    instants = _INSTANTS[engine.dialect.name]
    hostile = {
        f"hostile-{number}": (instant, offset, name)
        for number, (instant, offset) in enumerate(zip(instants, (_MOST, _LEAST, -1001, 3, -1), strict=False))
    }
    for number, text in enumerate(("no topic\u001b/..", "", " ", "x" * 249, "\u202e", ".")):
        hostile[f"hostile-topic-{number}"] = (instants[0], 0, text)
    for group_id, row in hostile.items():
        be_hostile(engine, group_id, *row)
    for number in (-(2**31), -1, 2**31 - 1):
        group_id = f"hostile-partition{number}"
        hostile[group_id] = (instants[0], 0, name)
        be_hostile(engine, group_id, *hostile[group_id], number)
    do(engine, "INSERT INTO consumer_groups VALUES ('endless', NULL, 0, 1, 'somebody', NULL)")

    with ledger.connect() as conn:
        now, groups = group_summaries(conn, ledger.tables)
        assert {group.group_id for group in groups} == {"loader", "endless", *hostile}
        for group in groups:
            batches(conn, ledger.tables, group.group_id, 10)
            history_points(conn, ledger.tables, group.group_id, 10)
            assert all(now - batch.since is not None for batch in group.between)
        states = group_states(conn, ledger.tables, [group.group_id for group in groups])
    questions = [(LagQuestion(group_id, times=True), state) for group_id, state in states.items() if state.stored]
    polls = LagPolls(Cluster(loader.config))
    reports = dict(zip((question.group_id for question, _ in questions), polls.reports(questions), strict=True))
    report = reports.pop("loader")
    assert isinstance(report, LagReport)
    assert (report.lag, report.complete) == (2, True)
    assert reports.keys() == hostile.keys()


def test_all_other_instants_are_read_as_they_are(engine: Engine) -> None:
    ledger = Ledger(engine)
    initialize(ledger)
    instant = sa.func.now() if engine.dialect.name == "postgresql" else sa.func.utc_timestamp(6)
    groups = ledger.tables.consumer_groups
    with ledger.engine.begin() as conn:
        conn.execute(groups.insert().values(group_id="a", generation=0, epoch=0, lease_expires_at=instant))
        conn.execute(groups.insert().values(group_id="b", generation=0, epoch=0))
        read = conn.scalars(sa.select(groups.c.lease_expires_at).order_by(groups.c.group_id)).all()
        assert read[1] is None
        same = sa.select(groups.c.group_id).where(groups.c.lease_expires_at == read[0])
        assert conn.scalars(same).all() == ["a"]


def test_of_a_text_of_any_length_the_beginning_is_read(kafka: KafkaBroker, topic: TopicFactory, engine: Engine) -> None:
    name = topic()
    produce(kafka, name, names(0, 5))
    Loader(kafka, engine, InlineLauncher())(name)
    ledger = Ledger(engine)
    long = "repeat('x', 2000000)"
    texts = ("scenario", "transform", "reason", "who", "target_table", "added_columns", "outputs")
    do(
        engine,
        f"UPDATE offset_batches SET {', '.join(f'{text} = {long}' for text in texts)}, publish_started_at = planned_at",
        f"UPDATE consumer_groups SET lease_expires_at = '9999-01-01', lease_owner = {long}",
    )

    with ledger.connect() as conn:
        _, (group,) = group_summaries(conn, ledger.tables)
        (batch,) = batches(conn, ledger.tables, "loader", 10)

    assert group.last is not None
    assert len(str(group.last.scenario)) == len(str(group.held_by)) == Description.most
    assert len(group.between[0].target) == 2_000
    assert max(len(str(value)) for value in batch.values()) == ShortenedText.most
    assert {len(batch[text]) for text in texts} == {Description.most, TargetName.most, ShortenedText.most}


def test_the_names_of_many_added_columns_are_kept(kafka: KafkaBroker, topic: TopicFactory, engine: Engine) -> None:
    name = topic()
    produce(kafka, name, names(0, 5))
    Loader(kafka, engine, InlineLauncher())(name)
    ledger, added = Ledger(engine), [f"{number:0200}" for number in range(9_000)]

    with engine.begin() as conn:
        for _ in range(2):
            note_added_columns(conn, ledger.tables, 1, added)
        stored = conn.scalar(sa.text("SELECT added_columns FROM offset_batches"))

    assert json.loads(str(stored)) == [*added, *added]


def test_of_batches_between_two_commits_a_few_of_each_group_are_read(engine: Engine) -> None:
    ledger = Ledger(engine)
    initialize(ledger)
    stored = ledger.tables.offset_batches
    row = {"generation": 0, "kind": "load", "attempt": 1, "planned_at": AT, "publish_started_at": AT}
    rows = [row | {"consumer_group": "odd", "state": "abandoned", "target_table": "😀" * 10_000}] * 30
    with engine.begin() as conn:
        conn.execute(stored.insert(), [*rows, row | {"consumer_group": "even", "state": "staged", "target_table": "t"}])

        found = between_commits(conn, ledger.tables)
        of_one = between_commits(conn, ledger.tables, ["even"])

    assert [(len(found[group]), len(found[group][0].target)) for group in ("odd", "even")] == [(10, 2_000), (1, 1)]
    assert of_one == {"even": found["even"]}
    assert [batch[1:] for batch in of_one["even"]] == [("staged", "t", AT)]
