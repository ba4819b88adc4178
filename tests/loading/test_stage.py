"""What the worker makes of the files that Spark left."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_kafka_offsets import DeadLetters
from airflow_kafka_offsets.exceptions import KafkaOffsetsError, RecordError, StagingError, TransformError
from airflow_kafka_offsets.ledger.positions import RangeRead
from airflow_kafka_offsets.loading.stage import launch_application
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile
from tests.support.staged import ORDERS, PIPELINE, RANGE, batch, job, launched, read


class TestWhatTheSlicesOfARangeShow:
    def test_slice_counts_are_added_up(self, tmp_path: Path) -> None:
        two, one = (StagedFile(f"dead-{count}.arrow", count, 7, "d16e57") for count in (2, 1))
        late: dict[str, Any] = {
            "first_timestamp_ms": 500,
            "last_timestamp_ms": 2000,
            "dead_letters": 2,
            "dead_letters_file": two,
        }
        early: dict[str, Any] = {
            "first_timestamp_ms": 1000,
            "last_timestamp_ms": 1500,
            "dead_letters": 1,
            "dead_letters_file": one,
        }
        found = launched(tmp_path, batch(RANGE), read(20, 30, 4, bytes=70, **late), read(10, 20, 5, bytes=30, **early))
        first, last = (datetime.fromtimestamp(seconds, UTC) for seconds in (0.5, 2))
        assert found.reads == {ORDERS: RangeRead(9, first, last, bytes=100, dead_letters=3)}
        assert (found.records, found.dead_letters) == (9, 3)

    def test_unread_slices_have_no_counts(self, tmp_path: Path) -> None:
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


def test_a_job_says_what_to_do_with_bad_records(tmp_path: Path) -> None:
    directory = StagingDirectory(str(tmp_path))
    assert job(batch(RANGE), directory).has_dead_letters is False
    assert job(batch(RANGE), directory, replace(PIPELINE, on_bad_record=DeadLetters())).has_dead_letters is True


class TestWhatTheApplicationReports:
    def reported(self, tmp_path: Path, **note: Any) -> KafkaOffsetsError:
        """The error of a launch whose application failed, and left a note."""
        directory = StagingDirectory(str(tmp_path))

        class Launcher:
            def check(self, staging_dir: str | None) -> None: ...

            def cancel(self) -> None: ...

            def close(self) -> None: ...

            def __call__(self, job: StageJob) -> None:
                directory.write_text("failure-1-1.json", json.dumps(note))
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
