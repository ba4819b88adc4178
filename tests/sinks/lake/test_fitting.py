"""Rows in the types of a table: each value is stored exactly, or its record is taken out."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_kafka_offsets.exceptions import RecordError, TargetError
from airflow_kafka_offsets.staging.arrow_files import record_batches
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.writers import table_rows as fitting
from airflow_kafka_offsets.writers.statistics import values_at
from airflow_kafka_offsets.writers.table_rows import RefusedRows, fit

INT, LONG, FLOAT, DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()
INSTANT = pa.timestamp("us", "UTC")


def batch(values: pa.Array, offsets: list[int] | None = None) -> pa.RecordBatch:
    numbers = offsets or list(range(len(values)))
    return pa.RecordBatch.from_pydict(
        {
            "x": values,
            "_kafka_topic": ["orders"] * len(values),
            "_kafka_partition": pa.array([3] * len(values), INT),
            "_kafka_offset": pa.array(numbers, LONG),
        }
    )


@pytest.fixture
def staging(tmp_path: Path) -> StagingDirectory:
    return StagingDirectory(str(tmp_path))


def kept(staging: StagingDirectory, rows: pa.RecordBatch, column: pa.Field) -> tuple[list[Any], list[tuple[int, str]]]:
    """Return the values that fit, and offset and reason of every row that was taken out."""
    with RefusedRows(staging, are_kept=True) as refused:
        fitting_rows, (values,) = fit("t", rows, [column], refused)
    assert (values.type, len(values)) == (column.type, fitting_rows.num_rows)
    if refused.file is None:
        return values.to_pylist(), []
    names = ["_kafka_offset", "_kafka_refused"]
    found = [row for each in record_batches(staging, refused.file) for row in each.select(names).to_pylist()]
    assert len(found) == refused.file.rows
    return values.to_pylist(), [(row["_kafka_offset"], row["_kafka_refused"]) for row in found]


@pytest.mark.parametrize(
    ("values", "column", "fits", "refused", "reason"),
    [
        (
            pa.array([1, 2**40, None, -(2**31) - 1, 5], LONG),
            pa.field("x", INT),
            [1, None, 5],
            [1, 3],
            "a value of type BIGINT does not fit into INT",
        ),
        (
            pa.array([Decimal("1.0000"), Decimal("0.1234"), Decimal("99999.5000")], pa.decimal128(18, 4)),
            pa.field("x", pa.decimal128(6, 2)),
            [Decimal("1.00")],
            [1, 2],
            "a value of type DECIMAL(18,4) does not fit into DECIMAL(6,2)",
        ),
        (
            pa.array(["a", None], pa.string()),
            pa.field("x", pa.string(), nullable=False),
            ["a"],
            [1],
            "it is NOT NULL, the STRING is null",
        ),
        (
            pa.array([0, 2**62], LONG).cast(INSTANT),
            pa.field("x", INSTANT),
            None,
            [1],
            "a value of type TIMESTAMP: it lies outside of the years 1 to 9999",
        ),
        (
            pa.array([2**40] * 3, LONG),
            pa.field("x", INT),
            [],
            [0, 1, 2],
            "a value of type BIGINT does not fit into INT",
        ),
    ],
)
def test_values_that_do_not_fit_are_removed(
    staging: StagingDirectory,
    values: pa.Array,
    column: pa.Field,
    fits: list[Any] | None,
    refused: list[int],
    reason: str,
) -> None:
    found, taken = kept(staging, batch(values), column)

    assert taken == [(offset, f"column 'x' of table 't': {reason}") for offset in refused]
    assert len(found) == len(values) - len(refused)
    assert fits is None or found == fits


def test_all_rows_of_its_record_go_with_it(staging: StagingDirectory) -> None:
    rows = batch(pa.array([1, 2, 2**40, 3, 4], LONG), offsets=[7, 8, 8, 8, 9])

    values, taken = kept(staging, rows, pa.field("x", INT))

    assert values == [1, 4]
    assert [offset for offset, _ in taken] == [8, 8, 8]


def test_the_first_one_is_an_error_otherwise(staging: StagingDirectory) -> None:
    rows = batch(pa.array([1, None, 2], LONG))
    with (
        RefusedRows(staging, why_not="; because") as refused,
        pytest.raises(
            RecordError, match=r"column 'x' of table 't': it is NOT NULL, the BIGINT is null; because"
        ) as raised,
    ):
        fit("t", rows, [pa.field("x", LONG, nullable=False)], refused)

    assert (raised.value.topic, raised.value.partition, raised.value.offset) == ("orders", 3, 1)
    assert refused.file is None


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([0.5], DOUBLE), LONG),
        (pa.array([0.1], DOUBLE), FLOAT),
        (pa.array(["x"]), LONG),
        (pa.array([0], LONG).cast(pa.timestamp("us")), INSTANT),
        (pa.array([[2**40]], pa.list_(LONG)), pa.list_(INT)),
        (pa.array([1], LONG), pa.string()),
        (pa.array(["1"]), LONG),
        (pa.array(["2026-11-03"]), pa.date32()),
        (pa.array([0.5], DOUBLE), FLOAT),
        (pa.array([0], LONG).cast(INSTANT), LONG),
        (pa.array([0], pa.duration("us")), LONG),
    ],
)
def test_a_column_of_another_kind_is_no_fault_of_a_record(
    staging: StagingDirectory, values: pa.Array, kind: pa.DataType
) -> None:
    with (
        RefusedRows(staging, are_kept=True) as refused,
        pytest.raises(TargetError, match=r"Column 'x' of table 't': a value of type .* does not fit into"),
    ):
        fit("t", batch(values), [pa.field("x", kind)], refused)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([float("nan"), None, 0.5], FLOAT), DOUBLE),
        (pa.array([], LONG), INT),
        (pa.array([None], pa.null()), LONG),
        (pa.array(["a"], pa.large_string()), pa.string()),
    ],
)
def test_exact_values_fit(staging: StagingDirectory, values: pa.Array, kind: pa.DataType) -> None:
    found, taken = kept(staging, batch(values), pa.field("x", kind))

    assert [str(value) for value in found] == [str(value) for value in values.to_pylist()]
    assert taken == []


def test_a_nested_field_may_have_the_name_of_a_path(staging: StagingDirectory) -> None:
    found = pa.struct([("..", pa.string()), ("[0]", pa.string())])
    needed = pa.struct([pa.field("..", pa.string(), nullable=False), pa.field("[0]", pa.string())])
    rows = batch(pa.array([{"..": "a", "[0]": "b"}, {"..": None, "[0]": "b"}], found))

    with RefusedRows(staging, are_kept=True) as refused:
        _, (values,) = fit("t", rows, [pa.field("x", needed)], refused)

    assert values.to_pylist() == [{"..": "a", "[0]": "b"}]
    structs = pa.RecordBatch.from_pylist([{"x": {"a": 1, ".a": 2, "[0]": 3}}])
    assert [values_at(structs, ("x", name)).to_pylist() for name in ("a", ".a", "[0]")] == [[1], [2], [3]]


def test_a_few_among_many_are_found_by_halves(staging: StagingDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    casts = list[int]()
    exact = fitting._exact

    def counted(values: pa.Array, kind: pa.DataType) -> pa.Array | None:
        casts.append(len(values))
        return exact(values, kind)

    monkeypatch.setattr(fitting, "_exact", counted)
    numbers = list(range(10_000))
    numbers[1234] = 2**40

    values, taken = kept(staging, batch(pa.array(numbers, LONG)), pa.field("x", INT))

    assert (len(values), len(taken)) == (9_999, 1)
    assert len(casts) < 40


def test_good_rows_are_cast_once(staging: StagingDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_unfit", _never)
    monkeypatch.setattr(RefusedRows, "take_out", _never)

    assert kept(staging, batch(pa.array([1, 2], LONG)), pa.field("x", INT)) == ([1, 2], [])
    assert list(_files(staging)) == []


def _never(*_: Any) -> Any:
    raise AssertionError("good rows are not looked at one by one")


def _files(staging: StagingDirectory) -> Iterator[Path]:
    yield from Path(staging.uri.removeprefix("file://")).iterdir()
