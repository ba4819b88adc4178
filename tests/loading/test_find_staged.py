"""Which files of an earlier attempt are committed, and which are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from airflow_kafka_offsets.loading.stage import StagedBatch, find_staged
from airflow_kafka_offsets.staging.directory import MANIFEST, Manifest, StagedFile, StagingDirectory
from tests.support.staged import COLUMNS, PIPELINE, RANGE, WANTED, batch, read


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
