"""A table without a schema is the one that the session finds, and the history knows it as that: sessions of the same
state tables may have other default schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.core.options import StateTables
from airflow_kafka_offsets.exceptions import ConfigurationError, DoubleLoadError, ForeignBatchError
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from airflow_kafka_offsets.rewinding.execution import RewindResult, check_removal, execute_rewind, executed_by
from airflow_kafka_offsets.rewinding.previewing import preview_rewind
from airflow_kafka_offsets.rewinding.scenarios import Scenario
from airflow_kafka_offsets.sinks.function import FunctionSink
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.replays import RUN, Replayer

pytestmark = pytest.mark.server

ORDERS = SqlTable("orders")


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory."""
    return log


@dataclass
class Schemas:
    """Two schemas of tables, and one of the state tables; of MariaDB, three databases.

    :param loader: of a session whose default schema is the first one
    :param beside: of a session whose default schema is the second one
    """

    loader: Loader
    beside: Loader
    names: tuple[str, str, str]

    @property
    def state(self) -> StateTables:
        return StateTables(schema=self.names[2])

    @property
    def tables(self) -> Tables:
        return Tables.of(self.names[2])

    def load(self, loader: Loader, topic: str, sink: Sink | list[SqlTable] = ORDERS, group: str = "A") -> int:
        return loader(topic, sink=sink, group_id=group, state_tables=self.state).rows

    def rewind(self, loader: Loader, sink: Sink = ORDERS, run: TaskRun | None = None) -> RewindResult:
        preview = preview_rewind(
            "A",
            Scenario.of("to-earliest", None, group_id="A"),
            engine=loader.engine,
            kafka_config=loader.config,
            tables=self.tables,
        )
        check_removal(preview, sink, ledger=Ledger(loader.engine, self.tables))
        return execute_rewind(preview, engine=loader.engine, tables=self.tables, replace=sink, run=run)

    def verify(self, loader: Loader, sink: Sink = ORDERS) -> int:
        return verify("A", sink=sink, engine=loader.engine, tables=self.tables, kafka_config=loader.config).rows

    def offsets(self, schema: int, table: str = "orders") -> list[int]:
        query = f"SELECT _kafka_offset FROM {self.quoted(schema)}.{table} ORDER BY 1"
        return [offset for (offset,) in rows(self.loader.engine, query)]

    def quoted(self, schema: int) -> str:
        return self.loader.engine.dialect.identifier_preparer.quote(self.names[schema])

    def run(self, statement: str) -> None:
        with self.loader.engine.begin() as conn:
            conn.exec_driver_sql(statement.format(a=self.quoted(0), b=self.quoted(1), state=self.quoted(2)))

    def create_beside(self, there: str) -> None:
        """Create a table of the name in the second schema: a copy, or an empty one; or nothing."""
        if there != "nothing":
            none = " WHERE 1 = 0" if there == "an empty table" else ""
            self.run(f"CREATE TABLE {{b}}.orders AS SELECT * FROM {{a}}.orders{none}")

    def targets(self) -> set[str]:
        return {
            name for (name,) in rows(self.loader.engine, f"SELECT target_table FROM {self.quoted(2)}.offset_batches")
        }


@pytest.fixture(params=["postgresql", "mariadb"])
def schemas(request: pytest.FixtureRequest, kafka: Kafka) -> Iterator[Schemas]:
    if request.param == "postgresql":
        url = sa.make_url(request.getfixturevalue("database"))
        found = ("a", "b", "kafka")
        urls = [url.update_query_dict({"options": f"-csearch_path={schema}"}) for schema in found]
        with sa.create_engine(url, poolclass=sa.NullPool).begin() as conn:
            for schema in found:
                conn.exec_driver_sql(f"CREATE SCHEMA {schema}")
    else:
        mariadb = request.getfixturevalue("mariadb")
        first = sa.make_url(request.getfixturevalue("mariadb_database"))
        found = (str(first.database), f"{first.database}_b", f"{first.database}_kafka")
        urls = [first, *(sa.make_url(mariadb.create_database(name)) for name in found[1:])]
    engines: list[Engine] = [sa.create_engine(url, poolclass=sa.NullPool) for url in urls[:2]]
    loader, beside = (Loader(kafka, engine, InlineLauncher()) for engine in engines)
    initialize(Ledger(engines[0], Tables.of(found[2])))
    yield Schemas(loader, beside, found)
    if request.param == "mariadb":
        for name in found[1:]:
            mariadb.drop_database(name)


@pytest.fixture
def orders(schemas: Schemas, topic: TopicFactory) -> str:
    """A topic of five records, which group A has loaded into `a.orders`."""
    name = topic()
    produce(schemas.loader.kafka, name, names(0, 5))
    schemas.load(schemas.loader, name)
    return name


def test_the_history_has_the_schema_that_the_session_found(schemas: Schemas, orders: str) -> None:
    assert schemas.targets() == {f"{schemas.names[0]}.orders"}
    produce(schemas.loader.kafka, orders, names(5, 1))

    # By either name, and over either session.
    assert schemas.load(schemas.beside, orders, SqlTable("orders", schema=schemas.names[0])) == 1
    assert schemas.offsets(0) == [*range(6)]
    assert schemas.verify(schemas.loader) == 6


@pytest.mark.parametrize("there", ["nothing", "an empty table", "a copy"])
def test_a_rewind_removes_rows_of_the_table_that_the_group_loads_into(
    schemas: Schemas, orders: str, there: str
) -> None:
    schemas.create_beside(there)
    before = schemas.offsets(1) if there != "nothing" else []

    with pytest.raises(ConfigurationError, match=rf"into '{schemas.names[0]}\.orders', not into '{schemas.names[1]}\."):
        schemas.rewind(schemas.beside)

    assert (schemas.offsets(1) if there != "nothing" else []) == before
    result = schemas.rewind(schemas.beside, SqlTable("orders", schema=schemas.names[0]))
    assert (result.rows_removed, schemas.offsets(0)) == (5, [])
    assert schemas.load(schemas.loader, orders) == 5
    assert schemas.offsets(0) == [*range(5)]
    assert schemas.verify(schemas.loader) == 5


@pytest.mark.parametrize("there", ["nothing", "an empty table", "a copy"])
def test_a_replay_replaces_rows_of_the_table_that_the_group_loads_into(
    schemas: Schemas, orders: str, there: str
) -> None:
    schemas.create_beside(there)
    options: dict[str, Any] = {"group_id": "A", "state_tables": schemas.state}

    with pytest.raises(ConfigurationError, match="Replay into"):
        Replayer(schemas.beside)(orders, {orders: {0: (0, 5)}}, replace=True, sink=ORDERS, **options)

    by_name = SqlTable("orders", schema=schemas.names[0])
    Replayer(schemas.beside)(orders, {orders: {0: (0, 5)}}, replace=True, sink=by_name, **options)
    assert schemas.offsets(0) == [*range(5)]
    assert schemas.verify(schemas.loader) == 5


def test_a_try_finds_the_rewind_of_an_earlier_one(schemas: Schemas, orders: str) -> None:
    scenario = Scenario.of("to-earliest", None, group_id="A")
    ledger = Ledger(schemas.loader.engine, schemas.tables)
    schemas.rewind(schemas.loader, run=RUN)

    done = executed_by(ledger, RUN, "A", scenario, {}, ORDERS)

    assert done is not None
    assert done[1].rows_removed == 5
    assert executed_by(ledger, RUN, "A", scenario, {}, SqlTable("orders", schema=schemas.names[1])) is None
    assert executed_by(ledger, RUN, "A", scenario, {}, None) is None


@pytest.mark.parametrize("there", [False, True], ids=["alone", "beside another table of the name"])
def test_names_of_an_earlier_version_get_the_schema_that_the_upgrade_finds(
    schemas: Schemas, topic: TopicFactory, *, there: bool
) -> None:
    name, sinks = topic(), [SqlTable("x"), SqlTable("y")]
    produce(schemas.loader.kafka, name, names(0, 5))
    schemas.load(schemas.loader, name, sinks)
    schemas.run(f"UPDATE {{state}}.offset_batches SET outputs = replace(outputs, '{schemas.names[0]}.', '')")
    schemas.run("UPDATE {state}.offset_batches SET target_table = 'fanout://x+y'")
    schemas.run("UPDATE {state}.offsets_schema_version SET version = 12")
    if there:
        schemas.run("CREATE TABLE {state}.x (id BIGINT)")

    assert initialize(Ledger(schemas.loader.engine, schemas.tables))

    assert schemas.targets() == {"fanout://" + "+".join(f"{schemas.names[0]}.{table}" for table in ("x", "y"))}
    coverage = verify("A", sink=sinks, engine=schemas.loader.engine, tables=schemas.tables)
    assert (coverage.records, coverage.rows) == (5, 10)


def test_another_group_does_not_load_the_same_table_beside_it(schemas: Schemas, orders: str) -> None:
    schemas.create_beside("an empty table")

    with pytest.raises(DoubleLoadError):
        schemas.load(schemas.beside, orders, SqlTable("orders", schema=schemas.names[0]), group="B")

    assert schemas.offsets(0) == [*range(5)]


def test_another_group_loads_its_own_table_of_the_name(schemas: Schemas, orders: str) -> None:
    schemas.load(schemas.beside, orders, group="B")

    assert (schemas.offsets(0), schemas.offsets(1)) == ([*range(5)], [*range(5)])
    assert schemas.targets() == {f"{name}.orders" for name in schemas.names[:2]}


def test_a_session_of_another_schema_does_not_continue_in_another_table(schemas: Schemas, orders: str) -> None:
    schemas.create_beside("an empty table")
    produce(schemas.loader.kafka, orders, names(5, 1))

    with pytest.raises(ForeignBatchError, match=rf"loads into table '{schemas.names[0]}\.orders'"):
        schemas.load(schemas.beside, orders)

    assert schemas.offsets(1) == []


def test_a_name_with_its_schema_is_the_table_there(schemas: Schemas, orders: str) -> None:
    """As commands show it, and as they are given it."""
    whole = SqlTable(f"{schemas.names[0]}.orders")

    assert schemas.verify(schemas.beside, whole) == 5
    assert schemas.rewind(schemas.beside, whole).rows_removed == 5
    assert schemas.load(schemas.beside, orders, whole) == 5
    Replayer(schemas.beside)(
        orders, {orders: {0: (0, 5)}}, replace=True, sink=whole, group_id="A", state_tables=schemas.state
    )

    assert schemas.offsets(0) == [*range(5)]


@pytest.mark.parametrize("schemas", ["mariadb"], indirect=True)
def test_a_table_in_a_database_that_the_user_does_not_see_was_not_renamed(schemas: Schemas, orders: str) -> None:
    url, user = schemas.beside.engine.url, f"{schemas.names[0]}_user"
    schemas.create_beside("an empty table")
    schemas.run(f"CREATE USER {user} IDENTIFIED BY 'secret'")
    schemas.run(f"GRANT ALL ON {{b}}.* TO {user}")
    schemas.run(f"GRANT ALL ON {{state}}.* TO {user}")
    engine = sa.create_engine(url.set(username=user, password="secret"), poolclass=sa.NullPool)
    produce(schemas.loader.kafka, orders, names(5, 1))

    with pytest.raises(ForeignBatchError, match=rf"loads into table '{schemas.names[0]}\.orders'"):
        schemas.load(replace(schemas.beside, engine=engine), orders)

    assert (schemas.offsets(1), schemas.targets()) == ([], {f"{schemas.names[0]}.orders"})
    schemas.run(f"DROP USER {user}")


def test_a_function_is_proved_by_the_table_that_the_session_finds(schemas: Schemas, orders: str) -> None:
    sink = FunctionSink("package.write", table="orders")
    with schemas.beside.engine.connect() as conn:
        (found,) = sink.qualified(conn, schemas.tables.offset_batches).tables
        (here,) = replace(sink, schema=schemas.names[0]).qualified(conn, schemas.tables.offset_batches).tables
    assert (found.schema, here.schema) == (schemas.names[1], schemas.names[0])


def test_tables_that_moved_to_another_schema_are_followed(
    schemas: Schemas, topic: TopicFactory, move: Callable[[str], str]
) -> None:
    first, second = SqlTable("x"), SqlTable("y")
    name = topic()
    produce(schemas.loader.kafka, name, names(0, 5))
    schemas.load(schemas.loader, name, [first, second])
    for table in ("x", "y"):
        schemas.run(move(table))
    produce(schemas.loader.kafka, name, names(5, 1))

    assert schemas.load(schemas.beside, name, [first, second]) == 2

    assert schemas.offsets(1, "x") == schemas.offsets(1, "y") == [*range(6)]


@pytest.fixture
def move(schemas: Schemas) -> Callable[[str], str]:
    if schemas.loader.engine.dialect.name == "postgresql":
        return "ALTER TABLE {{a}}.{0} SET SCHEMA {{b}}".format
    return "RENAME TABLE {{a}}.{0} TO {{b}}.{0}".format


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_state_tables_on_the_search_path_are_a_home_too(
    database: str, kafka: Kafka, topic: TopicFactory, *, first: bool
) -> None:
    """Without a schema, the first one of the path that has the state tables is that of names without one."""
    url, name = sa.make_url(database), topic()
    with sa.create_engine(url, poolclass=sa.NullPool).begin() as conn:
        conn.exec_driver_sql("CREATE SCHEMA a")
        conn.exec_driver_sql("CREATE SCHEMA state")
        conn.exec_driver_sql(
            "CREATE TABLE a.orders (id BIGINT, name TEXT, _kafka_topic TEXT, _kafka_partition INT, "
            "_kafka_offset BIGINT, _batch_id BIGINT)"
        )
    path = "a,state" if not first else "state,a"
    engine = sa.create_engine(url.update_query_dict({"options": f"-csearch_path={path}"}), poolclass=sa.NullPool)
    state = sa.create_engine(url.update_query_dict({"options": "-csearch_path=state"}), poolclass=sa.NullPool)
    initialize(Ledger(state, Tables.of()))
    loader = Loader(kafka, engine, InlineLauncher())
    produce(kafka, name, names(0, 5))

    loader(name, sink=ORDERS)

    assert rows(state, "SELECT DISTINCT target_table FROM state.offset_batches") == [("a.orders",)]
    with pytest.raises(ForeignBatchError, match=r"loads into table 'a\.orders'"):
        Loader(kafka, state, InlineLauncher())(name, sink=ORDERS)
