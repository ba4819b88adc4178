"""Records that end the process that decodes or transforms them, or never let it go on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import ConfigurationError, TransformError
from airflow_kafka_offsets.formats.columns import row_columns
from airflow_kafka_offsets.formats.record_format import Decoded
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.spark import isolation
from airflow_kafka_offsets.spark.decoding import CRASH, Decoding
from airflow_kafka_offsets.spark.isolation import decoding_of
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.transforms.arrow import ArrowTransform
from airflow_kafka_offsets.transforms.sql import Sql
from tests.spark import test_tasks
from tests.support.decoding import record_batch
from tests.support.fatal import Orders

WHY = {
    "segfault": "it ends the process by SIGSEGV",
    "exit": "it ends the process with exit status 3",
    "leave": "it raises SystemExit",
    "loop": "it takes more than 4 s",
    "allocate": "it takes more than 2,048 MiB",
    "recurse": "it raises RecursionError",
    "panic": "it raises PanicError",
    "refuse": "it raises ValueError",
}
# Without limits, the memory of this machine may hold what `allocate` asks for.
HARMLESS_HERE = [name for name in WHY if name not in ("segfault", "exit", "loop", "allocate")]


def job(tmp_path: Path, record_format: Any = None, **changes: Any) -> StageJob:
    record_format = record_format or Orders()
    defaults = {"columns": row_columns(record_format), "has_dead_letters": True, "decode_timeout": 4.0}
    slice_ = Slice(0, "orders", 3, 1000, 1100)
    return test_tasks.job(tmp_path, slice_, **defaults | changes, record_format=record_format)


@contextmanager
def decoding(job: StageJob, *, is_isolated: bool = True) -> Iterator[Decoding]:
    with decoding_of(job, job.slices[0], job.batch_function(), is_isolated=is_isolated) as decode:
        yield decode


def batch(values: Sequence[bytes]) -> pa.RecordBatch:
    return record_batch(values)


def names(decoded: Decoded) -> list[str]:
    names: list[str] = decoded.rows.column("name").to_pylist() if decoded.rows.num_rows else []
    return names


def children() -> set[psutil.Process]:
    return set(psutil.Process().children())


@pytest.mark.parametrize("deed", WHY)
def test_a_fatal_record_is_bad_and_its_neighbours_are_decoded(tmp_path: Path, deed: str) -> None:
    with decoding(job(tmp_path)) as decode:
        decoded = decode(batch([b"a", b"bad", b"b", deed.encode(), b"c"]))
        assert names(decoded) == ["a", "b", "c"]
        origin = decoded.rows.column("_kafka_offset").to_pylist()
        assert origin == [1000, 1004, 1008]
        ordinary, crash = decoded.bad
        assert (ordinary.row, ordinary.part, ordinary.reason) == (1, "value", "it is bad")
        assert (crash.row, crash.part, crash.reason) == (3, CRASH, f"decoding {WHY[deed]}")
        # The next batch finds a child.
        assert names(decode(batch([b"d"]))) == ["d"]


@pytest.mark.parametrize("deed", HARMLESS_HERE)
def test_what_a_record_raises_here_is_found_in_a_child(tmp_path: Path, deed: str) -> None:
    with decoding(job(tmp_path), is_isolated=False) as decode:
        decoded = decode(batch([b"a", deed.encode(), b"b"]))
        assert names(decoded) == ["a", "b"]
        assert [(bad.row, bad.reason) for bad in decoded.bad] == [(1, f"decoding {WHY[deed]}")]


def test_a_batch_without_fatal_records_starts_no_child(tmp_path: Path) -> None:
    before = children()
    with decoding(job(tmp_path), is_isolated=False) as decode:
        assert names(decode(batch([b"a"]))) == ["a"]
        assert children() == before


def test_a_child_ends_with_its_slice(tmp_path: Path) -> None:
    before = children()
    with decoding(job(tmp_path)) as decode:
        decode(batch([b"a"]))
        (child,) = children() - before
    assert not child.is_running()


def test_a_child_that_is_busy_ends_after_its_parent(tmp_path: Path) -> None:
    if (parent := os.fork()) == 0:
        with decoding(job(tmp_path)) as decode:
            decode(batch([b"a"]))
            (child,) = children()
            (tmp_path / "child").write_text(str(child.pid))
            decode(batch([b"loop"]))
    while not (tmp_path / "child").is_file() or not (tmp_path / "child").read_text():
        os.sched_yield()
    child = psutil.Process(int((tmp_path / "child").read_text()))
    os.kill(parent, 9)
    os.waitpid(parent, 0)
    psutil.wait_procs([child], timeout=60)
    assert not child.is_running()


def test_all_records_may_be_fatal(tmp_path: Path) -> None:
    with decoding(job(tmp_path)) as decode:
        rows, bad = decode(batch([b"exit"] * 3))
    assert rows.num_rows == 0
    assert [record.row for record in bad] == [0, 1, 2]


def test_a_record_alone_has_the_whole_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is bad depends on no neighbour."""
    ask, limits = isolation._Child.ask, list[tuple[int, float]]()

    def asked(child: Any, seconds: float, records: pa.RecordBatch) -> Any:
        limits.append((records.num_rows, seconds))
        return ask(child, seconds, records)

    monkeypatch.setattr(isolation._Child, "ask", asked)
    with decoding(job(tmp_path)) as decode:
        assert names(decode(batch([b"a", b"exit", b"b", b"c"]))) == ["a", "b", "c"]

    assert limits == [(4, 4.0), (2, 2.0), (1, 4.0), (1, 4.0), (2, 2.0)]


def test_fatal_records_beyond_the_limit_are_not_looked_for(tmp_path: Path) -> None:
    with decoding(job(tmp_path, max_dead_letters=1)) as decode:
        assert [record.row for record in decode(batch([b"exit"] * 8)).bad] == [0, 1]
    with decoding(job(tmp_path, has_dead_letters=False)) as decode:
        assert [record.row for record in decode(batch([b"a", *[b"exit"] * 8])).bad] == [1]


@pytest.mark.parametrize("deed", ["segfault", "exit", "refuse"])
def test_a_transform_may_be_fatal(tmp_path: Path, deed: str) -> None:
    record_format = Json("id BIGINT, name STRING")
    transform = ArrowTransform("tests.support.fatal.obey").prepared(row_columns(record_format))
    records = batch([json.dumps({"id": place, "name": name}).encode() for place, name in enumerate(["a", deed, "b"])])
    with decoding(job(tmp_path, record_format, transform=transform)) as decode:
        if deed == "refuse":
            # The code of the user's, as ever.
            with pytest.raises(TransformError, match="raised ValueError: secret"):
                decode(records)
            return
        decoded = decode(records)
        assert names(decoded) == ["a", "b"]
        assert [(bad.row, bad.reason) for bad in decoded.bad] == [(1, f"decoding and transforming {WHY[deed]}")]


def test_a_child_has_room_for_a_select_over_many_columns(tmp_path: Path) -> None:
    record_format = Json(f"id BIGINT, {', '.join(f'c{number} DECIMAL(38,10)' for number in range(100))}")
    transform = Sql("SELECT * FROM records WHERE id >= 0").prepared(row_columns(record_format))
    with decoding(job(tmp_path, record_format, transform=transform)) as decode:
        decoded = decode(batch([b'{"id": 1, "c0": 1}', b'{"id": -1}', b'{"id": 2, "c99": 1}']))
    assert not decoded.bad
    assert decoded.rows.column("id").to_pylist() == [1, 2]


class Broken(Orders):
    """A format that cannot be used."""

    def decoder(self, columns: pa.Schema) -> Any:
        raise ConfigurationError("the format is broken")


class Missing(Orders):
    """A format whose library is missing."""

    def decoder(self, columns: pa.Schema) -> Any:
        def decode(records: pa.RecordBatch) -> Decoded:
            import no_such_module  # type: ignore[import-not-found]

            return Decoded(no_such_module)

        return decode


def test_errors_that_say_nothing_of_records_pass(tmp_path: Path) -> None:
    with decoding(job(tmp_path, Broken())) as decode, pytest.raises(ConfigurationError, match="the format is broken"):
        decode(batch([b"a", b"b"]))
    with (
        decoding(job(tmp_path, Missing()), is_isolated=False) as decode,
        pytest.raises(ModuleNotFoundError, match="no_such_module"),
    ):
        decode(batch([b"a", b"b"]))


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]\n",
        b"{}\n",
        b"[" * 100_000,
        b'{"bad": [], "schemas": []}\n',
        b'{"bad": [], "schemas": []}\nARROW1',
        b'{"bad": [{"row": 9, "reason": "x"}], "schemas": []}\n',
        b'{"bad": [{"row": "0", "reason": "x"}], "schemas": []}\n',
        b'{"bad": 7, "schemas": []}\n',
        b'{"ended": "x"}\n',
        b'{"ended": -999}\n',
        b'{"error": 7}\n',
    ],
)
def test_an_answer_that_is_none_makes_the_record_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """A record may do anything to the process that decodes it."""
    monkeypatch.setattr(isolation, "_Child", lambda *_: Sent(answer))
    with decoding(job(tmp_path)) as decode:
        rows, bad = decode(batch([b"1"]))
    assert (rows.num_rows, [(record.row, record.part) for record in bad]) == (0, [(0, CRASH)])


class Sent:
    """A child, and its connection, that has sent some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def recv_bytes(self) -> bytes:
        return self.data

    def ask(self, *_: object) -> tuple[dict[str, Any], memoryview]:
        sent: Any = self
        return isolation._receive(sent)

    def end(self) -> None:
        """Do nothing: there is no process."""
