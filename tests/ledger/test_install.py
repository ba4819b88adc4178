"""The state tables are created, once, on SQLite files."""

import sqlite3
from contextlib import closing

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.exceptions import LedgerError
from airflow_kafka_offsets.ledger.install import initialize
from airflow_kafka_offsets.ledger.tables import SCHEMA_VERSION, Ledger
from tests.support.ledgers import Database


class TestInit:
    def test_the_first_init_creates_the_tables(self, empty: Database) -> None:
        assert initialize(empty.ledger) is True
        assert set(sa.inspect(empty.engine).get_table_names()) == set(empty.tables.metadata.tables)

    def test_a_second_init_changes_nothing(self, db: Database) -> None:
        db.load(db.claim())
        before = db.dump()
        assert initialize(db.ledger) is False
        assert db.dump() == before

    def test_init_records_the_schema_version(self, db: Database) -> None:
        assert db.rows("SELECT version FROM offsets_schema_version") == [{"version": SCHEMA_VERSION}]

    def test_tables_of_a_newer_version_are_refused_with_both_versions(self, db: Database) -> None:
        newer = SCHEMA_VERSION + 1
        db.change("INSERT INTO offsets_schema_version (version) VALUES (?)", newer)
        with pytest.raises(LedgerError, match=f"schema version {newer}, this package works with {SCHEMA_VERSION}"):
            initialize(db.ledger)

    def test_an_init_that_was_interrupted_is_finished_by_the_next(self, db: Database) -> None:
        db.change("DELETE FROM offsets_schema_version")
        db.change("DROP TABLE offset_gaps")
        assert initialize(db.ledger) is True
        assert db.rows("SELECT count(*) AS n FROM offset_gaps") == [{"n": 0}]

    def test_a_database_that_cannot_be_written_says_what_to_do(self, empty: Database) -> None:
        with closing(sqlite3.connect(empty.path)) as conn:
            conn.execute("VACUUM")  # an empty file is no database yet
        engine = sa.create_engine(f"sqlite:///file:{empty.path}?mode=ro&uri=true")
        with pytest.raises(LedgerError, match=r"readonly.*--show-sql"):
            initialize(Ledger(engine, empty.tables))
        engine.dispose()

    def test_rights_are_advised_only_where_they_are_lacking(self, empty: Database) -> None:
        empty.change("CREATE TABLE offset_batches_by_run (n INTEGER)")  # as an index is called
        with pytest.raises(LedgerError, match=r"already .*Correct what it names, or .*--show-sql") as refused:
            initialize(empty.ledger)
        assert "CREATE" not in str(refused.value)
