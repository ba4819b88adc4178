"""The staging directory on a real HDFS, without Hadoop's own library."""

from __future__ import annotations

import importlib.util
import pickle
import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

from airflow_kafka_offsets.core import libraries
from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import ConfigurationError, StagedFileError
from airflow_kafka_offsets.loading.staging_area import check_staging
from airflow_kafka_offsets.spark.progress import SliceNotes, write_progress, write_slice
from airflow_kafka_offsets.staging.arrow_files import (
    SCHEMA,
    ArrowFileWriter,
    read_records,
    record_batches,
    write_records,
)
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import SliceRead, StagedFile
from devstack.yarn import HadoopCluster

ROWS = pa.RecordBatch.from_pydict({"name": [f"name-{number}" for number in range(100_000)]})


def test_what_is_missing_for_hdfs_is_said_before_anything_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(libraries, "find_spec", lambda name: None if name == "hdfs_native" else find(name))
    with pytest.raises(ConfigurationError) as raised:
        check_staging("hdfs://namenode:8020/staging")
    said = str(raised.value)
    assert said.startswith(
        "hdfs://namenode:8020/staging needs hdfs-native, or Hadoop's libhdfs with JAVA_HOME, HADOOP_HOME"
    )
    assert "install the extra 'airflow-kafka-offsets[hdfs]' on the worker, and the same where Spark's executors" in said


def test_a_wrong_option_of_another_store_is_not_taken_for_a_missing_library() -> None:
    with pytest.raises(pa.ArrowInvalid):
        StagingDirectory("abfs://lake@account.dfs.core.windows.net/staging?user=loader")


def test_an_option_that_would_be_ignored_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"takes no options of a URI\..*HADOOP_USER_NAME"):
        StagingDirectory("hdfs://namenode/staging?user=loader")


# Everything below starts HDFS.
@pytest.fixture(scope="module")
def hadoop() -> Iterator[HadoopCluster]:
    with HadoopCluster(nodes=0) as cluster:
        yield cluster


@pytest.fixture
def staging(hadoop: HadoopCluster, request: pytest.FixtureRequest) -> StagingDirectory:
    directory = StagingDirectory(f"{hadoop.hdfs}/staging").child(request.node.name)
    directory.create()
    return directory


def left(staging: StagingDirectory) -> list[str]:
    return [info.base_name for info in staging.filesystem.get_file_info(pa.fs.FileSelector(staging.path))]


@pytest.mark.long
@pytest.mark.server
class TestHdfs:
    def test_text_is_written_whole_and_leaves_nothing_beside_it(self, staging: StagingDirectory) -> None:
        before = time.time_ns()
        text = '{"größe": "\\u0000 \n"}'
        staging.write_text("note-größe.json", text)
        assert staging.read_text("note-größe.json") == text
        assert left(staging) == ["note-größe.json"]
        ((name, written),) = staging.find().items()
        assert name == "note-größe.json"
        assert before - 10**9 < written < time.time_ns() + 10**9
        assert staging.holds(name)
        assert staging.holds(name, size=len(text.encode()))
        assert not staging.holds(name, size=1)
        assert not staging.holds("other.json")
        with pytest.raises(FileNotFoundError):
            staging.read_text("other.json")

    def test_a_writer_that_is_killed_leaves_no_note(self, staging: StagingDirectory) -> None:
        unfinished = staging.filesystem.open_output_stream(staging.file(".note-1.json.ab"))
        unfinished.write(b'{"half": ')
        assert staging.find() == {}
        assert not staging.holds("note-1.json")
        staging.remove()
        assert not staging.holds(".note-1.json.ab")

    def test_notes_are_written_again_and_found_by_prefix(self, staging: StagingDirectory) -> None:
        notes = SliceNotes(staging)
        for records in (1000, 2):
            write_progress(staging, SliceRead(0, "orders", 0, 0, 10, records))
            assert notes.progress(frozenset({0}))[0].records == records
        for records in (5, 6):
            write_slice(staging, SliceRead(0, "orders", 0, 0, 10, records))
        assert SliceNotes(staging).find().finished.keys() == {0}
        assert len(staging.find("slice-")) == 2
        assert list(staging.child("gone").notes("slice-")) == []

    def test_a_file_that_was_altered_is_refused(self, staging: StagingDirectory) -> None:
        with ArrowFileWriter(staging, "part-1.arrow", ROWS.schema) as writer:
            writer.write(ROWS)
        assert list(record_batches(staging, writer.file)) == [ROWS]
        other = StagedFile("part-1.arrow", writer.file.rows, writer.file.bytes, "0" * 64)
        with pytest.raises(StagedFileError, match="was altered"):
            list(record_batches(staging, other))

    def test_records_are_read_by_whoever_gets_the_directory(self, staging: StagingDirectory) -> None:
        batch = pa.RecordBatch.from_pylist(
            [{"key": None, "value": b"v", "offset": 1, "timestamp": 0, "headers": None}], schema=SCHEMA
        )
        write_records(staging, 0, [batch])
        sent = pickle.loads(pickle.dumps(staging))
        assert list(read_records(sent, Slice(0, "orders", 0, 1, 2))) == [batch]

    def test_directories_are_removed_once_and_their_neighbours_stay(self, staging: StagingDirectory) -> None:
        for name in ("batch-1", "batch-10"):
            staging.child(name).create()
            staging.child(name).write_text("note.json", "{}")
        staging.child("batch-1").remove()
        staging.child("batch-1").remove()
        assert left(staging) == ["batch-10"]
