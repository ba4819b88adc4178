"""Teams with a schema and a role each, as `docs/state-tables.md` sets them up, are kept apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import ProgrammingError

from airflow_kafka_offsets import StateTables
from airflow_kafka_offsets.exceptions import LedgerError
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.kafka import KafkaBroker
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, rows

pytestmark = pytest.mark.server

DOCUMENT = Path(__file__).parents[2] / "docs/state-tables.md"


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory."""
    return log


@pytest.fixture
def teams(postgres_engine: Engine) -> Iterator[dict[str, Engine]]:
    """The databases of two teams, by the name of their schema and role."""
    (sql,) = re.findall(r"```postgresql\n(CREATE ROLE.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    roles = [f"{team}_{postgres_engine.url.database}" for team in ("orders_team", "returns_team")]
    with postgres_engine.begin() as conn:
        for role in roles:
            conn.exec_driver_sql(sql.replace("orders_team", role))
    engines = {role: sa.create_engine(postgres_engine.url.set(username=role, password="…")) for role in roles}
    yield engines
    for role, engine in engines.items():
        engine.dispose()
        with postgres_engine.begin() as conn:
            conn.exec_driver_sql(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_no_team_reads_or_changes_what_another_one_has(
    teams: dict[str, Engine], kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    produce(kafka, name, names(0, 5))
    for team, engine in teams.items():
        loader = Loader(kafka, engine, InlineLauncher())
        loader(name, state_tables=StateTables(schema=team), sink=SqlTable("target", team))
        assert rows(engine, f"SELECT count(*), min(database_user) FROM {team}.target, {team}.offset_batches") == [
            (5, team)
        ]

    (one, engine), (other, _) = teams.items()
    for table in ("target", "consumed_offsets", "offset_batches", "dead_letters"):
        with pytest.raises(ProgrammingError, match=f"permission denied for schema {other}"):
            rows(engine, f"SELECT * FROM {other}.{table}")
    with pytest.raises((LedgerError, ProgrammingError), match=f"permission denied for schema {other}"):
        abandon_batch("loader", 1, engine=engine, tables=Tables.of(other))
    with Ledger(engine, Tables.of(one)).connect() as conn:
        assert conn.scalar(sa.text("SELECT session_user")) == one
