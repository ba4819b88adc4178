"""Dead letters on their way through a file."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import LedgerError, StagingError
from airflow_kafka_offsets.formats.record_format import BadRecord
from airflow_kafka_offsets.staging.dead_letters import SCHEMA, DeadLetterFile, dead_letters, header_text, headers_of
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest, SliceRead

ONE = Slice(7, "orders", 3, 0, 100)
BEGUN = datetime(2024, 5, 6, 7, 8, 9, 123000, tzinfo=UTC)

Header = tuple[str, bytes | None]


@pytest.fixture
def staging(tmp_path: Path) -> StagingDirectory:
    return StagingDirectory(str(tmp_path))


def record_batch(*records: dict[str, Any]) -> pa.RecordBatch:
    """Records as `read` yields them, at the offsets 10, 12, 14 …"""
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("offset", pa.int64()),
            ("timestamp", SCHEMA.field("timestamp").type),
        ]
    ).append(pa.field("headers", kind))
    defaults: dict[str, Any] = {"key": None, "value": b"{", "timestamp": BEGUN, "headers": []}
    return pa.RecordBatch.from_pylist(
        [defaults | {"offset": 10 + 2 * i} | record for i, record in enumerate(records)], schema
    )


def manifest(*files: DeadLetterFile) -> Manifest:
    reads = [
        SliceRead(i, "orders", 3, ONE.start, ONE.end, 5, dead_letters=one.count, dead_letters_file=one.file)
        for i, one in enumerate(files)
    ]
    return Manifest(1, "f00d", (), tuple(reads))


def written(staging: StagingDirectory, *batches: tuple[pa.RecordBatch, list[BadRecord]]) -> DeadLetterFile:
    with DeadLetterFile(staging, ONE) as file:
        for batch, bad in batches:
            file.add(batch, bad)
    return file


def read_back(staging: StagingDirectory, *files: DeadLetterFile) -> list[dict[str, Any]]:
    batches = list(dead_letters(staging, manifest(*files)))
    assert all(batch.schema == SCHEMA for batch in batches)
    for batch in batches:
        batch.validate(full=True)
    return [dead_letter for batch in batches for dead_letter in batch.to_pylist()]


def read_changed(staging: StagingDirectory, file: DeadLetterFile, **changes: Any) -> None:
    """Read a file of which the manifest says something else."""
    (read,) = manifest(file).reads
    assert read.dead_letters_file is not None
    changed = replace(read, dead_letters_file=replace(read.dead_letters_file, **changes))
    list(dead_letters(staging, Manifest(1, "f00d", (), (changed,))))


def test_a_dead_letter_holds_the_record_and_why_it_is_one(staging: StagingDirectory) -> None:
    good = {"value": b"{}"}
    bad = {"key": b"\xff", "value": b"{\x00", "headers": [{"key": "a", "value": b"\xff"}, {"key": "a", "value": None}]}
    bare = {"value": None, "timestamp": None}
    file = written(staging, (record_batch(good, bad, good, bare), [BadRecord(1, "not JSON"), BadRecord(3, "no id")]))

    assert read_back(staging, file) == [
        {
            "topic": "orders",
            "partition": 3,
            "offset": 12,
            "key": b"\xff",
            "value": b"{\x00",
            "headers": '[["a", "/w=="], ["a", null]]',
            "timestamp": BEGUN,
            "error_class": "value",
            "error": "not JSON",
            "schema_id": None,
        },
        {
            "topic": "orders",
            "partition": 3,
            "offset": 16,
            "key": None,
            "value": None,
            "headers": None,
            "timestamp": None,
            "error_class": "value",
            "error": "no id",
            "schema_id": None,
        },
    ]


@given(headers=st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), min_size=1, max_size=4))
def test_headers_keep_their_order_their_duplicates_and_their_bytes(
    headers: list[Header], tmp_path_factory: pytest.TempPathFactory
) -> None:
    staging = StagingDirectory(str(tmp_path_factory.mktemp("staging")))
    record = {"headers": [{"key": key, "value": value} for key, value in headers]}
    (dead_letter,) = read_back(staging, written(staging, (record_batch(record), [BadRecord(0, "bad")])))
    assert [
        (key, None if value is None else base64.b64decode(value)) for key, value in json.loads(dead_letter["headers"])
    ] == headers


def test_a_reason_holds_no_character_that_databases_refuse(staging: StagingDirectory) -> None:
    (dead_letter,) = read_back(staging, written(staging, (record_batch({}), [BadRecord(0, "it holds 'a\x00b'")])))
    assert dead_letter["error"] == r"it holds 'a\0b'"


def test_no_dead_letters_make_no_file(staging: StagingDirectory, tmp_path: Path) -> None:
    file = written(staging, (record_batch({}, {}), []))
    assert (file.count, file.file) == (0, None)
    assert list(tmp_path.iterdir()) == []
    assert read_back(staging, file) == []


def test_dead_letters_of_many_chunks_and_slices_come_in_order(staging: StagingDirectory) -> None:
    chunk, later = (
        record_batch(*[{"timestamp": BEGUN + timedelta(seconds=i), "offset": first + i} for i in range(3)])
        for first in (10, 20)
    )
    first = written(staging, (chunk, [BadRecord(2, "a")]), (chunk, []), (later, [BadRecord(0, "b"), BadRecord(1, "c")]))
    second = written(staging, (chunk, [BadRecord(1, "d")]))
    assert first.count == 3
    assert [dead_letter["error"] for dead_letter in read_back(staging, first, written(staging), second)] == [
        "a",
        "b",
        "c",
        "d",
    ]


def test_every_evaluation_of_a_slice_writes_a_file_of_its_own(staging: StagingDirectory) -> None:
    bad = (record_batch({}), [BadRecord(0, "bad")])
    one, other = written(staging, bad), written(staging, bad)
    assert one.file is not None
    assert other.file is not None
    assert one.file.name != other.file.name
    assert one.file.name.startswith("dead-7-")
    assert len(read_back(staging, other)) == 1


@pytest.mark.parametrize("fails", [True, False])
def test_no_file_stays_open(staging: StagingDirectory, fails: bool) -> None:
    streams: list[Any] = []

    def opened(path: str) -> Any:
        streams.append(pa.OSFile(path, "wb"))
        return streams[-1]

    staging.filesystem = SimpleNamespace(open_output_stream=opened)
    with suppress(InterruptedError), DeadLetterFile(staging, ONE) as file:
        file.add(record_batch({}), [BadRecord(0, "bad")])
        if fails:
            raise InterruptedError
    assert [stream.closed for stream in streams] == [True]


def test_a_file_with_another_number_of_dead_letters_is_not_taken(staging: StagingDirectory) -> None:
    file = written(staging, (record_batch({}), [BadRecord(0, "bad")]))
    with pytest.raises(StagingError, match="holds 1 rows, and its task reported 2"):
        read_changed(staging, file, rows=2)


def test_a_name_that_leads_out_of_the_directory_is_refused(staging: StagingDirectory) -> None:
    file = written(staging, (record_batch({}), [BadRecord(0, "bad")]))
    assert file.file is not None
    with pytest.raises(ValueError, match="is not the name of a file in the staging directory"):
        read_changed(staging, file, name=f"../{file.file.name}")


def test_records_whose_headers_have_names_of_many_megabytes_are_kept_without_contents(
    staging: StagingDirectory,
) -> None:
    names = ["\x01" * 6_000_000, "x" * 6_000_000]
    records = record_batch(
        {"key": b"k", "headers": [{"key": name, "value": b""} for name in names]},
        {"key": b"l", "headers": [{"key": names[1], "value": b""}]},
    )

    large, usual = read_back(staging, written(staging, (records, [BadRecord(0, "no JSON"), BadRecord(1, "no JSON")])))

    assert (large["offset"], large["key"], large["value"], large["headers"]) == (10, None, None, None)
    assert large["error_class"] == "size"
    assert large["error"] == (
        "its contents are not kept, because the names of its headers have more than 10,000,000 bytes; no JSON"
    )
    assert (usual["key"], usual["value"], usual["error_class"], usual["error"]) == (b"l", b"{", "value", "no JSON")
    assert len(usual["headers"]) > 6_000_000


@pytest.mark.parametrize("item", ['["",null]', "[]", "1", "{}"])
def test_a_text_with_more_headers_than_a_record_has_is_not_parsed(item: str, monkeypatch: pytest.MonkeyPatch) -> None:
    most = [{"key": f'["{number}', "value": b"x"} for number in range(100_000)]
    assert len(headers_of(header_text(most), "orders", 0, 1)) == 100_000

    monkeypatch.setattr(json, "loads", None)
    with pytest.raises(LedgerError, match="its headers in the table dead_letters are not as a load writes them"):
        headers_of(f"[{','.join([item] * 1_000_002)}]", "orders", 0, 1)
