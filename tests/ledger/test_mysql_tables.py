"""The state tables in MariaDB: what Postgres has by partial indexes and its own types, they have too."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError

from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DatabaseBusyError,
    DatabaseUnavailableError,
    FencedError,
    GroupBusyError,
    LedgerError,
)
from airflow_kafka_offsets.ledger import install
from airflow_kafka_offsets.ledger.batches import open_batch
from airflow_kafka_offsets.ledger.claims import claim_group
from airflow_kafka_offsets.ledger.install import create_missing, initialize, statements
from airflow_kafka_offsets.ledger.migrations import RENAMED_COLUMNS
from airflow_kafka_offsets.ledger.tables import Ledger, Tables
from devstack.mariadb import MariaDbServer
from tests.support.ledgers import CLUSTER, FIRST_LOAD, FIRST_TRY, MINUTE, OTHER_RUN, RECIPE, SECOND_TRY
from tests.support.mariadb import NUMBERS, do, pads, select

pytestmark = pytest.mark.server


@pytest.fixture
def ledger(mariadb_engine: Engine) -> Ledger:
    made = Ledger(mariadb_engine)
    assert initialize(made)
    return made


def planned(ledger: Ledger, group: str, state: str = "planned", kind: str = "load") -> None:
    values = {"consumer_group": group, "kind": kind, "state": state, "generation": 0, "attempt": 0}
    with ledger.engine.begin() as conn:
        conn.execute(ledger.tables.offset_batches.insert().values(**values, planned_at=datetime.now(UTC)))


def test_a_group_has_one_open_load(ledger: Ledger) -> None:
    planned(ledger, "a")
    for other in ("A", "b") if pads(ledger.engine) else ("A", "a ", "b"):
        planned(ledger, other)
    planned(ledger, "a", "committed")
    planned(ledger, "a", kind="replay")

    with pytest.raises(IntegrityError, match="offset_batches_one_open"):
        planned(ledger, "a", "staged")


def test_a_group_has_one_prefetched_load(ledger: Ledger) -> None:
    planned(ledger, "a")
    for group in ("a", "A", "b"):
        planned(ledger, group, "prefetched")

    with pytest.raises(IntegrityError, match="offset_batches_one_prefetched"):
        planned(ledger, "a", "prefetched")


def keys_and_columns(described: list[tuple[str, str]]) -> set[str]:
    return {line.strip(" ,") for line in described[0][1].splitlines()}


def test_an_upgrade_makes_the_keys_and_columns_of_new_tables(ledger: Ledger) -> None:
    described = select(ledger.engine, "SHOW CREATE TABLE offset_batches")
    (generated,) = re.findall(r"`prefetched_load` (.* STORED)", described[0][1])
    assert "'prefetched'" in generated
    dead_letters = select(ledger.engine, "SHOW CREATE TABLE dead_letters")
    do(ledger.engine, "ALTER TABLE dead_letters DROP KEY dead_letters_with_contents")
    for name in ("unsent", "publishing", "with_files", "replays"):
        do(ledger.engine, f"ALTER TABLE offset_batches DROP KEY offset_batches_{name}")
    do(
        ledger.engine,
        "ALTER TABLE offset_batches DROP KEY offset_batches_one_prefetched, DROP COLUMN prefetched_load, "
        f"ADD ahead_load {generated.replace('prefetched', 'ahead')}, "
        "ADD UNIQUE KEY offset_batches_one_ahead (ahead_load)",
    )
    for table, renamed in RENAMED_COLUMNS.items():
        for old, new in renamed.items():
            do(ledger.engine, f"ALTER TABLE {table} RENAME COLUMN {new} TO {old}")
    do(ledger.engine, "ALTER TABLE dead_letters RENAME COLUMN replayed_by TO publishing")
    do(ledger.engine, "UPDATE offsets_schema_version SET version = 9")

    assert initialize(ledger)

    assert keys_and_columns(select(ledger.engine, "SHOW CREATE TABLE offset_batches")) == keys_and_columns(described)
    assert keys_and_columns(select(ledger.engine, "SHOW CREATE TABLE dead_letters")) == keys_and_columns(dead_letters)
    # An upgrade that was interrupted before the version was stored.
    do(ledger.engine, "UPDATE offsets_schema_version SET version = 9")
    assert initialize(ledger)


@pytest.mark.parametrize(
    ("table", "condition", "index"),
    [
        (
            "offset_batches",
            "dead_letter_topic IS NOT NULL AND dead_letters_sent_at IS NULL",
            "offset_batches_unsent",
        ),
        ("offset_batches", "publish_started_at IS NOT NULL", "offset_batches_publishing"),
        ("offset_batches", "has_files_since IS NOT NULL", "offset_batches_with_files"),
        ("offset_batches", "kind = 'replay'", "offset_batches_replays"),
        (
            "dead_letters",
            "coalesce(error_class, '') NOT IN ('dropped', 'size') AND batch_id < 5",
            "dead_letters_with_contents",
        ),
    ],
)
def test_what_a_load_looks_for_in_a_long_history_has_an_index(
    ledger: Ledger, table: str, condition: str, index: str
) -> None:
    do(
        ledger.engine,
        "INSERT INTO offset_batches (consumer_group, generation, kind, state, attempt, planned_at) "
        "SELECT 'g', 0, 'load', 'committed', 1, now() FROM " + NUMBERS,
    )
    do(
        ledger.engine,
        "INSERT INTO dead_letters (batch_id, topic, `partition`, offset_value, consumer_group, error) "
        "SELECT 1, 't', 0, seq, if(seq = 7, 'g', 'other'), 'bad' FROM " + NUMBERS,
    )
    do(ledger.engine, "ANALYZE TABLE offset_batches, dead_letters")
    query = f"SELECT batch_id FROM {table} WHERE consumer_group = 'g' AND {condition}"

    with ledger.connect() as conn:
        explained = conn.exec_driver_sql(f"EXPLAIN {query}").mappings().one()
    assert (explained["key"], "Using index" in explained["Extra"]) == (index, True)
    assert int(explained["rows"]) < 100


def test_names_differ_by_case_and_by_spaces_at_their_ends(ledger: Ledger) -> None:
    from airflow_kafka_offsets.ledger.batches import record_plan

    groups = ["orders", "Orders", "orders ", "ördérs"]
    if pads(ledger.engine):
        groups.remove("orders ")
    for group in groups:
        claim = claim_group(ledger, group, FIRST_TRY, cluster_id=CLUSTER, lease=MINUTE)
        batch = record_plan(claim, FIRST_LOAD, RECIPE, 0, beside_others=True)
        assert batch is not None
        assert open_batch(ledger, group) == batch


def test_a_name_that_the_collation_takes_for_another_groups_is_refused(ledger: Ledger) -> None:
    """As MySQL before 8.0.17 takes one that ends in spaces."""
    do(ledger.engine, "ALTER TABLE consumer_groups MODIFY group_id VARCHAR(250) COLLATE utf8mb4_general_ci NOT NULL")
    claim_group(ledger, "orders ", FIRST_TRY, cluster_id=CLUSTER, lease=MINUTE)

    for other in ("orders", "ORDERS "):
        with pytest.raises(ConfigurationError, match=rf"does not distinguish the names '{other}' and 'orders '"):
            claim_group(ledger, other, OTHER_RUN, cluster_id=CLUSTER, lease=MINUTE)


def test_columns_keep_microseconds_and_any_size(ledger: Ledger) -> None:
    texts, moment = ledger.tables.schema_texts, datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)
    dead_letters = ledger.tables.dead_letters
    with ledger.engine.begin() as conn:
        conn.execute(texts.insert().values(digest="d", type="AVRO", texts="ж" * 100_000))
        values = {"batch_id": 1, "topic": "t", "partition": 0, "offset_value": 0, "consumer_group": "g", "error": "😀"}
        conn.execute(dead_letters.insert().values(**values, value=b"\xff" * 100_000, record_timestamp=moment))

    with ledger.connect() as conn:
        assert conn.scalar(sa.select(texts.c.texts)) == "ж" * 100_000
        assert tuple(
            conn.execute(sa.select(dead_letters.c.value, dead_letters.c.record_timestamp, dead_letters.c.error)).one()
        ) == (
            b"\xff" * 100_000,
            moment,
            "😀",
        )


def test_several_processes_create_them_at_once(mariadb_engine: Engine) -> None:
    engines = [sa.create_engine(mariadb_engine.url) for _ in range(5)]
    with ThreadPoolExecutor(5) as background:
        for done in [background.submit(create_missing, Ledger(engine)) for engine in engines]:
            done.result(60)
    assert select(mariadb_engine, "SELECT count(*) FROM offsets_schema_version") == [(1,)]
    for engine in engines:
        engine.dispose()


def test_the_printed_statements_create_them(mariadb_engine: Engine) -> None:
    text = statements(Ledger(mariadb_engine))
    with mariadb_engine.connect() as conn:
        for statement in text.split(";\n"):
            if statement.strip():
                conn.connection.cursor().execute(statement)
        conn.connection.commit()

    assert create_missing(Ledger(mariadb_engine)) is False
    planned(Ledger(mariadb_engine), "a")
    with pytest.raises(IntegrityError):
        planned(Ledger(mariadb_engine), "a")


def test_tables_without_transactions_are_refused(ledger: Ledger) -> None:
    do(ledger.engine, "ALTER TABLE schema_texts ENGINE = MyISAM")

    with pytest.raises(LedgerError, match=r"engine of table 'schema_texts' is MyISAM.*ALTER TABLE `schema_texts`"):
        create_missing(ledger)


class TestClaims:
    def test_a_group_whose_row_is_locked_is_busy_at_once(self, ledger: Ledger) -> None:
        held = claim_group(ledger, "a", FIRST_TRY, cluster_id=CLUSTER, lease=MINUTE)
        with ledger.engine.begin() as conn:
            held.lock(conn)
            with pytest.raises(GroupBusyError, match="is being committed by another run"):
                claim_group(ledger, "a", OTHER_RUN, cluster_id=CLUSTER, lease=MINUTE)

    def test_the_lock_that_changes_nothing_is_a_lock(self, ledger: Ledger) -> None:
        from airflow_kafka_offsets.ledger.groups import lock

        claim_group(ledger, "a", FIRST_TRY, cluster_id=CLUSTER, lease=MINUTE)
        with ledger.engine.begin() as conn:
            lock(conn, ledger.tables, "a")
            with pytest.raises(GroupBusyError):
                claim_group(ledger, "a", SECOND_TRY, cluster_id=CLUSTER, lease=MINUTE)

    def test_lock_reads_commits_of_before(self, ledger: Ledger) -> None:
        """Under REPEATABLE READ, a transaction that has read before it waits sees the old epoch."""
        held = claim_group(ledger, "a", FIRST_TRY, cluster_id=CLUSTER, lease=MINUTE)
        groups = Tables().consumer_groups
        with ledger.engine.begin() as conn:
            assert conn.scalar(sa.select(groups.c.epoch)) == 1
            claim_group(ledger, "a", SECOND_TRY, cluster_id=CLUSTER, lease=MINUTE)
            assert conn.scalar(sa.select(groups.c.epoch)) == 2
            with pytest.raises(FencedError):
                held.lock(conn)


class TestTheLockOfChanges:
    def test_without_it_nothing_is_changed(
        self, mariadb_engine: Engine, mariadb: MariaDbServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        taken: list[str] = []

        @sa.event.listens_for(mariadb_engine, "before_cursor_execute")
        def take(conn: object, cursor: object, statement: str, parameters: dict[str, str], *_: object) -> None:
            if "get_lock" in statement and not taken:
                taken.append(next(value for value in parameters.values() if isinstance(value, str)))
                assert other.execute(f"SELECT get_lock('{taken[0]}', 0)")

        monkeypatch.setattr(install, "_LOCK_SECONDS", 0)
        with mariadb.connect() as connection, connection.cursor() as other:
            with pytest.raises(DatabaseBusyError, match=r"Another process has been changing .*lock 'airflow_kafka"):
                initialize(Ledger(mariadb_engine))
            assert sa.inspect(mariadb_engine).get_table_names() == []
            # The end of a session releases it, too, but later.
            assert other.execute(f"SELECT release_lock('{taken[0]}')")
        assert initialize(Ledger(mariadb_engine))

    @staticmethod
    def kill_at(engine: Engine, mariadb: MariaDbServer, part: str) -> None:
        """Kill the session once, before a statement."""
        killed: list[str] = []

        @sa.event.listens_for(engine, "before_cursor_execute")
        def kill(conn: object, cursor: object, statement: str, *_: object) -> None:
            if part in statement and not killed:
                killed.append(statement)
                mariadb.execute(f"KILL {conn.connection.dbapi_connection.thread_id()}")  # type: ignore[attr-defined]

    @pytest.mark.parametrize("part", ["get_lock", "CREATE TABLE consumed_offsets", "INSERT", "release_lock"])
    def test_a_session_that_is_killed_meanwhile_is_an_outage(
        self, mariadb_engine: Engine, mariadb: MariaDbServer, part: str
    ) -> None:
        self.kill_at(mariadb_engine, mariadb, part)
        with pytest.raises(DatabaseUnavailableError, match="The state tables could not be created"):
            initialize(Ledger(mariadb_engine))
        initialize(Ledger(mariadb_engine))
        assert initialize(Ledger(mariadb_engine)) is False
