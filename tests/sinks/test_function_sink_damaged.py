"""Staged files that are damaged: the function of a `FunctionSink` cannot hide it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Connection

from airflow_kafka_offsets import FunctionSink, Staging
from airflow_kafka_offsets.exceptions import KafkaOffsetsError
from airflow_kafka_offsets.sinks.function_target import WrittenBatch
from tests.support import functions
from tests.support.damage import DamagingLauncher, flip
from tests.support.functions import written
from tests.support.loads import Loader

pytestmark = pytest.mark.server


def catches(conn: Connection, batches: Any, batch: WrittenBatch) -> int:
    with suppress(KafkaOffsetsError):
        functions.insert(conn, batches, batch)
    return 4


def wraps(conn: Connection, batches: Any, batch: WrittenBatch) -> int:
    try:
        functions.insert(conn, batches, batch)
    except KafkaOffsetsError as error:
        raise RuntimeError("something is wrong") from error
    return 4


def reads_nothing(conn: Connection, batches: Any, batch: WrittenBatch) -> int:
    return 4


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
@pytest.mark.parametrize("write", [catches, wraps, reads_nothing], ids=lambda function: function.__name__)
def test_the_batch_is_staged_again(
    callable_loader: Loader,
    four: str,
    tmp_path: Path,
    function: Callable[[Callable[..., Any]], FunctionSink],
    write: Callable[..., Any],
) -> None:
    callable_loader.launcher = launcher = DamagingLauncher("rows", flip)

    result = callable_loader(
        four, sink=function(write), staging=Staging(dir=str(tmp_path / "staging"), slice_offsets=2)
    )

    assert (result.rows, len(launcher.jobs)) == (4, 2)
    assert written(callable_loader) == ([] if write is reads_nothing else [0, 1, 2, 3])
