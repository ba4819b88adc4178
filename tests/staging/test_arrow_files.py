"""Arrow files that are proved before they are read."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import StagedFileError
from airflow_kafka_offsets.staging.arrow_files import SCHEMA, ArrowFileWriter, read_records, record_batches
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile
from tests.support.damage import DAMAGES, Damage

ROWS = [
    pa.RecordBatch.from_pydict({"name": [f"name-{number}" for number in range(first, first + 9)]}) for first in (0, 9)
]


@pytest.fixture(params=["local", "store"])
def staging(tmp_path: Path, request: pytest.FixtureRequest) -> StagingDirectory:
    directory = StagingDirectory(str(tmp_path))
    if request.param == "store":
        directory.filesystem = fs.SubTreeFileSystem("", directory.filesystem)
    assert directory.is_local == (request.param == "local")
    return directory


def written(staging: StagingDirectory, name: str = "part-1.arrow", rows: list[pa.RecordBatch] = ROWS) -> StagedFile:
    with ArrowFileWriter(staging, name, rows[0].schema) as writer:
        for batch in rows:
            writer.write(batch)
    return writer.file


def test_written_file_is_read(staging: StagingDirectory) -> None:
    assert list(record_batches(staging, written(staging))) == ROWS


def test_a_file_is_described_as_it_lies_there(staging: StagingDirectory, tmp_path: Path) -> None:
    raw = (tmp_path / written(staging).name).read_bytes()
    assert written(staging) == StagedFile("part-1.arrow", 18, len(raw), hashlib.sha256(raw).hexdigest())


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_never_opened_as_arrow(
    staging: StagingDirectory, tmp_path: Path, damage: Damage, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = written(staging), written(staging, "part-2.arrow", ROWS[::-1])
    assert file.bytes == other.bytes, "size alone would tell them apart"
    damage(tmp_path / file.name, tmp_path / other.name)
    monkeypatch.delattr(pa.ipc, "open_file")

    with pytest.raises(StagedFileError, match=r"Staged file .*/part-1\.arrow (has|was altered|cannot be read)"):
        list(record_batches(staging, file))


def test_file_that_is_not_arrow_is_refused(staging: StagingDirectory, tmp_path: Path) -> None:
    (tmp_path / "part-1.arrow").mkdir()
    with pytest.raises(StagedFileError, match=r"part-1\.arrow cannot be read: \w+Error"):
        list(record_batches(staging, StagedFile("part-1.arrow", 1, 1, "f00d")))


def test_recorded_file_that_is_not_arrow_is_refused(staging: StagingDirectory, tmp_path: Path) -> None:
    (tmp_path / "part-1.arrow").write_bytes(b"no Arrow")
    file = StagedFile("part-1.arrow", 1, 8, hashlib.sha256(b"no Arrow").hexdigest())
    with pytest.raises(StagedFileError, match=r"part-1\.arrow cannot be read: ArrowInvalid"):
        list(record_batches(staging, file))


def test_another_number_of_rows_is_refused(staging: StagingDirectory) -> None:
    with pytest.raises(StagedFileError, match="holds 18 rows, and its task reported 19"):
        list(record_batches(staging, replace(written(staging), rows=19)))


@pytest.mark.parametrize("bounds", [(-1_000_000, 3_000_000), (0, 2_000_000_000), (10, 0), (0, 11)])
@pytest.mark.parametrize("kind", [pa.binary(), pa.string()])
def test_an_offset_does_not_lead_out_of_its_file(
    staging: StagingDirectory, tmp_path: Path, bounds: tuple[int, int], kind: pa.DataType
) -> None:
    """Arrow would read what else this process has in memory, or end it."""
    text = pa.array([None, b"0123456789", None], pa.binary())
    records = [text if field.name == "value" else pa.nulls(3, field.type) for field in SCHEMA]
    batches = {
        "part-1.arrow": pa.record_batch({"text": text.cast(kind)}),
        "records-0.arrow": pa.RecordBatch.from_arrays(records, schema=SCHEMA),
    }
    for name, batch in batches.items():
        with pa.ipc.new_file(tmp_path / name, batch.schema) as writer:
            writer.write_batch(batch)
        content = (tmp_path / name).read_bytes()
        place = content.rindex(struct.pack("<4i", 0, 0, 10, 10))
        content = content[:place] + struct.pack("<4i", 0, *bounds, 10) + content[place + 16 :]
        (tmp_path / name).write_bytes(content)

    forged = (tmp_path / "part-1.arrow").read_bytes()
    file = StagedFile("part-1.arrow", 3, len(forged), hashlib.sha256(forged).hexdigest())

    with pytest.raises(StagedFileError, match=r"part-1\.arrow cannot be read: ArrowInvalid"):
        list(record_batches(staging, file))
    with pytest.raises(StagedFileError, match=r"records-0\.arrow cannot be read: ArrowInvalid"):
        list(read_records(staging, Slice(0, "orders", 0, 0, 3)))
