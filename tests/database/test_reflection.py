"""A table is looked up once in each transaction, and again where the transaction says so."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.database.tables import forget_reflected, reflected
from airflow_kafka_offsets.sinks.function_target import call
from tests.support import fixtures

engine = fixtures.engine


def columns(table: sa.Table | None) -> list[str] | None:
    return None if table is None else table.columns.keys()


def test_once_in_each_transaction(engine: Engine) -> None:
    statements: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE orders (id INT)")
    with engine.begin() as conn:
        first = reflected(conn, "orders", None)
        looked_up = len(statements)
        assert reflected(conn, "orders", None) is first
        assert len(statements) == looked_up
        conn.exec_driver_sql("ALTER TABLE orders ADD COLUMN amount INT")
        assert columns(reflected(conn, "orders", None)) == ["id"]
        forget_reflected(conn)
        assert columns(reflected(conn, "orders", None)) == ["id", "amount"]
    with engine.begin() as conn:
        conn.exec_driver_sql("ALTER TABLE orders ADD COLUMN city INT")
    # The connection of the pool is the same.
    with engine.connect() as conn:
        assert columns(reflected(conn, "orders", None)) == ["id", "amount", "city"]
        conn.rollback()
        conn.exec_driver_sql("DROP TABLE orders")
        assert reflected(conn, "orders", None) is None


def test_what_nobody_asks_for_is_not_read(engine: Engine) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE shops (id INT PRIMARY KEY)")
        keys = "id INT PRIMARY KEY, shop INT UNIQUE, FOREIGN KEY (shop) REFERENCES shops (id)"
        conn.exec_driver_sql(f"CREATE TABLE orders ({keys}, CHECK (id > 0))")
        table = reflected(conn, "orders", None)
    assert table is not None
    assert not table.foreign_keys
    assert not any(isinstance(constraint, sa.CheckConstraint) for constraint in table.constraints)
    assert table.primary_key.columns.keys() == ["id"]
    assert any(isinstance(constraint, sa.UniqueConstraint) for constraint in table.constraints)


def test_a_missing_table_is_looked_up_again(engine: Engine) -> None:
    with engine.begin() as conn:
        assert reflected(conn, "orders", None) is None
        conn.exec_driver_sql("CREATE TABLE orders (id INT)")
        assert columns(reflected(conn, "orders", None)) == ["id"]


def test_a_function_of_the_users_may_change_a_table(engine: Engine) -> None:
    def grow(conn: sa.Connection) -> None:
        conn.exec_driver_sql("ALTER TABLE orders ADD COLUMN amount INT")

    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE orders (id INT)")
        assert columns(reflected(conn, "orders", None)) == ["id"]
        call(conn, "shop.grow", grow)
        assert columns(reflected(conn, "orders", None)) == ["id", "amount"]


def test_a_table_of_sqlite_that_appears_while_it_is_read_is_read_whole(tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/state.db")
    with engine.connect() as other, engine.connect() as conn:

        @sa.event.listens_for(conn, "after_cursor_execute", once=True)
        def create(*_: object) -> None:
            other.exec_driver_sql("CREATE TABLE orders (id INTEGER, amount TEXT)")

        assert columns(reflected(conn, "orders", None)) == ["id", "amount"]
    engine.dispose()
