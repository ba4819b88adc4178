"""Rights to a table that a user of MariaDB lacks are named, and those of roles, databases and columns count."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.database.tables import check_rights
from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.support.mariadb import do, is_mysql

pytestmark = pytest.mark.server

ALL = ("SELECT", "INSERT", "UPDATE", "DELETE")
TABLE = sa.Table("10% of all", sa.MetaData(), sa.Column("a b", sa.BigInteger), sa.Column("c", sa.BigInteger))


@pytest.fixture
def guest(mariadb_engine: Engine) -> Iterator[Engine]:
    """A user who may connect, and the owner's table."""
    name = f"guest_{mariadb_engine.url.database}"[:32]
    do(
        mariadb_engine,
        "CREATE TABLE `10% of all` (`a b` BIGINT NOT NULL, c BIGINT)".replace("%", "%%"),
        f"CREATE USER {name} IDENTIFIED BY 'guest'",
        f"CREATE ROLE {name}_role",
        f"GRANT {name}_role TO {name}",
        f"SET DEFAULT ROLE {name}_role {'TO' if is_mysql(mariadb_engine) else 'FOR'} {name}",
    )
    engine = sa.create_engine(mariadb_engine.url.set(username=name, password="guest"), poolclass=sa.NullPool)
    yield engine
    do(mariadb_engine, f"DROP USER {name}", f"DROP ROLE {name}_role")


@pytest.fixture
def grant(mariadb_engine: Engine, guest: Engine) -> Callable[[str, str], None]:
    def grant(what: str, to: str = "{user}") -> None:
        do(mariadb_engine, f"GRANT {what} TO {to.format(user=guest.url.username)}".replace("%", "%%"))

    return grant


def lacking(engine: Engine) -> list[str]:
    """Return the rights that are named."""
    with engine.connect() as conn:
        try:
            check_rights(conn, TABLE, ALL, "do {lacking}")
        except TargetError as error:
            found = re.search(r"may not do (.*); GRANT (.*) ON `10% of all` TO the user", str(error))
        else:
            return []
    assert found is not None
    assert found[1].split(" and ") == found[2].split(", ")
    return found[2].split(", ")


@pytest.mark.parametrize("right", ALL)
def test_a_right_to_the_table(guest: Engine, grant: Callable[[str], None], right: str) -> None:
    grant("INSERT (c) ON `10% of all`" if right != "INSERT" else "SELECT (c) ON `10% of all`")
    before = lacking(guest)

    grant(f"{right} ON `10% of all`")

    assert right in before
    assert lacking(guest) == [each for each in before if each != right]


def test_a_right_to_the_database_or_of_a_role(
    guest: Engine, mariadb_engine: Engine, grant: Callable[..., None]
) -> None:
    grant(f"SELECT, INSERT ON `{mariadb_engine.url.database}`.*")
    grant("UPDATE, DELETE ON `10% of all`", "{user}_role")

    assert lacking(guest) == []


def test_a_right_to_some_columns(guest: Engine, grant: Callable[[str], None]) -> None:
    grant("SELECT (c), INSERT (c), UPDATE (c) ON `10% of all`")

    assert lacking(guest) == ["DELETE"]


def test_a_target_that_takes_no_rows_is_refused_before_spark(
    guest: Engine, mariadb_engine: Engine, grant: Callable[[str], None]
) -> None:
    do(mariadb_engine, "CREATE TABLE target (id BIGINT, UNIQUE (id))")
    grant("SELECT ON target")

    with pytest.raises(TargetError, match=r"may not insert into table 'target'; GRANT INSERT ON target TO the user"):
        SqlTable("target").connect(guest).prepare(None)
