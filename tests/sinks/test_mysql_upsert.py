"""Upserts into MariaDB: in the transaction of the commit, although temporary tables are DDL; by the key, and no other
index.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import RecordError, TargetError
from airflow_kafka_offsets.sinks.sql.connected_table import SqlTarget
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.sinks.target_rows import LogOrder, OtherLogs
from devstack.mariadb import MariaDbServer
from devstack.process import wait_until
from tests.support.mariadb import at, columns, do, needs_checks, pads, select, staged, write

pytestmark = pytest.mark.server

KEYED = SqlTable("target", upsert_key=("id",))
COLUMNS = columns(id=pa.string(), name=pa.string())
HELD = "SELECT id, name, _kafka_offset FROM target ORDER BY id, name"


@pytest.fixture(autouse=True)
def _created(mariadb_engine: Engine) -> None:
    KEYED.connect(mariadb_engine).prepare(COLUMNS)


def test_upsert_commits_nothing_before_the_end(mariadb_engine: Engine, tmp_path: Path) -> None:
    do(mariadb_engine, "CREATE TABLE moved (id INT)")
    rows = staged(tmp_path, COLUMNS, [at(1, id="a", name="x"), at(2, id=None, name="y")], dead_letters=True)

    with mariadb_engine.connect() as conn:
        conn.exec_driver_sql("INSERT INTO moved VALUES (1)")
        assert SqlTarget(conn, KEYED.connect(conn.engine)).write(rows) == 1
        conn.rollback()

    assert select(mariadb_engine, "SELECT count(*) FROM moved") == [(0,)]
    assert select(mariadb_engine, HELD) == []


@pytest.mark.parametrize("name", ["x", None], ids=["written", "refused"])
def test_a_session_keeps_no_temporary_table(mariadb_engine: Engine, tmp_path: Path, name: str | None) -> None:
    do(mariadb_engine, "ALTER TABLE target MODIFY name VARCHAR(9) NOT NULL")
    made: list[str] = []

    def note(*event: Any) -> None:
        made.extend(re.findall(r"^CREATE TEMPORARY TABLE (\S+)", event[2]))

    sa.event.listen(mariadb_engine, "before_cursor_execute", note)
    with mariadb_engine.connect() as conn:
        try:
            SqlTarget(conn, KEYED.connect(conn.engine)).write(staged(tmp_path, COLUMNS, [at(1, id="a", name=name)]))
        except RecordError:
            assert name is None
        for table in made:
            with pytest.raises(sa.exc.ProgrammingError, match="doesn't exist"):
                conn.exec_driver_sql(f"SELECT 1 FROM {table}")
    assert len(made) > 1


def test_the_newest_wins_and_the_count_is_of_rows_that_changed(mariadb_engine: Engine, tmp_path: Path) -> None:
    first = [at(1, id="a", name="old"), at(5, id="b", name="new"), at(3, id="a", name="newer"), at(4, id="A", name="")]
    assert write(mariadb_engine, KEYED, staged(tmp_path, COLUMNS, first)) == 3

    again = [at(2, id="a", name="late"), at(5, id="b", name="same"), at(6, id="a ", name="space")]
    assert write(mariadb_engine, KEYED, staged(tmp_path, COLUMNS, again)) == 2

    kept = [("a", "space", 6)] if pads(mariadb_engine) else [("a", "newer", 3), ("a ", "space", 6)]
    assert select(mariadb_engine, HELD) == [("A", "", 4), *kept, ("b", "same", 5)]


def test_another_unique_index_is_no_key(mariadb_engine: Engine, tmp_path: Path) -> None:
    do(mariadb_engine, "ALTER TABLE target MODIFY name VARCHAR(9), ADD UNIQUE (name)")
    write(mariadb_engine, KEYED, staged(tmp_path, COLUMNS, [at(1, id="a", name="x")]))

    with pytest.raises(RecordError, match=r"offset 3 .*Duplicate entry"):
        write(mariadb_engine, KEYED, staged(tmp_path, COLUMNS, [at(2, id="b", name="y"), at(3, id="c", name="x")]))

    assert select(mariadb_engine, HELD) == [("a", "x", 1)]


def test_the_older_row_of_a_key_is_written_where_the_newest_is_refused(mariadb_engine: Engine, tmp_path: Path) -> None:
    needs_checks(mariadb_engine)
    do(mariadb_engine, "ALTER TABLE target ADD CONSTRAINT short CHECK (length(name) < 3)")
    rows = [at(n, id=f"{n % 40}", name="long" if n == 77 else "ok") for n in range(80)]
    kept = staged(tmp_path, COLUMNS, rows, dead_letters=True)

    assert write(mariadb_engine, KEYED, kept) == 40

    ((record, reason),) = kept.refused.reasons.items()
    assert (record.offset, "short" in reason) == (77, True)
    assert select(mariadb_engine, "SELECT _kafka_offset FROM target WHERE id = '37'") == [(37,)]


def test_a_key_that_another_transaction_inserts_meanwhile_is_replaced(mariadb_engine: Engine, tmp_path: Path) -> None:
    with mariadb_engine.connect() as other, ThreadPoolExecutor(1) as background:
        SqlTarget(other, KEYED.connect(other.engine)).write(staged(tmp_path, COLUMNS, [at(1, id="a", name="theirs")]))
        ours = background.submit(write, mariadb_engine, KEYED, staged(tmp_path, COLUMNS, [at(2, id="a", name="ours")]))
        waiting = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        wait_until(
            lambda: ours.done() or select(mariadb_engine, waiting) != [(0,)], 30, "the insert to wait", interval=0.2
        )
        assert not ours.done()
        other.commit()
        assert ours.result(30) == 1

    assert select(mariadb_engine, HELD) == [("a", "ours", 2)]


@pytest.mark.parametrize("before", ["UPDATE target", "INSERT INTO target"])
@pytest.mark.parametrize("offset", [1, 9], ids=["older", "newer"])
def test_a_key_that_is_inserted_and_committed_between_two_statements_is_compared(
    mariadb_engine: Engine, tmp_path: Path, before: str, offset: int
) -> None:
    other = sa.create_engine(mariadb_engine.url)
    done: list[str] = []

    def meddle(*event: Any) -> None:
        if event[2].startswith(before) and not done:
            done.append(before)
            write(other, KEYED, staged(tmp_path, COLUMNS, [at(offset, id="a", name="theirs")]))

    sa.event.listen(mariadb_engine, "before_cursor_execute", meddle)
    rows = [at(2, id="a", name="ours"), at(3, id="b", name="ours")]

    assert write(mariadb_engine, KEYED, staged(tmp_path, COLUMNS, rows)) == (2 if offset < 2 else 1)

    first = ("a", "ours", 2) if offset < 2 else ("a", "theirs", 9)
    assert select(mariadb_engine, HELD) == [first, ("b", "ours", 3)]
    other.dispose()


@pytest.mark.parametrize("before", ["UPDATE target", "INSERT INTO target"])
def test_a_row_that_is_to_be_replaced_cannot_be_deleted_meanwhile(
    mariadb_engine: Engine, tmp_path: Path, before: str
) -> None:
    write(mariadb_engine, KEYED, staged(tmp_path, COLUMNS, [at(1, id="a", name="old")]))
    other = sa.create_engine(mariadb_engine.url)

    def delete(*event: Any) -> None:
        if event[2].startswith(before):
            with other.connect() as conn:
                conn.exec_driver_sql("SET SESSION innodb_lock_wait_timeout = 0")
                with pytest.raises(sa.exc.OperationalError, match="Lock wait timeout"):
                    conn.exec_driver_sql("DELETE FROM target")

    sa.event.listen(mariadb_engine, "before_cursor_execute", delete)

    assert write(mariadb_engine, KEYED, staged(tmp_path, COLUMNS, [at(2, id="a", name="new")])) == 1
    assert select(mariadb_engine, HELD) == [("a", "new", 2)]
    other.dispose()


def test_a_user_who_may_not_make_temporary_tables_is_refused_before_spark_starts(
    mariadb_engine: Engine, mariadb: MariaDbServer
) -> None:
    name = mariadb_engine.url.database
    mariadb.execute("DROP USER IF EXISTS weak")
    mariadb.execute("CREATE USER weak IDENTIFIED BY 'weak'")
    mariadb.execute(f"GRANT SELECT, INSERT, UPDATE ON `{name}`.* TO weak")
    engine = sa.create_engine(mariadb_engine.url.set(username="weak", password="weak"))

    with pytest.raises(
        TargetError, match=rf"'weak' may not make temporary tables .* CREATE TEMPORARY TABLES ON {name}"
    ):
        KEYED.connect(engine).prepare(COLUMNS)

    engine.dispose()


def test_rows_of_an_earlier_topic_are_replaced_whatever_their_offsets_are(
    mariadb_engine: Engine, tmp_path: Path
) -> None:
    old = [at(7, id=key, name="old") for key in "abc"]
    write(mariadb_engine, KEYED, staged(tmp_path, COLUMNS, old))
    do(mariadb_engine, "UPDATE target SET _batch_id = CASE id WHEN 'a' THEN 70 WHEN 'b' THEN 71 ELSE 72 END")
    asked: list[list[int]] = []

    def other_logs(conn: sa.Connection, batch_ids: Collection[int]) -> OtherLogs:
        asked.append(sorted(batch_ids))
        return OtherLogs({"orders": [70, 71]}, {})

    new = staged(tmp_path, COLUMNS, [at(number, id=key, name="new") for number, key in enumerate("abcd")])
    with mariadb_engine.begin() as conn:
        assert SqlTarget(conn, KEYED.connect(conn.engine), LogOrder(other_logs)).write(new) == 3

    assert asked == [[70, 71, 72]]
    assert select(mariadb_engine, HELD) == [("a", "new", 0), ("b", "new", 1), ("c", "old", 7), ("d", "new", 3)]


def test_a_refused_row_that_would_replace_one_of_an_earlier_topic_is_a_dead_letter(
    mariadb_engine: Engine, tmp_path: Path
) -> None:
    needs_checks(mariadb_engine)
    do(mariadb_engine, "ALTER TABLE target ADD CHECK (name <> 'bad')")
    write(mariadb_engine, KEYED, staged(tmp_path, COLUMNS, [at(7, id=key, name="old") for key in "abc"]))
    do(mariadb_engine, "UPDATE target SET _batch_id = 70")
    new = [at(0, id="a", name="new"), at(1, id="b", name="bad"), at(2, id="c", name="new")]
    rows = staged(tmp_path, COLUMNS, new, dead_letters=True)

    with mariadb_engine.begin() as conn:
        sink = SqlTarget(conn, KEYED.connect(conn.engine), LogOrder(lambda *_: OtherLogs({"orders": [70]}, {})))
        assert sink.write(rows) == 2

    assert [record.offset for record in rows.refused.reasons] == [1]
    assert select(mariadb_engine, HELD) == [("a", "new", 0), ("b", "old", 7), ("c", "new", 2)]
