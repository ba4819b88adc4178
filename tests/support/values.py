"""Values at and beyond the limits of each type that a format can declare, and what a target made of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.exceptions import TargetError
from airflow_kafka_offsets.formats.columns import parse_ddl
from airflow_kafka_offsets.sinks.sql.column_types import match
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.support.mariadb import at, columns, do, is_mysql, staged, write


def _integers(*bits: int) -> list[int]:
    return [0, *(sign * 2**each + more for each in bits for sign, more in ((1, -1), (-1, 0)))]


_DIGITS = 10**38 - 1
_EXACT = Context(prec=100)
_TIMES = [
    datetime(1, 1, 1),
    datetime(1, 1, 1, 0, 0, 0, 1),
    datetime(1582, 10, 15),
    datetime(1969, 12, 31, 23, 59, 59, 999_999),
    datetime(1970, 1, 1),
    datetime(2000, 2, 29, 12, 0, 0, 500_000),
    datetime(2038, 1, 19, 3, 14, 8),
    datetime(9999, 12, 31, 23, 59, 59, 999_999),
]
_FLOATS = [0.0, -0.0, 0.5, -1.0, math.nan, math.inf, -math.inf, 16_777_216.0]


def _decimals(precision: int, scale: int) -> list[Decimal]:
    most, least = Decimal(_DIGITS % 10**precision).scaleb(-scale, _EXACT), Decimal(1).scaleb(-scale)
    texts = ["0", "-0.57", "0.1", "0.3", "0.29", "1", "-1.5", "12", "9223372036854775808", "18446744073709551616"]
    texts += ["100", "123456.7", "1E+20", "1234567890123456.7", "12345678901234567890.12"]
    fitting = (each for each in map(Decimal, texts) if each.copy_abs() <= most and _EXACT.remainder(each, least) == 0)
    return [number.quantize(least, context=_EXACT) for number in (most, most.copy_negate(), least, *fitting)]


VALUES: Mapping[str, Sequence[Any]] = {
    "BOOLEAN": [True, False],
    "TINYINT": _integers(7),
    "SMALLINT": _integers(7, 8, 15),
    "INT": [*_integers(7, 8, 15, 16, 23, 24, 31), 2**24 + 1],
    "BIGINT": [*_integers(7, 8, 15, 16, 23, 24, 31, 32, 53, 63), 2**24 + 1, 2**53 + 1, 10**18],
    "FLOAT": [*_FLOATS, *pa.array([0.1, 3.4028235e38, -3.4028235e38, 1e-45], pa.float32()).to_pylist()],
    "DOUBLE": [*_FLOATS, 0.1, 1e15, 2.0**53, 3.5e38, 1.7976931348623157e308, -1.7976931348623157e308, 5e-324, 1 / 3],
    "DECIMAL(3,0)": _decimals(3, 0),
    "DECIMAL(10,2)": _decimals(10, 2),
    "DECIMAL(20,0)": _decimals(20, 0),
    "DECIMAL(38,0)": _decimals(38, 0),
    "DECIMAL(38,2)": _decimals(38, 2),
    "DECIMAL(38,20)": _decimals(38, 20),
    "DECIMAL(38,38)": _decimals(38, 38),
    "STRING": [
        "", " ", "x", "X", "x  ", "x     ", "   x", "abc", "abcd", "a\0b", "\0", "é", "ß", "Ж", "😀", "😀😀😀",
        "\uffff", "\ud7ff\ue000", "e\u0301", "\r\n\t", '\\N"\\', "'`,;%s", "NULL", "1", "3", "0", "1,3", "01", "1.10",
        "1e5", "red", "RED", "red ", "green,red", "blue", "x" * 63, "é" * 32, "x" * 64, "x" * 250, "é" * 130, "x" * 256,
        "x" * 66_000,
    ],
    "BINARY": [b"", b"\0", b"abc", b"ab ", b"ab\0", b"abcd", bytes(range(256)), b"\\x41", b"x" * 70_000],
    "DATE": [date(1, 1, 1), date(1582, 10, 15), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)],
    "TIMESTAMP": [each.replace(tzinfo=UTC) for each in _TIMES],
    "TIMESTAMP_NTZ": _TIMES,
}  # fmt: skip
"""Of each type."""


class Refused:
    """In place of what a target holds: the row was refused."""

    def __repr__(self) -> str:
        return "refused"


REFUSED = Refused()


KEYS = [
    pytest.param((), id="appended"),
    pytest.param(("_kafka_offset",), id="upserted", marks=pytest.mark.long),
]
"""The keys of the two ways into a table."""


def arrow_type(ddl: str) -> pa.DataType:
    return parse_ddl(f"x {ddl}", binary=True).field("x").type


def stored(
    engine: Engine,
    column: str | None,
    read: Callable[[str], list[tuple[Any, ...]]],
    tmp_path: Path,
    key: tuple[str, ...] = (),
) -> dict[str, list[tuple[Any, Any]]]:
    """Write the values of all types into a column.

    :param column: its type and constraints; None for the type with which a table is created
    :param read: returns the rows of a query by a reader that is not ours
    :param key: that of an upsert
    :return: by each type that fits the column, its values with what the table holds
    """
    found: dict[str, list[tuple[Any, Any]]] = {}
    sink = SqlTable("target", upsert_key=key)
    with engine.begin() as conn:
        if column is not None:
            origin = "_kafka_topic VARCHAR(200), _kafka_partition INT, _kafka_offset BIGINT UNIQUE, _batch_id BIGINT"
            conn.exec_driver_sql(f"CREATE TABLE target (x {column}, {origin})")
        table = sink.connect(engine).reflect(conn)
    for ddl, some in VALUES.items():
        if ddl == "DECIMAL(38,38)" and is_mysql(engine):
            continue  # MySQL has 30 digits after the point
        schema, values = columns(x=arrow_type(ddl)), [*some, None]
        if table is None:
            do(engine, "DROP TABLE IF EXISTS target")
            sink.connect(engine).prepare(schema)
        else:
            try:
                match(table, schema, engine.dialect)
            except TargetError:
                continue
            do(engine, "DELETE FROM target")
        rows = staged(tmp_path, schema, [at(place, x=value) for place, value in enumerate(values)], dead_letters=True)
        write(engine, sink, rows)
        refused = {record.offset for record in rows.refused.reasons}
        held = dict(read("SELECT _kafka_offset, x FROM target"))
        assert held.keys() | refused == set(range(len(values)))
        assert not held.keys() & refused
        found[ddl] = [(value, held.get(place, REFUSED)) for place, value in enumerate(values)]
    return found


def is_same(sent: Any, stored: Any) -> bool:
    """Whether a value is what was sent, whatever type another program has for it."""
    if isinstance(sent, Decimal) and isinstance(stored, float):
        return Decimal(repr(stored)) == sent
    if isinstance(sent, float) and isinstance(stored, float):
        is_nan = math.isnan(sent) and math.isnan(stored)
        return is_nan or (sent == stored and math.copysign(1, sent) == math.copysign(1, stored))
    if isinstance(sent, datetime) and isinstance(stored, datetime):
        return sent.replace(tzinfo=None) == stored.replace(tzinfo=None)
    if isinstance(stored, (memoryview, bytearray)):
        stored = bytes(stored)
    return bool(sent == stored) and (sent is None) == (stored is None)


def as_single(number: float) -> float:
    """A number with the digits of a single-precision one, as programs print it."""
    return float(pa.array([number], pa.float32()).cast(pa.string())[0].as_py())


def changed(values: Sequence[tuple[Any, Any]], change: Callable[[Any], Any] | None = None) -> list[tuple[Any, Any]]:
    """The values that a target holds in another form than they were sent.

    :param change: what the documents say that the target makes of a value
    """
    pairs = [(sent, found) for sent, found in values if found is not REFUSED]
    return [
        (sent, found)
        for sent, found in pairs
        if not is_same(sent if sent is None or change is None else change(sent), found)
    ]


def refused(values: Sequence[tuple[Any, Any]]) -> list[Any]:
    return [sent for sent, found in values if found is REFUSED]
