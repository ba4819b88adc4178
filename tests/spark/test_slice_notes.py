"""The notes that readers of slices leave, and how often they are opened."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import StagingError
from airflow_kafka_offsets.formats.read_schemas import ReadSchema
from airflow_kafka_offsets.spark import progress
from airflow_kafka_offsets.spark.driver import write_manifest
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.progress import Display, Progress, SliceNotes, write_progress, write_slice
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import SliceRead
from tests.spark.test_package import JOB

MANY = 200


def read(index: int, records: int = 10) -> SliceRead:
    return SliceRead(index, "orders", 0, index * 10, index * 10 + 10, records)


def job(staging: StagingDirectory) -> StageJob:
    slices = tuple(Slice(index, "orders", 0, index * 10, index * 10 + 10) for index in range(MANY))
    return replace(JOB, tasks=(slices,), staging_uri=staging.uri)


@pytest.fixture
def staging(tmp_path: Path) -> StagingDirectory:
    return StagingDirectory(str(tmp_path))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often files were opened, by name."""
    counts: Counter[str] = Counter()
    read_text = StagingDirectory.read_text

    def counted(self: StagingDirectory, name: str) -> str:
        counts[name] += 1
        return read_text(self, name)

    monkeypatch.setattr(StagingDirectory, "read_text", counted)
    return counts


def test_a_batch_is_closed_with_one_open_for_each_slice(staging: StagingDirectory, opened: Counter[str]) -> None:
    for index in range(MANY):
        write_progress(staging, read(index, 0))
        write_slice(staging, read(index))
    manifest = write_manifest(job(staging), staging, ())
    assert manifest.reads == tuple(read(index) for index in range(MANY))
    assert opened.total() == MANY


def test_schemas_of_many_slices_are_kept_once_and_have_a_limit(
    staging: StagingDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_MOST_CHARACTERS", 2_500)
    # The last one has twelve characters each in JSON.
    contents = ("0" * 1_000, "1" * 1_000, "\N{GRINNING FACE}" * 100)
    schemas = tuple(ReadSchema("value", number, "json_schema", text) for number, text in enumerate(contents))
    for index in range(MANY):
        write_slice(staging, replace(read(index), schemas=schemas[:2]))
    notes = SliceNotes(staging)
    found = {id(schema): schema for each in notes.find().finished.values() for schema in each.schemas}
    assert list(found.values()) == list(schemas[:2])

    write_slice(staging, replace(read(MANY), schemas=schemas))
    with pytest.raises(StagingError, match=r"have more than 2,500 characters together\. Abandon the batch"):
        notes.find()


def test_progress_opens_what_is_finished_once_and_what_is_being_read_each_time(
    staging: StagingDirectory, opened: Counter[str], capsys: pytest.CaptureFixture[str]
) -> None:
    notes = SliceNotes(staging)
    progress = Progress(job(staging), notes, Display())
    for index in range(MANY):
        write_progress(staging, read(index, 0))
        if index != 7:
            write_slice(staging, read(index))
    for records in (1, 2, 3):
        write_progress(staging, read(7, records))
        progress.report()
        assert f"read {(MANY - 1) * 10 + records:,} records of 2,000 planned" in capsys.readouterr().out
    write_slice(staging, read(7))
    assert len(write_manifest(job(staging), staging, (), notes).reads) == MANY
    assert opened.pop("progress-7.json") == 3
    assert set(opened.values()) == {1}
    assert opened.total() == MANY


def test_the_later_evaluation_of_a_slice_counts(staging: StagingDirectory, tmp_path: Path) -> None:
    notes = SliceNotes(staging)
    for age, records in ((30, 9), (10, 10), (20, 8)):
        before = set(tmp_path.iterdir())
        write_slice(staging, read(0, records))
        (written,) = set(tmp_path.iterdir()) - before
        os.utime(written, (1_000_000 - age,) * 2)
        found = notes.find()
    assert found.started == {0}
    assert found.finished == {0: read(0, 10)}


def test_a_slice_is_begun_also_where_its_note_is_half_written(staging: StagingDirectory, tmp_path: Path) -> None:
    (tmp_path / "progress-3.json").write_text('{"index": ')
    (tmp_path / ".progress-4.json.f00d").write_text('{"index": ')
    found = SliceNotes(staging).find()
    assert (found.started, found.finished) == (frozenset({3}), {})
