"""The state tables, and their DDL as text."""

import re
import sqlite3
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import sqlglot
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlglot import exp

from airflow_kafka_offsets.exceptions import KafkaOffsetsError
from airflow_kafka_offsets.ledger.install import grants, initialize
from airflow_kafka_offsets.ledger.tables import SCHEMA_VERSION, Ledger, Tables

DIALECTS = {
    url.get_backend_name(): url.get_dialect()()
    for url in map(sa.make_url, ("postgresql+psycopg://", "mysql+pymysql://", "sqlite://"))
}
# How sqlglot calls them.
READ = {"postgresql": "postgres", "mysql": "mysql", "sqlite": "sqlite"}

NAMES = [
    "offsets_schema_version",
    "consumer_groups",
    "consumed_offsets",
    "offset_batches",
    "offset_ranges",
    "offset_gaps",
    "dead_letters",
    "replaced_output",
    "schema_texts",
    "offsets_installation",
    "batch_schemas",
    "erased_offsets",
]

ODD = [
    "UPPER ",
    "or\"der's",
    "a`b",
    "x; DROP TABLE orders; --",
    "dots.in.it",
    "größe_表_",
    "select",
    ":name",
    "100%",
    "/*",
]


def statements(ddl: str, dialect: Dialect) -> list[exp.Expression]:
    """DDL as another parser than the one that made it understands it."""
    return [one for one in sqlglot.parse(ddl, read=READ[dialect.name]) if one is not None]


def created_tables(ddl: str, dialect: Dialect) -> list[tuple[str, str]]:
    """Schema and name of every table that DDL creates."""
    created = (one for one in statements(ddl, dialect) if isinstance(one, exp.Create) and one.kind == "TABLE")
    return [(table.db, table.name) for table in (one.find(exp.Table) for one in created)]


@pytest.fixture(params=list(DIALECTS))
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return DIALECTS[request.param]


class TestNames:
    def test_the_tables_are_these(self) -> None:
        assert sorted(Tables().metadata.tables) == sorted(NAMES)

    def test_a_prefix_comes_before_every_name(self) -> None:
        assert sorted(Tables(prefix="kafka_").metadata.tables) == sorted(f"kafka_{name}" for name in NAMES)

    def test_a_schema_holds_every_table(self) -> None:
        assert {table.schema for table in Tables("state").metadata.tables.values()} == {"state"}

    def test_a_process_describes_each_once(self) -> None:
        assert Tables.of() is Tables.of(None, "")
        assert Tables.of("state") is not Tables.of("state", "my_")

    def test_two_prefixes_live_beside_each_other_in_one_database(self, tmp_path: Path) -> None:
        engine = sa.create_engine(f"sqlite:///{tmp_path}/state.db")
        assert initialize(Ledger(engine, Tables(prefix="a_")))
        assert initialize(Ledger(engine, Tables(prefix="b_")))
        names = sa.inspect(engine).get_table_names()
        engine.dispose()
        assert sorted(names) == sorted(prefix + name for prefix in ("a_", "b_") for name in NAMES)


class TestDdl:
    def test_ddl_creates_every_missing_table(self, dialect: Dialect) -> None:
        ddl = Tables().ddl(dialect)
        assert created_tables(ddl, dialect) == [("", name) for name in sorted(NAMES)]
        assert ddl.count("CREATE TABLE IF NOT EXISTS ") == len(NAMES)

    def test_ddl_ends_with_the_schema_version(self, dialect: Dialect) -> None:
        last = statements(Tables().ddl(dialect), dialect)[-1]
        assert isinstance(last, exp.Insert)
        assert last.find(exp.Table).name == "offsets_schema_version"
        assert [int(value.name) for value in last.find_all(exp.Literal)] == [SCHEMA_VERSION]

    def test_every_statement_ends_with_a_semicolon(self, dialect: Dialect) -> None:
        parts = Tables().ddl(dialect).split("\n\n")
        assert parts.pop() == ""
        assert all(part.endswith(";") for part in parts)

    @pytest.mark.parametrize("name", ["postgresql", "sqlite"])
    def test_one_open_load_a_group_is_guarded_where_the_database_can(self, name: str) -> None:
        ddl = " ".join(Tables().ddl(DIALECTS[name]).split())
        assert (
            "CREATE UNIQUE INDEX IF NOT EXISTS offset_batches_one_open ON offset_batches (consumer_group) "
            "WHERE kind = 'load' AND state IN ('planned', 'staged');"
        ) in ddl
        assert (
            "CREATE UNIQUE INDEX IF NOT EXISTS offset_batches_one_prefetched ON offset_batches (consumer_group) "
            "WHERE kind = 'load' AND state IN ('prefetched');"
        ) in ddl

    @pytest.mark.parametrize("name", ["postgresql", "sqlite"])
    def test_pending_dead_letters_are_found_by_an_index(self, name: str) -> None:
        ddl = " ".join(Tables(prefix="my_").ddl(DIALECTS[name]).split())
        assert (
            "CREATE INDEX IF NOT EXISTS my_dead_letters_with_contents ON my_dead_letters (consumer_group, batch_id) "
            "WHERE coalesce(error_class, '') NOT IN ('dropped', 'size');"
        ) in ddl
        assert (
            "CREATE INDEX IF NOT EXISTS my_offset_batches_unsent ON my_offset_batches (consumer_group) "
            "WHERE dead_letter_topic IS NOT NULL AND dead_letters_sent_at IS NULL;"
        ) in ddl

    def test_no_index_forbids_a_second_batch_where_the_database_knows_no_partial_one(self) -> None:
        ddl = " ".join(Tables().ddl(DIALECTS["mysql"]).split())
        # Those that are there are of columns that are null for all other batches than open loads, and those planned
        # ahead.
        assert ddl.count("UNIQUE") == 2
        assert (
            "GENERATED ALWAYS AS (CASE WHEN kind = 'load' AND state IN ('planned', 'staged') THEN consumer_group END) "
            "STORED, UNIQUE KEY offset_batches_one_open (open_load)"
        ) in ddl
        assert (
            "GENERATED ALWAYS AS (CASE WHEN kind = 'load' AND state IN ('prefetched') THEN consumer_group END) STORED, "
            "UNIQUE KEY offset_batches_one_prefetched (prefetched_load)"
        ) in ddl

    @pytest.mark.parametrize("odd", ODD)
    def test_an_odd_prefix_stays_a_part_of_the_names(self, dialect: Dialect, odd: str) -> None:
        ddl = Tables(prefix=odd).ddl(dialect)
        assert sorted(created_tables(ddl, dialect)) == sorted(("", odd + name) for name in NAMES)

    @pytest.mark.parametrize("odd", ODD)
    def test_an_odd_schema_stays_a_schema(self, dialect: Dialect, odd: str) -> None:
        ddl = Tables(odd).ddl(dialect)
        assert sorted(created_tables(ddl, dialect)) == sorted((odd, name) for name in NAMES)

    @pytest.mark.parametrize("odd", ODD)
    def test_odd_names_add_no_statements(self, dialect: Dialect, odd: str) -> None:
        count = len(statements(Tables().ddl(dialect), dialect))
        assert len(statements(Tables(odd, odd).ddl(dialect), dialect)) == count

    @pytest.mark.parametrize("prefix", ["x" * 60, "ü" * 35], ids=["characters", "bytes"])
    def test_names_that_postgres_would_cut_off_are_refused(self, prefix: str) -> None:
        """Postgres cuts after 63 bytes, without an error, and the names of all tables would then be the same."""
        with pytest.raises((KafkaOffsetsError, sa.exc.IdentifierError), match="63"):
            Tables(prefix=prefix).ddl(DIALECTS["postgresql"])


class TestDdlOnSqlite:
    @staticmethod
    def found(path: Path) -> list[tuple[str, str, list[tuple[object, ...]]]]:
        """What a database holds: tables and indexes with their columns."""
        with sqlite3.connect(path) as conn:
            names = conn.execute("SELECT type, name FROM sqlite_master ORDER BY type, name").fetchall()
            columns = {
                name: conn.execute(f"SELECT * FROM pragma_{kind}_{'x' * (kind == 'index')}info(?)", [name]).fetchall()
                for kind, name in names
            }
        conn.close()
        return [(kind, name, columns[name]) for kind, name in names]

    @pytest.mark.parametrize("prefix", ["", *ODD, "x" * 80])
    def test_the_printed_statements_make_what_init_makes(self, tmp_path: Path, prefix: str) -> None:
        tables = Tables(prefix=prefix)
        engine = sa.create_engine(f"sqlite:///{tmp_path}/made.db")
        initialize(Ledger(engine, tables))
        engine.dispose()
        with sqlite3.connect(tmp_path / "printed.db") as conn:
            conn.executescript(tables.ddl(engine.dialect))
        conn.close()
        assert self.found(tmp_path / "printed.db") == self.found(tmp_path / "made.db")
        assert len([kind for kind, _, _ in self.found(tmp_path / "made.db") if kind == "table"]) == len(NAMES)

    def test_init_finds_what_the_printed_statements_made(self, tmp_path: Path) -> None:
        engine = sa.create_engine(f"sqlite:///{tmp_path}/state.db")
        with sqlite3.connect(tmp_path / "state.db") as conn:
            conn.executescript(Tables().ddl(engine.dialect))
        conn.close()
        assert initialize(Ledger(engine)) is False
        engine.dispose()


class TestLimits:
    def test_keys_and_indexes_fit_into_mysqls_limit(self) -> None:
        """InnoDB: 3,072 bytes a key, and a character of utf8mb4 counts four."""

        def width(column: sa.Column[Any]) -> int:
            return 4 * (column.type.length or 0) if isinstance(column.type, sa.String) else 8

        widths: dict[str, int] = {}
        for table in Tables().metadata.tables.values():
            widths[f"primary key of {table.name}"] = sum(width(column) for column in table.primary_key.columns)
            widths |= {str(index.name): sum(width(column) for column in index.columns) for index in table.indexes}
        assert {name: size for name, size in widths.items() if size > 3072} == {}

    def test_a_topic_of_kafkas_longest_name_fits(self) -> None:
        topic = Tables().consumed_offsets.c.topic.type
        assert isinstance(topic, sa.String)
        assert topic.length == 249


@pytest.mark.parametrize(
    ("version", "mariadb", "collation"),
    [
        ((8, 0, 15), False, "utf8mb4_bin"),
        ((8, 0, 17), False, "utf8mb4_0900_bin"),
        ((10, 6, 4), True, "utf8mb4_nopad_bin"),
    ],
)
def test_texts_have_a_collation_that_the_server_knows(version: tuple[int, ...], mariadb: bool, collation: str) -> None:
    dialect = mysql.dialect(is_mariadb=mariadb)
    dialect.server_version_info = version

    assert set(re.findall(r"COLLATE (\w+)", Tables().ddl(dialect))) == {collation}


class TestInstants:
    def test_an_instant_comes_back_as_utc_where_the_database_keeps_no_zone(self, tmp_path: Path) -> None:
        tables = Tables()
        engine = sa.create_engine(f"sqlite:///{tmp_path}/state.db")
        initialize(Ledger(engine, tables))
        instant = datetime(2024, 5, 6, 7, 8, 9, 123_456, tzinfo=timezone(timedelta(hours=5, minutes=30)))
        groups = tables.consumer_groups
        with engine.begin() as conn:
            conn.execute(groups.insert().values(group_id="g", generation=0, epoch=0, lease_expires_at=instant))
            stored = conn.scalar(sa.select(groups.c.lease_expires_at))
        engine.dispose()
        assert stored == instant
        assert stored.tzinfo is UTC


def test_a_percent_sign_in_a_name_is_granted_as_it_is() -> None:
    text = grants(Tables(schema="a%b", prefix="c%d_"), DIALECTS["postgresql"], "e%f", moves=True)

    assert 'ON "a%b"."c%d_offset_batches" TO "e%f";' in text
    assert "%%" not in text
