"""What MariaDB holds, as PyMySQL reads it, is what was sent, or the row was refused, or docs/formats.md says so."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from sqlalchemy import inspect
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import ConfigurationError, TargetError
from airflow_kafka_offsets.formats.columns import ORIGIN_COLUMNS
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.support.mariadb import at, columns, do, is_mysql, select, staged, write
from tests.support.values import KEYS, VALUES, as_single, changed, refused, stored

pytestmark = pytest.mark.server


def without_sign_of_zero(number: float) -> float:
    return number + 0.0


def single(number: float) -> float:
    return as_single(number) + 0.0


CHANGES: dict[tuple[str, str], Callable[[Any], Any]] = {
    **{("double", ddl): without_sign_of_zero for ddl in ("FLOAT", "DOUBLE")},
    **{("float", ddl): single for ddl in ("FLOAT", "DOUBLE")},
    **{("float unsigned", ddl): single for ddl in ("FLOAT", "DOUBLE")},
    **{("double(10,2)", ddl): lambda number: round(float(number), 2) + 0.0 for ddl in VALUES},
    ("char(3) character set utf8mb4", "STRING"): lambda text: text.rstrip(" "),
    ("set('red','1','green')", "STRING"): lambda text: ",".join(sorted(text.split(","), reverse=True)),
    ("binary(3)", "BINARY"): lambda value: value.ljust(3, b"\0"),
    **{("datetime", ddl): lambda at: at.replace(microsecond=0) for ddl in ("TIMESTAMP", "TIMESTAMP_NTZ")},
}
COLUMNS = [
    *("tinyint", "smallint", "mediumint", "int", "bigint", "tinyint unsigned", "smallint unsigned", "int unsigned"),
    *("bigint unsigned", "float", "float unsigned", "double", "double(10,2)", "decimal(10,2)", "decimal(65,30)"),
    *("decimal(38,38)", "decimal(10,2) unsigned", "char(3) character set utf8mb4", "varchar(3) character set utf8mb4"),
    *("varchar(250) character set latin1", "varchar(250) character set utf8mb3", "tinytext", "longtext"),
    *("enum('red','1','green','blue')", "set('red','1','green')", "binary(3)", "varbinary(3)", "tinyblob", "longblob"),
    *("date", "datetime", "datetime(6)", "timestamp(6) null", "timestamp(6) not null", "bit(8)"),
    *("timestamp(6) not null default current_timestamp(6)", "bigint auto_increment primary key"),
    *("bigint auto_increment unique", "bigint not null default 7", "datetime(6) not null default current_timestamp(6)"),
]
NOT_NULL = ("not null", "auto_increment")


def values_in(
    engine: Engine, column: str | None, tmp_path: Path, key: tuple[str, ...] = ()
) -> dict[str, list[tuple[Any, Any]]]:
    url = engine.url
    with pymysql.connect(
        host=url.host, port=url.port or 3306, user=url.username, password=url.password or "", database=url.database,
        unix_socket=url.query.get("unix_socket"), charset="utf8mb4", autocommit=True,
    ) as conn:  # fmt: skip

        def read(query: str) -> list[tuple[Any, ...]]:
            # FLOAT is shown with six digits.
            exact = query.replace(" x ", " x + 0e0 ") if column is not None and column.startswith("float") else query
            with conn.cursor() as cursor:
                cursor.execute(exact)
                return list(cursor.fetchall())

        found = stored(engine, column, read, tmp_path, key)
    if column is not None and column.startswith("float"):
        return {
            ddl: [(sent, as_single(x) if isinstance(x, float) else x) for sent, x in pairs]
            for ddl, pairs in found.items()
        }
    return found


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("key", KEYS)
def test_no_value_is_changed_silently(
    mariadb_engine: Engine, column: str, key: tuple[str, ...], tmp_path: Path
) -> None:
    if column == "decimal(38,38)" and is_mysql(mariadb_engine):
        pytest.skip("MySQL has 30 digits after the point")
    found = values_in(mariadb_engine, column, tmp_path, key)

    assert bool(found) == (column != "bit(8)")
    keeps_sign = column == "double" and is_mysql(mariadb_engine)
    changes = {} if keeps_sign else {ddl: change for (kind, ddl), change in CHANGES.items() if kind == column}
    assert {ddl: bad for ddl, pairs in found.items() if (bad := changed(pairs, changes.get(ddl)))} == {}
    if any(words in column for words in NOT_NULL):
        assert all(None in refused(pairs) for pairs in found.values())


def test_a_created_table_keeps_every_value_but_nan_and_infinity(mariadb_engine: Engine, tmp_path: Path) -> None:
    found = values_in(mariadb_engine, None, tmp_path)

    changes = {} if is_mysql(mariadb_engine) else {"FLOAT": without_sign_of_zero, "DOUBLE": without_sign_of_zero}
    assert {ddl: bad for ddl, pairs in found.items() if (bad := changed(pairs, changes.get(ddl)))} == {}
    assert {ddl: len(some) for ddl, pairs in found.items() if (some := refused(pairs))} == {"FLOAT": 3, "DOUBLE": 3}


@pytest.mark.parametrize(
    ("column", "ddl", "least", "most"),
    [
        ("tinyint unsigned", "SMALLINT", 0, 2**8 - 1),
        ("smallint unsigned", "INT", 0, 2**16 - 1),
        ("int unsigned", "BIGINT", 0, 2**32 - 1),
        ("bigint unsigned", "DECIMAL(20,0)", 0, 2**64 - 1),
        ("decimal(65,30)", "BIGINT", -(2**63), 2**63 - 1),
    ],
)
def test_a_number_is_refused_if_the_column_has_no_room_for_it(
    mariadb_engine: Engine, column: str, ddl: str, least: int, most: int, tmp_path: Path
) -> None:
    pairs = values_in(mariadb_engine, column, tmp_path)[ddl]

    assert refused(pairs) == [sent for sent, _ in pairs if sent is not None and not least <= sent <= most]


@pytest.mark.parametrize("text", ["3", "RED", "red ", "", "0"])
@pytest.mark.parametrize("kind", ["ENUM", "SET"])
def test_a_text_that_mysql_would_take_for_a_label_is_refused(
    mariadb_engine: Engine, kind: str, text: str, tmp_path: Path
) -> None:
    do(mariadb_engine, f"CREATE TABLE target (x {kind}('red', 'green', 'blue'), _kafka_offset BIGINT)")
    rows = staged(tmp_path, columns(x=pa.string()), [at(0, x="red"), at(1, x=text), at(2)], dead_letters=True)

    write(mariadb_engine, SqlTable("target"), rows)

    kept = [("red",), (None,)] if text or kind == "ENUM" else [("red",), ("",), (None,)]
    assert select(mariadb_engine, "SELECT x FROM target ORDER BY _kafka_offset") == kept


@pytest.mark.parametrize("key", [(), ("k",)], ids=["appended", "upserted"])
def test_no_null_becomes_an_invented_value(mariadb_engine: Engine, key: tuple[str, ...], tmp_path: Path) -> None:
    do(
        mariadb_engine,
        "CREATE TABLE target (id BIGINT AUTO_INCREMENT UNIQUE, k BIGINT PRIMARY KEY, at TIMESTAMP(6) NOT NULL DEFAULT "
        "CURRENT_TIMESTAMP(6), _kafka_topic TEXT, _kafka_partition INT, _kafka_offset BIGINT, _batch_id BIGINT)",
    )
    instant = pa.scalar(0, pa.timestamp("us", "UTC")).as_py().replace(year=2024)
    good = {"id": 5, "at": instant}
    rows = [at(n, **{"k": n, **good, "id": n + 5, **more}) for n, more in enumerate([{}, {"id": None}, {"at": None}])]
    kept = staged(tmp_path, columns(id=pa.int64(), k=pa.int64(), at=pa.timestamp("us", "UTC")), rows, dead_letters=True)

    assert write(mariadb_engine, SqlTable("target", upsert_key=key), kept) == 1

    assert {record.offset: reason for record, reason in kept.refused.reasons.items()} == {
        1: "column 'id': it is null, in place of which the database may store another value",
        2: "column 'at': it is null, in place of which the database may store another value",
    }
    assert select(mariadb_engine, "SELECT id, k FROM target") == [(5, 0)]


def test_decimals_become_the_nearest_double(mariadb_engine: Engine, tmp_path: Path) -> None:
    do(mariadb_engine, "CREATE TABLE target (x DOUBLE)")
    decimals = [Decimal(number).scaleb(-2) for number in range(1000)]
    rows = staged(tmp_path, columns(x=pa.decimal128(10, 2)), [at(n, x=x) for n, x in enumerate(decimals)])

    write(mariadb_engine, SqlTable("target"), rows)

    assert sorted(x for (x,) in select(mariadb_engine, "SELECT x FROM target")) == [float(x) for x in decimals]


def test_fields_of_older_schemas_become_columns_that_the_server_takes(mariadb_engine: Engine) -> None:
    odd = [
        "tab\t",
        " ",
        "trail ",
        "id ",
        " id",
        "a\N{NO-BREAK SPACE}",
        "\N{GRINNING FACE}",
        "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}",
        "b`b",
        "x\x1b[31m\nFAKE",
    ]
    plain = ["größe", "naïve", "a b", "100%", 'say "hi"', "it's", "a.b", "a:b", "$ref", "名前", "i", "ß", "K"]
    check, taken = SqlTable("target").connect(mariadb_engine).added_check(), list[pa.Field]()
    for number, name in enumerate([*odd, *plain, *map("text {}".format, range(1_000))]):
        column = pa.field(name, pa.string() if number % 2 else pa.binary())
        with suppress(ConfigurationError, TargetError):
            check(column)
            taken.append(column)
    assert [column.name for column in taken][: len(plain)] == plain

    columns = pa.schema([*taken, *ORIGIN_COLUMNS])
    found = SqlTable("target").connect(mariadb_engine).prepare(columns)
    assert found.known == (*columns.names, "_batch_id")


def test_a_column_that_cannot_be_read_again_is_not_made(mariadb_engine: Engine) -> None:
    with pytest.raises(ConfigurationError, match="does not read column 's`t' of MySQL as it is"):
        SqlTable("target").connect(mariadb_engine).prepare(pa.schema([("id", pa.int64()), ("s`t", pa.int64())]))
    assert not inspect(mariadb_engine).has_table("target")
