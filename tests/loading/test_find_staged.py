"""Which files of an earlier attempt are committed, and which are not."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from airflow_kafka_offsets import DeadLetters
from airflow_kafka_offsets.loading.stage import StagedBatch, find_staged
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import MANIFEST, Manifest, StagedFile
from tests.support.staged import COLUMNS, PIPELINE, RANGE, WANTED, batch, read

ATTEMPT = "batch-1-" + "0f" * 16


@pytest.fixture
def attempt(tmp_path: Path) -> Path:
    """The directory of an attempt, in the staging directory of the load."""
    directory = tmp_path / ATTEMPT
    directory.mkdir()
    return directory


class TestFilesOfAnEarlierTry:
    def found(self, attempt: Path, wanted: str = WANTED) -> StagedBatch | None:
        planned = replace(batch(RANGE), state="staged", staging_uri=str(attempt))
        dead_letters = StagedFile("dead-0-f00d.arrow", 1, 7, "d16e57")
        reads = (read(10, 30, dead_letters=1, dead_letters_file=dead_letters),)
        StagingDirectory(str(attempt)).write_text(MANIFEST, Manifest(1, WANTED, (), reads).to_json())
        return find_staged(planned, wanted, str(attempt.parent))

    def test_complete_staged_files_are_used_again(self, attempt: Path) -> None:
        (attempt / "dead-0-f00d.arrow").write_bytes(b"letters")
        found = self.found(attempt)
        assert found is not None
        assert found.dead_letters == 1

    def test_staged_files_without_their_dead_letters_are_not_used(self, attempt: Path) -> None:
        assert self.found(attempt) is None

    def test_staged_files_with_cut_dead_letters_are_not_used(
        self, attempt: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (attempt / "dead-0-f00d.arrow").write_bytes(b"letter")
        assert self.found(attempt) is None
        assert "File dead-0-f00d.arrow of batch 1 is missing or incomplete" in caplog.text

    def test_a_name_in_a_manifest_writes_no_line_of_the_log(
        self, attempt: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        files = (StagedFile("part\x1b[2J\nCommitted.arrow", 1, 7, "d16e57"),)
        StagingDirectory(str(attempt)).write_text(MANIFEST, Manifest(1, WANTED, files, (read(10, 30),)).to_json())
        planned = replace(batch(RANGE), state="staged", staging_uri=str(attempt))
        assert find_staged(planned, WANTED, str(attempt.parent)) is None
        assert r"part\x1b[2J\nCommitted.arrow" in caplog.text

    def test_staged_files_of_another_on_bad_record_are_not_used(self, attempt: Path) -> None:
        (attempt / "dead-0-f00d.arrow").write_bytes(b"letters")
        other = replace(PIPELINE, on_bad_record=DeadLetters()).fingerprint(COLUMNS)
        assert self.found(attempt, other) is None


def manifest(batch_id: int = 1, end: int = 30, files: tuple[StagedFile, ...] = ()) -> str:
    return Manifest(batch_id, WANTED, files, (read(10, end),)).to_json()


def of_another_version() -> str:
    """A manifest that its version of the package wrote with care."""
    plain = json.loads(manifest())
    del plain["sha256"]
    plain["reads"][0]["byte_count"] = plain["reads"][0].pop("bytes")
    return json.dumps({"sha256": hashlib.sha256(json.dumps(plain).encode()).hexdigest()} | plain)


def without_checksum() -> str:
    plain = json.loads(manifest())
    del plain["sha256"]
    return json.dumps(plain)


class TestFilesOfAnEarlierTryThatCannotBeRead:
    """They are staged again, in the same attempt."""

    def refused(self, attempt: Path, caplog: pytest.LogCaptureFixture) -> str:
        """The warning, of which there is one."""
        planned = replace(batch(RANGE), state="staged", staging_uri=str(attempt))
        assert find_staged(planned, WANTED, str(attempt.parent)) is None
        (record,) = caplog.records
        assert record.levelname == "WARNING"
        assert f"batch 1 in {attempt} cannot be read, and it is staged again" in record.getMessage()
        return record.getMessage()

    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (manifest()[: len(manifest()) // 2], "JSONDecodeError"),
            ("", "JSONDecodeError"),
            ("\udc80", "UnicodeDecodeError"),
            ("[]", "TypeError"),
            ("[" * 100_000, "RecursionError"),
            ("null", "TypeError"),
            ("{}", "KeyError: 'sha256'"),
            (without_checksum(), "KeyError: 'sha256'"),
            (of_another_version(), "unexpected keyword argument 'byte_count'"),
            (
                manifest().replace('"records": 5', '"records": 7'),
                "manifest.json: ValueError: it is not as it was written",
            ),
            (manifest(end=29), "other offsets were staged"),
            (manifest(batch_id=2), "holds batch 2, not batch 1"),
            (manifest(files=(StagedFile("../part-1.arrow", 1, 1, "f00d"),)), "is not the name of a file"),
        ],
    )
    def test_a_manifest_of_another_kind(
        self, attempt: Path, caplog: pytest.LogCaptureFixture, text: str, reason: str
    ) -> None:
        (attempt / MANIFEST).write_bytes(text.encode(errors="surrogateescape"))
        assert reason in self.refused(attempt, caplog)

    def test_a_missing_manifest(self, attempt: Path, caplog: pytest.LogCaptureFixture) -> None:
        assert "manifest.json is missing" in self.refused(attempt, caplog)

    def test_an_attempt_that_was_killed_is_no_fault_of_the_location(
        self, attempt: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO")
        assert find_staged(replace(batch(RANGE), staging_uri=str(attempt)), WANTED, str(attempt.parent)) is None
        assert caplog.messages == [
            "The earlier attempt at batch 1 ended before its files were complete: it is staged again"
        ]

    def test_a_location_that_does_not_answer(
        self, attempt: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def unanswered(self: StagingDirectory, name: str) -> NoReturn:
            raise OSError("HDFS list directory failed")

        monkeypatch.setattr(StagingDirectory, "read_text", unanswered)
        assert "OSError: HDFS list directory failed" in self.refused(attempt, caplog)


class TestDirectoriesThatAreNotTheBatchs:
    """The state tables name them. They are not opened, and the batch is staged again."""

    @pytest.mark.parametrize(
        "uri",
        [
            "{elsewhere}/" + ATTEMPT,
            "{root}/batch-2-" + "0f" * 16,
            "{root}/../elsewhere/" + ATTEMPT,
            "{root}",
            "file://{root}/" + ATTEMPT,
            "relative/path",
            "nosuch://bucket/" + ATTEMPT,
            "hdfs://nowhere/" + ATTEMPT,
            "s3://bucket/" + ATTEMPT + "?endpoint_override=127.0.0.1:1&scheme=http",
        ],
    )
    def test_no_other_directory_is_opened(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, uri: str
    ) -> None:
        root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
        for directory in (root, root / ("batch-2-" + "0f" * 16), elsewhere / ATTEMPT):
            directory.mkdir(parents=True, exist_ok=True)
            (directory / MANIFEST).write_text(manifest())
        named = uri.format(root=root, elsewhere=elsewhere)
        opened: list[str] = []
        open_directory = StagingDirectory.__init__

        def note(self: StagingDirectory, uri: str) -> None:
            opened.append(uri)
            open_directory(self, uri)

        monkeypatch.setattr(StagingDirectory, "__init__", note)

        assert find_staged(replace(batch(RANGE), state="staged", staging_uri=named), WANTED, str(root)) is None

        assert opened == [str(root)]
        (message,) = caplog.messages
        assert f"The staging directory {named} of batch 1 is not removed" in message
