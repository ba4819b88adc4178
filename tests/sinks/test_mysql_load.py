"""Rows into MariaDB, by LOAD DATA LOCAL and by INSERT: what is stored is what was sent, or its record is named."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.database.pymysql_protocol import ResultOfRows
from airflow_kafka_offsets.database.session import unify_sessions
from airflow_kafka_offsets.exceptions import ConfigurationError, RecordError, TargetError
from airflow_kafka_offsets.sinks.sql.connected_table import SqlTarget
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from devstack.mariadb import MariaDbServer
from tests.support.loads import reflected
from tests.support.mariadb import Row, at, columns, counted, do, is_mysql, needs_checks, select, staged, write

pytestmark = pytest.mark.server

TARGET = SqlTable("target")
SINGLE = struct.unpack("f", struct.pack("f", 0.1))[0]


def test_every_value_is_stored_as_it_was_sent(mariadb_engine: Engine, way: str, tmp_path: Path) -> None:
    schema = columns(
        id=pa.int64(), text=pa.string(), data=pa.binary(), exact=pa.decimal128(38, 20), twice=pa.float64(),
        single=pa.float32(), instant=pa.timestamp("us", "UTC"), wall=pa.timestamp("us"), day=pa.date32(),
        flag=pa.bool_(), small=pa.int16(),
    )  # fmt: skip
    names = [name for name in schema.names if not name.startswith("_kafka")]
    values: list[tuple[Any, ...]] = [
        ("\\N\t\n\r\\'\"\0\x1aé😀%s`", bytes(range(256)), Decimal("1e-20"), 1e300, SINGLE,
         datetime(1, 1, 1, 0, 0, 0, 1, UTC),
         datetime(9999, 12, 31, 23, 59, 59, 999_999), date(1, 1, 1), True, -(2**15)),
        ("", b"", Decimal("-0.5"), -1e-300, -SINGLE, datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
         datetime(1969, 12, 31, 23, 59, 59, 5), date(9999, 12, 31), False, 2**15 - 1),
        ("\\N", b"\\N", Decimal("9" * 18), 0.1, 0.0, None, None, None, None, 0),
        (None,) * 10,
        ("trailing  ", b"NULL", None, None, None, None, None, None, None, None),
    ]  # fmt: skip
    rows = [at(number, **dict(zip(names, (number, *row), strict=True))) for number, row in enumerate(values)]
    TARGET.connect(mariadb_engine).prepare(schema)

    with mariadb_engine.begin() as conn:
        assert SqlTarget(conn, TARGET.connect(conn.engine)).write(staged(tmp_path, schema, rows)) == len(rows)
        assert counted(conn, "load") == (way == "load")

    table = reflected(mariadb_engine, "target")
    with mariadb_engine.connect() as conn:
        found = [dict(row) for row in conn.execute(sa.select(table).order_by(table.c.id)).mappings()]
    for row in rows:
        row["instant"] = row["instant"] and row["instant"].replace(tzinfo=None)
    assert found == [row | {"_batch_id": 1, "_kafka_timestamp": None} for row in rows]


REFUSED: dict[str, tuple[str, Any, str]] = {
    "text that is too long": ("name", "x" * 11, "Data too long for column"),
    "spaces that would be lost": ("name", "x" + " " * 10, "Data truncated for column"),
    "a character that latin1 lacks": ("plain", "Ж", "Incorrect string value"),
    "a null": ("name", None, "cannot be null"),
    "a check": ("name", "refused", "CONSTRAINT"),
    "a number out of range": ("small", 128, "Out of range value for column"),
    "text that is no number": ("read", "twelve", "invalid|Incorrect|does not"),
    "not a number": ("ratio", float("nan"), "no NaN and no infinity"),
    "infinity": ("ratio", float("-inf"), "no NaN and no infinity"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_row_is_named_and_all_others_are_written(
    mariadb_engine: Engine, way: str, tmp_path: Path, case: str
) -> None:
    column, value, reason = REFUSED[case]
    if case == "a check":
        needs_checks(mariadb_engine)
    do(
        mariadb_engine,
        "CREATE TABLE target (id BIGINT PRIMARY KEY, name VARCHAR(10) NOT NULL CHECK (name <> 'refused'),"
        " plain VARCHAR(10) CHARACTER SET latin1, small TINYINT, `read` TIME, ratio DOUBLE)",
    )
    schema = columns(
        id=pa.int64(), name=pa.string(), plain=pa.string(), small=pa.int32(), read=pa.string(), ratio=pa.float64()
    )
    good: Row = {"name": "x", "plain": "é", "small": 1, "read": "10:00:00", "ratio": 0.5}
    bad = {1, 1700, 2499}
    rows = [at(n, **(good | {"id": n} | ({column: value} if n in bad else {}))) for n in range(2500)]
    kept = staged(tmp_path, schema, rows, dead_letters=True)

    assert write(mariadb_engine, TARGET, kept) == 2497

    assert {record.offset for record in kept.refused.reasons} == bad
    for said in kept.refused.reasons.values():
        assert "at row" not in said
        assert "twelve" not in said
        if case != "text that is no number":
            assert reason in said
    assert select(mariadb_engine, "SELECT count(*), count(DISTINCT id), sum(name = 'x') FROM target") == [
        (2497, 2497, 2497)
    ]
    with pytest.raises(RecordError, match=r"'orders' partition 0 offset 1 "):
        write(
            mariadb_engine,
            TARGET,
            staged(tmp_path, schema, [at(n, **row) for n, row in enumerate([good | {"id": 5000}, rows[1]])]),
        )


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("key", [(), ("id",)], ids=["append", "upsert"])
@pytest.mark.parametrize(
    ("generated", "good", "bad"),
    [
        ("json_extract(name, '$.a')", '{"a": 1}', "nope"),
        ("json_extract(name, '$.a')", '{"a": 1}', '{"a'),
        ("10 / char_length(name)", "x", ""),
    ],
)
def test_a_record_whose_generated_column_cannot_be_computed_is_bad(
    mariadb_engine: Engine, tmp_path: Path, generated: str, good: str, bad: str, key: tuple[str, ...]
) -> None:
    do(
        mariadb_engine,
        f"CREATE TABLE target (id BIGINT PRIMARY KEY, name TEXT, made INT AS ({generated}) STORED,"
        " _kafka_topic TEXT, _kafka_partition INT, _kafka_offset BIGINT, _batch_id BIGINT)",
    )
    rows = [at(n, id=n, name=bad if n == 3 else good) for n in range(8)]
    kept = staged(tmp_path, columns(id=pa.int64(), name=pa.string()), rows, dead_letters=True)

    assert write(mariadb_engine, SqlTable("target", upsert_key=key), kept) == 7

    assert [record.offset for record in kept.refused.reasons] == [3]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("key", [(), ("id",)], ids=["append", "upsert"])
def test_a_row_that_is_too_large_for_a_page_is_bad(
    mariadb_engine: Engine, tmp_path: Path, key: tuple[str, ...]
) -> None:
    """Of a LONGTEXT a page has up to 39 bytes."""
    if key and is_mysql(mariadb_engine):
        pytest.skip("MySQL creates no such table, and so no temporary one for an upsert")
    names = [f"c{number}" for number in range(250)]
    do(
        mariadb_engine,
        "SET innodb_strict_mode = OFF",  # MySQL would not create it
        f"CREATE TABLE target (id BIGINT PRIMARY KEY, {', '.join(f'{name} LONGTEXT' for name in names)},"
        " _kafka_topic VARCHAR(200), _kafka_partition INT, _kafka_offset BIGINT, _batch_id BIGINT)",
        "SET innodb_strict_mode = ON",
    )
    rows = [at(n, id=n, **dict.fromkeys(names, "x" * 39 if n == 3 else "x")) for n in range(8)]
    schema = columns(id=pa.int64(), **dict.fromkeys(names, pa.string()))
    kept = staged(tmp_path, schema, rows, dead_letters=True)

    assert write(mariadb_engine, SqlTable("target", upsert_key=key), kept) == 7

    assert [record.offset for record in kept.refused.reasons] == [3]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("count", [10, 3000])
def test_a_record_that_a_trigger_refuses_is_named(mariadb_engine: Engine, count: int, tmp_path: Path) -> None:
    do(
        mariadb_engine,
        "CREATE TABLE target (id BIGINT)",
        "CREATE TRIGGER no_three BEFORE INSERT ON target FOR EACH ROW IF NEW.id = 3 THEN SIGNAL SQLSTATE '45000' SET "
        "MESSAGE_TEXT = 'no three'; END IF",
    )
    rows = staged(tmp_path, columns(id=pa.int64()), [at(n, id=n) for n in range(count)], dead_letters=True)

    assert write(mariadb_engine, SqlTable("target"), rows) == count - 1

    assert [record.offset for record in rows.refused.reasons] == [3]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("before", [[], ["(0, 'y')"] * 500], ids=["first", "row-501"])
def test_a_record_that_a_statement_of_a_trigger_refuses_is_named(
    mariadb_engine: Engine, tmp_path: Path, before: list[str]
) -> None:
    """The number of the row in the server's message is that of the trigger's statement."""
    do(
        mariadb_engine,
        "CREATE TABLE target (id BIGINT, name VARCHAR(100))",
        "CREATE TABLE audit (id BIGINT, name VARCHAR(3))",
        "CREATE TRIGGER audits AFTER INSERT ON target FOR EACH ROW INSERT INTO audit VALUES "
        f"{', '.join([*before, '(NEW.id, NEW.name)'])}",
    )
    bad = {7, 30, 31, 399}
    rows = [at(n, id=n, name="too long" if n in bad else "x") for n in range(400)]
    kept = staged(tmp_path, columns(id=pa.int64(), name=pa.string()), rows, dead_letters=True)

    assert write(mariadb_engine, SqlTable("target"), kept) == 396

    assert {record.offset for record in kept.refused.reasons} == bad
    for table in ("target", "audit"):
        counted = f"SELECT count(*), count(DISTINCT id), sum(name = 'x') FROM {table} WHERE name <> 'y'"
        assert select(mariadb_engine, counted) == [(396, 396, 396)]


def test_rows_are_sent_to_a_server_that_takes_small_packets(
    mariadb: MariaDbServer, mariadb_database: str, tmp_path: Path
) -> None:
    (kept,) = mariadb.execute("SELECT @@GLOBAL.max_allowed_packet")[0]
    mariadb.execute(f"SET GLOBAL max_allowed_packet = {1 << 20}")
    engine = sa.create_engine(mariadb_database)
    try:
        do(engine, "CREATE TABLE target (id BIGINT, name VARCHAR(100))")
        rows = [at(n, id=n, name="x" * 100) for n in range(20_000)]
        assert (
            write(engine, SqlTable("target"), staged(tmp_path, columns(id=pa.int64(), name=pa.string()), rows))
            == 20_000
        )
    finally:
        mariadb.execute(f"SET GLOBAL max_allowed_packet = {kept}")
        engine.dispose()


def test_a_row_with_a_key_that_is_there_is_an_error_and_no_dead_letter(
    mariadb_engine: Engine, way: str, tmp_path: Path
) -> None:
    do(mariadb_engine, "CREATE TABLE target (id BIGINT PRIMARY KEY)")
    schema = columns(id=pa.int64())

    with pytest.raises(RecordError, match=r"offset 1201 .*Duplicate entry"):
        write(
            mariadb_engine,
            TARGET,
            staged(tmp_path, schema, [at(n, id=n % 1201) for n in range(2000)], dead_letters=True),
        )

    assert select(mariadb_engine, "SELECT count(*) FROM target") == [(0,)]


def test_a_row_that_no_statement_can_hold_is_named(
    mariadb_engine: Engine, mariadb: MariaDbServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    schema = columns(text=pa.string())
    TARGET.connect(mariadb_engine).prepare(schema)
    large = [at(0, text="a"), at(1, text="x" * (16 << 20)), at(2, text="b")]

    assert write(mariadb_engine, TARGET, staged(tmp_path, schema, large)) == 3  # LOAD DATA has no such limit
    assert "by INSERT" not in caplog.text
    mariadb.execute("SET GLOBAL local_infile = 0")
    try:
        with pytest.raises(RecordError, match=r"offset 1 .*max_allowed_packet"):
            write(mariadb_engine, TARGET, staged(tmp_path, schema, large))
        assert "by INSERT, at half the speed of LOAD DATA LOCAL" in caplog.text
    finally:
        mariadb.execute("SET GLOBAL local_infile = 1")


class TestFilesOfThisMachine:
    def test_no_statement_reads_one_whatever_the_engine_allows(self, mariadb_database: str) -> None:
        engine = sa.create_engine(f"{mariadb_database}?local_infile=1")
        unify_sessions(engine)
        TARGET.connect(engine).prepare(columns(text=pa.string()))
        with engine.connect() as conn:
            with pytest.raises(RuntimeError, match="local_infile option is false"):
                conn.exec_driver_sql(f"LOAD DATA LOCAL INFILE '{Path(__file__)}' INTO TABLE target (text)")
            conn.invalidate()
        engine.dispose()

    @pytest.mark.parametrize("asked", [b"/etc/passwd", b""])
    def test_a_server_that_asks_for_another_one_gets_nothing(self, asked: bytes) -> None:
        done: list[str] = []
        request: Any = SimpleNamespace(
            is_ok_packet=lambda: False, is_load_local_packet=lambda: True, get_all_data=lambda: b"\xfb" + asked
        )
        connection = SimpleNamespace(
            _read_packet=lambda: request, _force_close=lambda: done.append("closed"), write_packet=done.append
        )

        for name in (b"airflow_kafka_offsets-1", b""):
            with pytest.raises(RuntimeError, match="The server asked for the file"):
                ResultOfRows(connection, name, [b"rows"]).read()

        assert done == ["closed", "closed"]


def test_rows_that_cannot_be_made_leave_no_answer_behind() -> None:
    """The pool would give the connection to somebody whose COMMIT gets the answer to LOAD DATA."""
    done: list[Any] = []
    request: Any = SimpleNamespace(
        is_ok_packet=lambda: False, is_load_local_packet=lambda: True, get_all_data=lambda: b"\xfbname"
    )
    connection = SimpleNamespace(
        _read_packet=lambda: request, _force_close=lambda: done.append("closed"), write_packet=done.append
    )

    def lines() -> Iterator[bytes]:
        yield b"1\n"
        raise MemoryError

    with pytest.raises(MemoryError):
        ResultOfRows(connection, b"name", lines()).read()

    assert done == [b"1\n", "closed"]


class TestTarget:
    def test_a_table_without_transactions_is_refused_before_spark_starts(self, mariadb_engine: Engine) -> None:
        do(mariadb_engine, "CREATE TABLE target (id BIGINT) ENGINE = MyISAM")

        with pytest.raises(
            TargetError, match=r"engine of table 'target' is MyISAM.* ALTER TABLE `target` ENGINE = InnoDB"
        ):
            TARGET.connect(mariadb_engine).prepare(columns(id=pa.int64()))

    def test_columns_are_added_by_no_commit(self, mariadb_engine: Engine) -> None:
        do(mariadb_engine, "CREATE TABLE target (id BIGINT)")

        with pytest.raises(ConfigurationError, match="in the transaction of the commit, which mysql does not support"):
            TARGET.connect(mariadb_engine).prepare(columns(id=pa.int64(), new=pa.string()), may_grow=True)

    def test_another_driver_is_refused(self) -> None:
        dialect: Any = SimpleNamespace(name="mysql", driver="mysqldb")

        with pytest.raises(ConfigurationError, match=r"PyMySQL.*'mysqldb'.*mysql\+pymysql://"):
            TARGET.connect(SimpleNamespace(dialect=dialect)).prepare(None)  # type: ignore[arg-type]
