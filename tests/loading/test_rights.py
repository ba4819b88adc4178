"""Rights that a database user lacks are named, with the statement that grants them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeadLetters, SqlTable, verify
from airflow_kafka_offsets.exceptions import LedgerError, TargetError
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger
from airflow_kafka_offsets.operators.positions import KafkaRewindOperator
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.command_line import database_connection, kafka_connection
from tests.support.loads import Loader, TopicFactory, names
from tests.support.task_context import task_context

pytestmark = pytest.mark.server


@pytest.fixture
def guest(postgres_loader: Loader) -> Iterator[Engine]:
    """A user who may connect and nothing else."""
    role = f"guest_{postgres_loader.engine.url.database}"
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text(f"CREATE ROLE {role} LOGIN PASSWORD 'guest'"))
        conn.execute(sa.text("REVOKE CREATE ON SCHEMA public FROM PUBLIC"))
    engine = sa.create_engine(postgres_loader.engine.url.set(username=role, password="guest"))
    yield engine
    engine.dispose()
    with postgres_loader.engine.begin() as conn:
        conn.execute(sa.text(f"DROP OWNED BY {role}"))
        conn.execute(sa.text(f"DROP ROLE {role}"))


def made_ready(loader: Loader, topic: str, *statements: str) -> None:
    """Records, the state tables and a target, and what statements make of them."""
    produce(loader.kafka, topic, names(0, 3))
    initialize(Ledger(loader.engine))
    with loader.engine.begin() as conn:
        for statement in ("CREATE TABLE target (id BIGINT, name TEXT)", *statements):
            conn.execute(sa.text(statement))


def test_a_user_who_may_not_create_tables_is_told_what_to_do(
    postgres_loader: Loader, guest: Engine, topic: TopicFactory
) -> None:
    with pytest.raises(LedgerError, match=r"cannot be created.*permission denied.*init --show-sql"):
        Loader(postgres_loader.kafka, guest, postgres_loader.launcher)(topic())


def test_a_user_who_may_not_insert_is_told_before_spark(
    postgres_loader: Loader, guest: Engine, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    made_ready(
        postgres_loader,
        name,
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {guest.url.username}",
    )

    with pytest.raises(TargetError, match="may not insert into table 'target'; GRANT INSERT ON target"):
        Loader(kafka, guest, postgres_loader.launcher)(name)

    assert postgres_loader.launcher.jobs == []


def test_a_user_who_may_not_write_the_state_is_told_before_spark(
    postgres_loader: Loader, guest: Engine, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    made_ready(
        postgres_loader,
        name,
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {guest.url.username}",
        f"GRANT INSERT ON target TO {guest.url.username}",
    )

    with pytest.raises(
        LedgerError, match=r"may not write to the state tables: permission denied for table consumer_groups. GRANT"
    ):
        Loader(kafka, guest, postgres_loader.launcher)(name)

    assert postgres_loader.launcher.jobs == []


@pytest.mark.parametrize(
    ("granted", "denied"),
    [
        ("CONNECT ON DATABASE {database}", "table offsets_schema_version"),
        ("ALL ON ALL TABLES IN SCHEMA public", "sequence offset_batches_batch_id_seq"),
    ],
    ids=["tables", "sequence"],
)
def test_rights_that_are_missing_in_the_state_tables_are_told(
    postgres_loader: Loader, guest: Engine, kafka: KafkaBroker, topic: TopicFactory, granted: str, denied: str
) -> None:
    name = topic()
    made_ready(
        postgres_loader,
        name,
        f"GRANT {granted.format(database=guest.url.database)} TO {guest.url.username}",
    )

    with pytest.raises(
        LedgerError, match=f"permission denied for {denied}.*need SELECT, INSERT, .*kafka-offsets doctor"
    ) as raised:
        Loader(kafka, guest, postgres_loader.launcher)(name)

    assert not raised.value.retriable
    assert postgres_loader.launcher.jobs == []


def test_rights_that_are_missing_for_a_rewind_are_told(
    postgres_loader: Loader, guest: Engine, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres_loader(topic())
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", database_connection(guest))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", kafka_connection(postgres_loader.kafka))
    rewind = KafkaRewindOperator(task_id="rewind", group_id="loader", scenario="to-earliest", conn_id="warehouse")

    with pytest.raises(LedgerError, match=r"Group 'loader' was not rewound: permission denied .* need SELECT, INSERT"):
        rewind.execute(task_context("rewind"))


def test_a_table_with_security_for_its_rows_is_refused(
    postgres_loader: Loader, guest: Engine, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    made_ready(
        postgres_loader,
        name,
        "ALTER TABLE target ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY everyone ON target USING (true)",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {guest.url.username}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {guest.url.username}",
    )

    with pytest.raises(TargetError, match="'target' has row-level security, with policies for user"):
        Loader(kafka, guest, postgres_loader.launcher)(name)


@pytest.mark.parametrize("table", ["consumed_offsets", "offset_ranges", "consumer_groups"])
def test_state_tables_with_security_for_their_rows_are_refused(
    postgres_loader: Loader, guest: Engine, kafka: KafkaBroker, topic: TopicFactory, table: str
) -> None:
    name = topic()
    made_ready(
        postgres_loader,
        name,
        f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY",
        f"CREATE POLICY everyone ON {table} USING (false) WITH CHECK (true)",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {guest.url.username}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {guest.url.username}",
    )
    message = f"State table '{table}' has row-level security, with policies for user"

    with pytest.raises(LedgerError, match=message):
        Loader(kafka, guest, postgres_loader.launcher)(name)
    with pytest.raises(LedgerError, match=message):
        verify("loader", sink=SqlTable("target"), engine=guest)
    postgres_loader(name)


def test_a_user_who_may_not_drop_old_dead_letters_is_told_before_spark(
    postgres_loader: Loader, guest: Engine, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name, role = topic(), guest.url.username
    made_ready(postgres_loader, name, f"GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA public TO {role}")
    loader = Loader(kafka, guest, postgres_loader.launcher)
    with pytest.raises(
        TargetError, match=r"may not drop old dead letters of table 'dead_letters'; GRANT UPDATE ON dead_letters TO"
    ):
        loader(name, on_bad_record=DeadLetters(retention=timedelta(days=1)))
    assert not postgres_loader.launcher.jobs
