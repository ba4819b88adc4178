"""The rights that `init --grant-to` grants are measured: with them everything works, and without any one of them
something fails.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeadLetters, StateTables
from airflow_kafka_offsets.database.errors import translated_errors
from airflow_kafka_offsets.database.transactions import transact
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter, drop_dead_letters
from airflow_kafka_offsets.exceptions import KafkaOffsetsError
from airflow_kafka_offsets.formats.avro_format import Avro
from airflow_kafka_offsets.formats.schema_registry import SchemaRegistry
from airflow_kafka_offsets.ledger.group_changes import rename_group
from airflow_kafka_offsets.ledger.groups import wait_for_group
from airflow_kafka_offsets.ledger.install import grants, initialize, installation_id, rights_of_loads, rights_of_moves
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.rewinding.execution import execute_rewind
from airflow_kafka_offsets.rewinding.previewing import preview_rewind
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from devstack.postgres import PostgresServer
from devstack.topics import create_topic, delete_records
from tests.support.avro import wire
from tests.support.clients import produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, names
from tests.support.memory_log import MemoryLog
from tests.support.registry import FakeRegistry, fake_registry
from tests.support.replays import Replayer

pytestmark = pytest.mark.server

TABLES = Tables("state")
TARGET = SqlTable("target")

numbers = itertools.count(1)


@pytest.fixture(scope="module")
def owner(postgres: PostgresServer) -> Iterator[Engine]:
    """The owner of the state tables, in a schema of their own, and of two targets."""
    engine = sa.create_engine(postgres.create_database("rights"))
    with engine.begin() as conn:
        for statement in (
            "CREATE SCHEMA state",
            "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
            "CREATE ROLE loader LOGIN PASSWORD 'loader'",
            *(
                f"CREATE TABLE {table} (id BIGINT, name TEXT, _kafka_topic TEXT, _kafka_partition INT, _kafka_offset "
                "BIGINT, _batch_id BIGINT)"
                for table in ("target", "elsewhere")
            ),
        ):
            conn.exec_driver_sql(statement)
        # As a created table has it: a load then looks for rows of unknown batches.
        conn.exec_driver_sql("CREATE INDEX ON target (_batch_id)")
    initialize(Ledger(engine, TABLES))
    yield engine
    with engine.begin() as conn:
        conn.exec_driver_sql("DROP OWNED BY loader")
        conn.exec_driver_sql("DROP ROLE loader")
    engine.dispose()
    postgres.drop_database("rights")


@pytest.fixture(scope="module")
def registry() -> Iterator[FakeRegistry]:
    with fake_registry() as registry:
        yield registry


@pytest.fixture
def loader(owner: Engine, monkeypatch: pytest.MonkeyPatch, registry: FakeRegistry) -> Iterator[Loader]:
    """Loads as a role that has no rights but those that a test grants."""
    engine = sa.create_engine(owner.url.set(username="loader", password="loader"))
    # A schema of its own, whose text no earlier test has stored.
    number = len(registry.schemas) + 1
    registry.register("orders", {"type": "record", "name": f"r{number}", "fields": [{"name": "id", "type": "long"}]})
    connections = {"registry": registry.config}
    run(owner, "DELETE FROM state.offsets_installation")
    yield Loader(MemoryLog().install(monkeypatch), engine, InlineLauncher(), connections=connections)
    engine.dispose()
    run(owner, "REASSIGN OWNED BY loader TO CURRENT_USER", "DROP OWNED BY loader")


def run(owner: Engine, *statements: str) -> None:
    with owner.begin() as conn:
        for statement in statements:
            conn.exec_driver_sql(statement)


def grant(owner: Engine, *on_target: str, moves: bool) -> None:
    run(owner, *grants(TABLES, owner.dialect, "loader", moves=moves).splitlines())
    run(owner, *(f"GRANT {right} ON target, elsewhere TO loader" for right in on_target))


def load(loader: Loader) -> tuple[str, str]:
    """All that loads do: first positions, rows, a dead letter, a gap; a replay into another table; the proof; schemas
    of a registry. Return group and topic.
    """
    group, topic = (f"{name}_{next(numbers)}" for name in ("group", "orders"))
    options: dict[str, Any] = {
        "state_tables": StateTables(schema=TABLES.metadata.schema),
        "group_id": group,
        "on_bad_record": DeadLetters(),
    }
    installation_id(Ledger(loader.engine, TABLES))
    create_topic(loader.kafka.bootstrap_servers, topic, 2)
    loader(topic, start="latest", **options)
    produce(loader.kafka, topic, [*names(0, 5), b"no JSON"])
    loader(topic, **options)
    produce(loader.kafka, topic, [*names(5, 4), b"no JSON"])
    delete_records(loader.kafka.bootstrap_servers, topic, 8)
    loader(topic, on_data_loss="skip", **options)
    Replayer(loader)(topic, {topic: {0: (9, 11)}}, **options)
    verify(group, sink=TARGET, engine=loader.engine, tables=TABLES, kafka_config=loader.config)
    create_topic(loader.kafka.bootstrap_servers, f"{topic}_avro", 1)
    # Every value of the schemas is the same.
    produce(loader.kafka, f"{topic}_avro", [wire(registered(loader), b"\x02")])
    avro = Avro("id BIGINT", registry_conn_id="registry")
    loader(f"{topic}_avro", value_format=avro, **options | {"group_id": f"{group}_avro"})
    return group, topic


def registered(loader: Loader) -> int:
    """The latest id of a schema in the registry."""
    with closing(SchemaRegistry(loader.connections["registry"])) as registry:
        number, _ = registry.version("orders", registry.versions("orders")[-1])
        return number


def load_and_move(loader: Loader) -> None:
    """All that is done besides: a rewind that replaces rows and dead letters, a new group that is rewound, dead letters
    that are replayed and dropped; a group is renamed.
    """
    group, topic = load(loader)
    options: dict[str, Any] = {
        "state_tables": StateTables(schema=TABLES.metadata.schema),
        "group_id": group,
        "on_bad_record": DeadLetters(),
    }
    Replayer(loader)(topic, {topic: {0: (9, 11)}}, sink=TARGET, replace=True, **options)
    pipeline = loader.pipeline([topic], **options)
    replay_dead_letters(DeadLetterFilter(group), pipeline, engine=loader.engine, launcher=loader.launcher)
    for name, scenario, new in (
        (group, Scenario.of("to-offset", 5), False),
        (f"{group}_new", Scenario.of("to-latest"), True),
    ):
        preview = preview_rewind(
            name,
            scenario,
            engine=loader.engine,
            kafka_config=loader.config,
            tables=TABLES,
            scope={topic: frozenset({0})},
            new_group=new,
        )
        execute_rewind(preview, engine=loader.engine, tables=TABLES, replace=None if new else TARGET)
    drop_dead_letters(DeadLetterFilter(group), engine=loader.engine, tables=TABLES)
    rename_group(Ledger(loader.engine, TABLES), f"{group}_new", f"{group}_newer", who="ana", reason="a test")
    # A rewind does so after its connection broke: a row that waits for nobody is deleted again.
    with translated_errors("Nothing waits"):
        transact(loader.engine, lambda conn: wait_for_group(conn, TABLES, f"{group}_other", "cluster"))


@contextmanager
def revoked(owner: Engine, right: str) -> Iterator[None]:
    """Take a right away for a block, with the whole statement that granted it where no part of it is named."""
    run(owner, f"REVOKE {right} FROM loader")
    yield
    run(owner, f"GRANT {right} TO loader")


def needed(rights: Callable[[Tables], Iterator[tuple[sa.Table, str]]]) -> list[str]:
    return [f"{right} ON {table.fullname}" for table, right in rights(TABLES)]


OF_LOADS = [*needed(rights_of_loads), "USAGE ON SCHEMA state", "USAGE ON SEQUENCE state.offset_batches_batch_id_seq"]


# A cursor whose query is denied is closed by the garbage collector.
denied = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class TestLoads:
    def test_granted_rights_suffice(self, owner: Engine, loader: Loader) -> None:
        grant(owner, "SELECT, INSERT", moves=False)
        load(loader)

    @denied
    @pytest.mark.parametrize("right", [*OF_LOADS, "SELECT ON target", "INSERT ON target"])
    def test_no_right_is_superfluous(self, owner: Engine, loader: Loader, right: str) -> None:
        grant(owner, "SELECT, INSERT", moves=False)
        with revoked(owner, right), pytest.raises(KafkaOffsetsError, match=r"permission denied|may not"):
            load(loader)


class TestMoves:
    def test_granted_rights_suffice(self, owner: Engine, loader: Loader) -> None:
        grant(owner, "SELECT, INSERT, DELETE", moves=True)
        load_and_move(loader)

    @denied
    @pytest.mark.parametrize("right", [*needed(rights_of_moves), "DELETE ON target"])
    def test_no_right_is_superfluous(self, owner: Engine, loader: Loader, right: str) -> None:
        grant(owner, "SELECT, INSERT, DELETE", moves=True)
        with revoked(owner, right), pytest.raises(KafkaOffsetsError, match=r"permission denied|may not"):
            load_and_move(loader)
