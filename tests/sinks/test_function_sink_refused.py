"""Records that the function of a `FunctionSink` refuses: dead letters, or the end of the load."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy.engine import Connection

from airflow_kafka_offsets import DeadLetters, FunctionSink
from airflow_kafka_offsets.exceptions import FunctionError, RecordError
from airflow_kafka_offsets.sinks.function_target import WrittenBatch
from airflow_kafka_offsets.transforms.arrow import ArrowTransform
from tests.support.clients import produce
from tests.support.functions import sink, written
from tests.support.loads import Loader, rows

pytestmark = pytest.mark.server

AsSink = Callable[[Callable[..., Any]], FunctionSink]


def dead_letters(loader: Loader) -> dict[int, str]:
    return dict(rows(loader.engine, "SELECT offset_value, error FROM dead_letters ORDER BY offset_value"))


def bad(*offsets: int) -> list[bytes]:
    return [json.dumps({"id": i, "name": f"{'bad' if i in offsets else 'good'}-{i}"}).encode() for i in range(6)]


def test_refused_records_become_dead_letters(callable_loader: Loader, four: str) -> None:
    produce(callable_loader.kafka, four, bad(1, 4))

    assert callable_loader(four, sink=sink("picky"), on_bad_record=DeadLetters()).rows == 8

    assert written(callable_loader) == [0, 1, 2, 3, 4, 6, 7, 9]
    assert rows(callable_loader.engine, "SELECT rows FROM totals") == [(8,)]
    assert dead_letters(callable_loader) == {5: "a bad name", 8: "a bad name"}


def test_a_refused_record_fails_the_load_otherwise(callable_loader: Loader, four: str) -> None:
    produce(callable_loader.kafka, four, bad(1))

    with pytest.raises(RecordError, match="a bad name") as raised:
        callable_loader(four, sink=sink("picky"))

    assert raised.value.offset == 5
    assert written(callable_loader) == []


def test_several_are_refused_at_once(callable_loader: Loader, four: str, function: AsSink) -> None:
    calls: list[int] = []

    def write(conn: Connection, batches: Any, batch: WrittenBatch) -> None:
        given = [row for some in batches for row in some.to_pylist()]
        calls.append(len(given))
        refused = [RecordError("odd", four, 0, row["id"]) for row in given if row["id"] % 2]
        if refused:
            raise ExceptionGroup("odd ids", refused)

    assert callable_loader(four, sink=function(write), on_bad_record=DeadLetters()).rows == 2
    assert calls == [4, 2]
    assert dead_letters(callable_loader) == {1: "odd", 3: "odd"}


def test_a_record_that_is_not_there_cannot_be_refused(callable_loader: Loader, four: str, function: AsSink) -> None:
    def write(conn: Connection, batches: Any, batch: WrittenBatch) -> None:
        raise RecordError("it is wrong", four, 0, 1)

    # The second time, it has no row any more.
    with pytest.raises(FunctionError, match=r"refuses topic .* offset 1, which is the record of no given row"):
        callable_loader(four, sink=function(write), on_bad_record=DeadLetters())
    assert dead_letters(callable_loader) == {}


def twice(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.concat_batches([rows, rows])


def test_refused_record_removes_all_its_rows(callable_loader: Loader, four: str) -> None:
    produce(callable_loader.kafka, four, bad(0)[:1])

    callable_loader(
        four, sink=sink("picky"), on_bad_record=DeadLetters(), transform=ArrowTransform(f"{__name__}.twice")
    )

    assert written(callable_loader) == [0, 0, 1, 1, 2, 2, 3, 3]
