"""What the worker makes of the files that Spark left."""

from __future__ import annotations

import json
import pwd
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any, NoReturn

import pytest

from airflow_kafka_offsets.core.offsets import OffsetRange, TopicPartition
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    KafkaOffsetsError,
    RecordError,
    StagingError,
    TransformError,
)
from airflow_kafka_offsets.formats.json_format import Json
from airflow_kafka_offsets.formats.row_columns import row_columns
from airflow_kafka_offsets.ledger.batch_rows import Batch, Recipe
from airflow_kafka_offsets.ledger.positions import RangeRead
from airflow_kafka_offsets.loading.context import LoadContext
from airflow_kafka_offsets.loading.pipeline import Pipeline
from airflow_kafka_offsets.loading.stage import StagedBatch, find_staged, launch_application, make_job
from airflow_kafka_offsets.loading.staging_area import create_directory, remove_attempt, staging_root
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import MANIFEST, Manifest, SliceRead, StagedFile
from airflow_kafka_offsets.staging.rows import TargetColumns

ORDERS = TopicPartition("orders", 0)
RANGE = OffsetRange("orders", 0, 10, 30, 30)
PIPELINE = Pipeline(
    group_id="group", topics=("orders",), value_format=Json("id BIGINT"), sink=SqlTable("target"), slice_offsets=10
)
COLUMNS = row_columns(PIPELINE.value_format)
WANTED = PIPELINE.fingerprint(COLUMNS)


def batch(*ranges: OffsetRange, **fields: Any) -> Batch:
    return Batch(1, "group", "planned", ranges, **fields)


def read(start: int, end: int, records: int | None = 5, **fields: Any) -> SliceRead:
    return SliceRead(0, "orders", 0, start, end, records, **fields)


def job(planned: Batch, directory: StagingDirectory, pipeline: Pipeline = PIPELINE) -> StageJob:
    values: dict[str, Any] = dict.fromkeys(field.name for field in fields(LoadContext))
    values |= {"pipeline": pipeline, "kafka_config": {}, "columns": COLUMNS}
    values |= {"target": TargetColumns("target", None), "recipe": Recipe("target", None, WANTED)}
    return make_job(LoadContext(**values), planned, directory)


def launched(tmp_path: Path, planned: Batch, *reads: SliceRead) -> StagedBatch:
    """What a launcher left whose slices read this."""

    class Launcher:
        def check(self, staging_dir: str | None) -> None: ...

        def on_kill(self) -> None: ...

        def __call__(self, job: StageJob) -> None:
            directory.write_text(MANIFEST, Manifest(1, WANTED, (), reads).to_json())

    directory = StagingDirectory(str(tmp_path))
    return launch_application(Launcher(), job(planned, directory), planned, directory)


class TestWhatTheSlicesOfARangeShow:
    def test_it_is_added_up(self, tmp_path: Path) -> None:
        found = launched(
            tmp_path,
            batch(RANGE),
            read(20, 30, 4, first_timestamp_ms=500, last_timestamp_ms=2000, bytes=70, dead_letters=2),
            read(10, 20, 5, first_timestamp_ms=1000, last_timestamp_ms=1500, bytes=30, dead_letters=1),
        )
        first, last = (datetime.fromtimestamp(seconds, UTC) for seconds in (0.5, 2))
        assert found.reads == {ORDERS: RangeRead(9, first, last, bytes=100, dead_letters=3)}
        assert (found.records, found.dead_letters) == (9, 3)

    def test_nothing_is_known_of_slices_that_were_not_read(self, tmp_path: Path) -> None:
        found = launched(tmp_path, batch(RANGE), read(10, 20, bytes=30), read(20, 30, None))
        assert found.reads == {ORDERS: RangeRead(None, bytes=30)}


@pytest.mark.parametrize(
    "bounds",
    [
        [(10, 20)],
        [(10, 20), (20, 29)],
        [(10, 20), (21, 30)],
        [(10, 20), (19, 30)],
        [(11, 20), (20, 30)],
        [(10, 20), (20, 31)],
        [],
    ],
)
def test_slices_that_are_not_the_planned_range_are_refused(tmp_path: Path, bounds: list[tuple[int, int]]) -> None:
    with pytest.raises(StagingError, match=r"orders\[0\] 10\.\.30 was planned, other offsets were staged"):
        launched(tmp_path, batch(RANGE), *(read(start, end) for start, end in bounds))


class TestTheFingerprintOfATransform:
    """It changes with the code, and is found of whatever a transform may be."""

    SOURCE = """
        from functools import partial, wraps

        def plain(rows):
            return rows

        def add(rows, column):
            return rows

        def wrapping(function):
            @wraps(function)
            def wrapped(rows):
                return function(rows)
            return wrapped

        class Cleaner:
            def __call__(self, rows):
                return rows

        part = partial(add, column="a")
        parts = partial(partial(plain))
        wrapped = wrapping(plain)
        cleaner = Cleaner()
        method = cleaner.__call__
        built_in = id
    """

    @pytest.fixture
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
        file = tmp_path / "shop_of_this_test.py"
        file.write_text(dedent(self.SOURCE))
        monkeypatch.syspath_prepend(tmp_path)
        yield file
        sys.modules.pop(file.stem, None)

    @pytest.mark.parametrize("name", ["plain", "part", "parts", "wrapped", "Cleaner", "cleaner", "method", "built_in"])
    def test_it_changes_with_its_module(self, module: Path, name: str) -> None:
        pipeline = replace(PIPELINE, transform=f"{module.stem}.{name}")
        before = pipeline.fingerprint(COLUMNS)
        assert pipeline.fingerprint(COLUMNS) == before
        module.write_text(f"{module.read_text()}# changed\n")
        assert pipeline.fingerprint(COLUMNS) != before

    def test_it_changes_with_the_module_that_a_partial_takes_its_function_from(
        self, module: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other = ModuleType("other_of_this_test")
        monkeypatch.setitem(sys.modules, other.__name__, other)
        other.clean = partial(import_module(module.stem).add, column="b")  # type: ignore[attr-defined]
        pipeline = replace(PIPELINE, transform=f"{other.__name__}.clean")
        before = pipeline.fingerprint(COLUMNS)
        module.write_text(f"{module.read_text()}# changed\n")
        assert pipeline.fingerprint(COLUMNS) != before


class TestFilesOfAnEarlierTry:
    def found(self, tmp_path: Path, wanted: str = WANTED) -> StagedBatch | None:
        planned = replace(batch(RANGE), state="staged", staging_uri=str(tmp_path))
        reads = (read(10, 30, dead_letters=1, dead_letters_file="dead-0-f00d.arrow"),)
        StagingDirectory(str(tmp_path)).write_text(MANIFEST, Manifest(1, WANTED, (), reads).to_json())
        return find_staged(planned, wanted)

    def test_they_are_taken_where_they_are_complete(self, tmp_path: Path) -> None:
        (tmp_path / "dead-0-f00d.arrow").write_bytes(b"letters")
        found = self.found(tmp_path)
        assert found is not None
        assert found.dead_letters == 1

    def test_they_are_not_without_their_dead_letters(self, tmp_path: Path) -> None:
        assert self.found(tmp_path) is None

    def test_they_are_not_where_bad_records_are_treated_otherwise(self, tmp_path: Path) -> None:
        (tmp_path / "dead-0-f00d.arrow").write_bytes(b"letters")
        other = replace(PIPELINE, on_bad_record="dead_letter").fingerprint(COLUMNS)
        assert self.found(tmp_path, other) is None


def test_a_job_says_what_to_do_with_bad_records(tmp_path: Path) -> None:
    directory = StagingDirectory(str(tmp_path))
    assert job(batch(RANGE), directory).on_bad_record == "fail"
    assert job(batch(RANGE), directory, replace(PIPELINE, on_bad_record="dead_letter")).on_bad_record == "dead_letter"


MANIFEST_TEXT = Manifest(1, WANTED, (), (read(10, 30),)).to_json()


class TestFilesOfAnEarlierTryThatCannotBeRead:
    """They are staged again, in the same attempt."""

    def refused(self, uri: str, caplog: pytest.LogCaptureFixture) -> str:
        """The warning, of which there is one."""
        planned = replace(batch(RANGE), state="staged", staging_uri=uri)
        assert find_staged(planned, WANTED) is None
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert f"batch 1 in {uri} cannot be read, and it is staged again" in record.getMessage()
        return record.getMessage()

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (MANIFEST_TEXT[: len(MANIFEST_TEXT) // 2], "JSONDecodeError"),
            ("", "JSONDecodeError"),
            ("\udc80", "UnicodeDecodeError"),
            ("[]", "TypeError"),
            ("null", "TypeError"),
            ("{}", "KeyError: 'batch_id'"),
            (MANIFEST_TEXT.replace('"bytes"', '"byte_count"'), "unexpected keyword argument 'byte_count'"),
            (MANIFEST_TEXT.replace('"end": 30', '"end": 29'), "other offsets were staged"),
            (MANIFEST_TEXT.replace('"batch_id": 1', '"batch_id": 2'), "holds batch 2, not batch 1"),
            (
                Manifest(1, WANTED, (StagedFile("../part-1.arrow", 1, 1),), (read(10, 30),)).to_json(),
                "is not the name of a file",
            ),
        ],
    )
    def test_a_manifest_of_another_kind(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, reason: str
    ) -> None:
        (tmp_path / MANIFEST).write_bytes(text.encode(errors="surrogateescape"))
        assert reason in self.refused(str(tmp_path), caplog)

    @pytest.mark.parametrize("uri", ["nosuch://bucket/batch-1", "relative/path", "file://host/batch-1", "s3://"])
    def test_a_location_that_cannot_be_opened(self, caplog: pytest.LogCaptureFixture, uri: str) -> None:
        self.refused(uri, caplog)

    def test_a_location_that_does_not_answer(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unanswered(self: StagingDirectory, name: str) -> NoReturn:
            raise OSError("HDFS list directory failed")

        monkeypatch.setattr(StagingDirectory, "read_text", unanswered)
        assert "OSError: HDFS list directory failed" in self.refused(str(tmp_path), caplog)


class TestWhatIsDeleted:
    @pytest.mark.parametrize("spelled", ["{}", "{}/", "file://{}"])
    def test_the_directory_of_an_attempt(self, tmp_path: Path, spelled: str) -> None:
        staging_dir = spelled.format(tmp_path)
        directory = create_directory(batch(RANGE), staging_dir)
        directory.write_text(MANIFEST, "{}")
        remove_attempt(1, directory.uri, staging_dir)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "named",
        [
            "{root}",
            "{root}/",
            "{root}/..",
            "{root}/precious",
            "{root}/batch-1-0f",
            "{root}/batch-2-" + "0f" * 16,
            "{root}/precious/batch-1-" + "0f" * 16,
            "{root}/../other/batch-1-" + "0f" * 16,
            "{other}/batch-1-" + "0f" * 16,
            "{root}/batch-1-" + "0f" * 16 + "/",
            "{root}/batch-1-" + "0f" * 16 + "\n",
            "s3://bucket/batch-1-" + "0f" * 16,
            "nosuch://bucket/batch-1-" + "0f" * 16,
        ],
    )
    def test_nothing_else(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, named: str) -> None:
        root, other = tmp_path / "root", tmp_path / "other"
        for parent in (root, root / "precious", other):
            for name in ("batch-1-" + "0f" * 16, "batch-2-" + "0f" * 16, "batch-1-0f"):
                (parent / name).mkdir(parents=True)
        before = sorted(tmp_path.rglob("*"))
        uri = named.format(root=root, other=other)
        remove_attempt(1, uri, str(root))
        assert sorted(tmp_path.rglob("*")) == before
        (message,) = caplog.messages
        assert f"The staging directory {uri} of batch 1 is left as it is" in message


class TestWhatTheApplicationReports:
    def reported(self, tmp_path: Path, **note: Any) -> KafkaOffsetsError:
        """The error of a launch whose application failed, and left a note."""
        directory = StagingDirectory(str(tmp_path))

        class Launcher:
            def check(self, staging_dir: str | None) -> None: ...

            def on_kill(self) -> None: ...

            def __call__(self, job: StageJob) -> None:
                directory.write_text("failure-1.json", json.dumps(note))
                raise OSError("exit status 1")

        planned = batch(RANGE)
        with pytest.raises(KafkaOffsetsError) as raised:
            launch_application(Launcher(), job(planned, directory), planned, directory)
        return raised.value

    def test_an_error_of_this_package_is_raised_as_it_is(self, tmp_path: Path) -> None:
        error = self.reported(tmp_path, error="TransformError", message="it returned None")
        assert (type(error), str(error)) == (TransformError, "it returned None")

    def test_a_record_is_named(self, tmp_path: Path) -> None:
        error = self.reported(
            tmp_path, error="RecordError", message="…", reason="no JSON", topic="orders", partition=0, offset=12
        )
        assert isinstance(error, RecordError)
        assert (error.topic, error.partition, error.offset) == ("orders", 0, 12)

    @pytest.mark.parametrize(
        "name", ["annotations", "Callable", "FromTheFutureError", "VerificationError", "KafkaOffsetsError"]
    )
    def test_any_other_name_is_a_staging_error(self, tmp_path: Path, name: str) -> None:
        error = self.reported(tmp_path, error=name, message="something")
        assert (type(error), str(error)) == (StagingError, f"{name}: something")


class TestTheDirectoryOfAUser:
    @pytest.fixture(autouse=True)
    def of_this_test(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def test_a_user_without_a_name_has_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def unnamed(uid: int) -> NoReturn:
            raise KeyError(f"getpwuid(): uid not found: {uid}")

        for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(pwd, "getpwuid", unnamed)
        root = Path(staging_root(None).path)
        assert root.parent == tmp_path
        assert stat.S_IMODE(root.stat().st_mode) == 0o700

    def test_one_that_others_may_write_to_is_refused(self) -> None:
        Path(staging_root(None).path).chmod(0o777)
        with pytest.raises(ConfigurationError, match="belongs to another user, or others may write to it"):
            staging_root(None)
