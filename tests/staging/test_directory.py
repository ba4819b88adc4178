"""The staging directory of an attempt."""

import json
import os
import stat
from pathlib import Path
from typing import Any, NoReturn

import pytest
from pyarrow import fs

from airflow_kafka_offsets.spark.progress import SliceNotes, write_progress, write_slice
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import SliceRead


@pytest.fixture
def staging(tmp_path: Path) -> StagingDirectory:
    directory = StagingDirectory(str(tmp_path / "batch-1"))
    directory.create()
    return directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


class TestCreate:
    def test_only_the_owner_can_enter(self, tmp_path: Path) -> None:
        before = os.umask(0)
        try:
            StagingDirectory(str(tmp_path / "batch")).create()
        finally:
            os.umask(before)
        assert mode(tmp_path / "batch") == 0o700

    def test_missing_parents_are_made(self, tmp_path: Path) -> None:
        StagingDirectory(str(tmp_path / "a" / "b" / "batch")).create()
        assert (tmp_path / "a" / "b" / "batch").is_dir()

    def test_a_directory_that_somebody_made_before_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "batch").mkdir()
        with pytest.raises(FileExistsError):
            StagingDirectory(str(tmp_path / "batch")).create()

    def test_a_link_that_somebody_left_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "batch").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(FileExistsError):
            StagingDirectory(str(tmp_path / "batch")).create()

    @pytest.mark.parametrize("name", ["with space", "per%20cent", "größe", "semi;colon#?", "quote'\""])
    def test_a_path_may_hold_anything(self, tmp_path: Path, name: str) -> None:
        directory = StagingDirectory(str(tmp_path / name))
        directory.create()
        directory.write_text("note.json", "{}")
        assert (tmp_path / name / "note.json").read_text() == "{}"


class TestWhere:
    def test_a_file_uri_is_a_local_directory(self, tmp_path: Path) -> None:
        directory = StagingDirectory(f"file://{tmp_path}/batch")
        directory.create()
        assert directory.is_local
        assert mode(tmp_path / "batch") == 0o700

    def test_a_trailing_slash_changes_nothing(self, tmp_path: Path) -> None:
        assert StagingDirectory(f"{tmp_path}/batch/").file("x") == str(tmp_path / "batch" / "x")

    def test_the_uri_is_kept_as_it_was_given(self, tmp_path: Path) -> None:
        assert StagingDirectory(f"file://{tmp_path}/batch/").uri == f"file://{tmp_path}/batch/"

    @pytest.mark.parametrize(
        ("uri", "file_system", "options"),
        [
            (
                "gs://anonymous@lake/staging?scheme=http&endpoint_override=127.0.0.1:1",
                fs.GcsFileSystem,
                {"anonymous": True, "scheme": "http", "endpoint_override": "127.0.0.1:1"},
            ),
            (
                "abfss://lake@account.dfs.core.windows.net/staging",
                fs.AzureFileSystem,
                {"account_name": "account", "dfs_storage_scheme": "https"},
            ),
            (
                "abfs://lake@account.dfs.core.windows.net/staging?enable_tls=false",
                fs.AzureFileSystem,
                {"account_name": "account", "dfs_storage_scheme": "http"},
            ),
        ],
    )
    def test_a_uri_names_the_store_and_its_options_also_of_directories_in_it(
        self, uri: str, file_system: type[fs.FileSystem], options: dict[str, Any]
    ) -> None:
        directory = StagingDirectory(uri).child("batch-1")
        _, (found,) = directory.filesystem.__reduce__()

        assert isinstance(directory.filesystem, file_system)
        assert found.items() >= options.items()
        assert directory.file("part-1.arrow") == "lake/staging/batch-1/part-1.arrow"


class TestNames:
    @pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", "..\\x", "x/"])
    def test_a_name_that_leads_out_is_refused(self, staging: StagingDirectory, name: str) -> None:
        with pytest.raises(ValueError, match="is not the name of a file in the staging directory"):
            staging.file(name)

    @pytest.mark.parametrize("name", ["../x.json", "a/b.json"])
    def test_invalid_name_is_never_opened(self, staging: StagingDirectory, tmp_path: Path, name: str) -> None:
        (tmp_path / "x.json").write_text("{}")
        with pytest.raises(ValueError, match="is not the name"):
            staging.read_text(name)
        with pytest.raises(ValueError, match="is not the name"):
            staging.holds(name)
        with pytest.raises(ValueError, match="is not the name"):
            staging.write_text(name, "changed")
        assert (tmp_path / "x.json").read_text() == "{}"

    def test_a_file_is_in_the_directory(self, staging: StagingDirectory, tmp_path: Path) -> None:
        assert staging.file("part-1.arrow") == str(tmp_path / "batch-1" / "part-1.arrow")


class TestText:
    def test_written_text_is_read(self, staging: StagingDirectory) -> None:
        staging.write_text("manifest.json", '{"größe": "\\u0000 \n"}')
        assert staging.read_text("manifest.json") == '{"größe": "\\u0000 \n"}'

    def test_a_second_write_replaces_the_first(self, staging: StagingDirectory) -> None:
        staging.write_text("note.json", "a long first version")
        staging.write_text("note.json", "second")
        assert staging.read_text("note.json") == "second"

    def test_the_new_text_is_whole_before_it_takes_the_place_of_the_old(
        self, staging: StagingDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        staging.write_text("note.json", "old")
        seen: list[tuple[str, str]] = []
        replace = os.replace

        def observed(source: str, target: str) -> None:
            seen.append((Path(source).read_text(), staging.read_text("note.json")))
            replace(source, target)

        monkeypatch.setattr(os, "replace", observed)
        staging.write_text("note.json", "new")
        assert seen == [("new", "old")]
        assert staging.read_text("note.json") == "new"

    def test_a_write_that_dies_leaves_the_old_text_and_no_new_note(
        self, staging: StagingDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def killed(source: str, target: str) -> None:
            raise KeyboardInterrupt

        staging.write_text("note-1.json", '{"state": "old"}')
        monkeypatch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            staging.write_text("note-1.json", '{"state": "new"}')
        with pytest.raises(KeyboardInterrupt):
            staging.write_text("note-2.json", "{}")
        assert list(staging.notes("note-")) == [{"state": "old"}]
        assert not staging.holds("note-2.json")

    def test_a_write_leaves_nothing_beside_its_file(self, staging: StagingDirectory, tmp_path: Path) -> None:
        staging.write_text("note.json", "{}")
        assert names_in(tmp_path / "batch-1") == ["note.json"]

    def test_a_missing_file_is_not_found(self, staging: StagingDirectory) -> None:
        assert not staging.holds("manifest.json")
        with pytest.raises(FileNotFoundError):
            staging.read_text("manifest.json")

    def test_a_file_that_is_there_exists_and_a_directory_is_no_file(
        self, staging: StagingDirectory, tmp_path: Path
    ) -> None:
        staging.write_text("note.json", "{}")
        (tmp_path / "batch-1" / "inner").mkdir()
        assert staging.holds("note.json")
        assert not staging.holds("inner")


class TestNotes:
    def test_notes_are_the_json_files_with_a_prefix_by_name(self, staging: StagingDirectory) -> None:
        for name in ("slice-2", "slice-1", "progress-1", "slice-10"):
            staging.write_text(f"{name}.json", json.dumps({"name": name}))
        staging.write_text("slice-3.txt", "not JSON")
        assert [note["name"] for note in staging.notes("slice-")] == ["slice-1", "slice-10", "slice-2"]

    def test_a_directory_that_is_gone_has_none(self, tmp_path: Path) -> None:
        assert list(StagingDirectory(str(tmp_path / "gone")).notes("slice-")) == []


class TestRemove:
    def test_directory_is_removed_with_its_files(self, staging: StagingDirectory, tmp_path: Path) -> None:
        staging.write_text("note.json", "{}")
        (tmp_path / "batch-1" / "inner").mkdir()
        staging.remove()
        assert names_in(tmp_path) == []

    def test_removing_it_again_is_no_error(self, staging: StagingDirectory) -> None:
        staging.remove()
        staging.remove()

    def test_its_neighbours_stay(self, staging: StagingDirectory, tmp_path: Path) -> None:
        (tmp_path / "batch-10").mkdir()
        staging.remove()
        assert names_in(tmp_path) == ["batch-10"]


class HdfsLike:
    """A file system on which a file is seen while it is written, and on which no file is moved over another."""

    type_name = "hdfs"

    def __init__(self) -> None:
        self._local = fs.LocalFileSystem()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._local, name)

    def move(self, source: str, target: str) -> None:
        if self._local.get_file_info(target).type != fs.FileType.NotFound:
            raise OSError(f"HDFS rename failed: {target} exists")
        self._local.move(source, target)


class TestHdfs:
    @pytest.fixture
    def hdfs(self, staging: StagingDirectory) -> StagingDirectory:
        staging.filesystem = HdfsLike()
        return staging

    def test_a_writer_that_is_killed_leaves_no_note(
        self, hdfs: StagingDirectory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        written: list[str] = []

        def killed_half_way(path: str) -> NoReturn:
            Path(path).write_text('{"half": ')
            written.append(path)
            raise KeyboardInterrupt

        monkeypatch.setattr(hdfs.filesystem, "open_output_stream", killed_half_way, raising=False)
        with pytest.raises(KeyboardInterrupt):
            hdfs.write_text("failure-1.json", '{"half": 0.5}')
        assert len(written) == 1
        assert list(hdfs.notes("failure-")) == []
        assert not hdfs.holds("failure-1.json")

    def test_a_note_is_written_whole_and_leaves_nothing_beside_it(self, hdfs: StagingDirectory, tmp_path: Path) -> None:
        hdfs.write_text("manifest.json", '{"batch_id": 1}')
        assert hdfs.read_text("manifest.json") == '{"batch_id": 1}'
        assert names_in(tmp_path / "batch-1") == ["manifest.json"]

    def test_progress_is_written_again_and_again(self, hdfs: StagingDirectory) -> None:
        notes = SliceNotes(hdfs)
        for records in (1000, 2):
            write_progress(hdfs, SliceRead(0, "orders", 0, 0, 10, records))
            assert notes.progress(frozenset({0}))[0].records == records

    def test_a_slice_may_be_read_twice(self, hdfs: StagingDirectory) -> None:
        for records in (5, 6):
            write_slice(hdfs, SliceRead(0, "orders", 0, 0, 10, records))
        assert SliceNotes(hdfs).find().finished.keys() == {0}


def test_an_object_store_gets_an_object_with_one_request(staging: StagingDirectory, tmp_path: Path) -> None:
    class Store(HdfsLike):
        type_name = "s3"

        def move(self, source: str, target: str) -> NoReturn:
            raise AssertionError("a move is a copy there")

    staging.filesystem = Store()
    staging.write_text("manifest.json", "{}")
    assert names_in(tmp_path / "batch-1") == ["manifest.json"]
