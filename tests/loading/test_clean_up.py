"""Which staged files are removed, and which stay. The cases are those of `docs/semantics.md`."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters, Staging
from airflow_kafka_offsets.exceptions import RecordError, StagingError
from airflow_kafka_offsets.loading import staging_area
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.staging.directory import StagingDirectory
from tests.support.clients import Kafka, produce
from tests.support.inline import Fails
from tests.support.loads import Loader, TopicFactory, names

pytestmark = pytest.mark.server


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


class TestCleanUp:
    NAME = "batch-{}-" + "0123456789abcdef" * 2

    def test_only_old_unnamed_directories_are_removed(
        self, inline_loader: Loader, topic: TopicFactory, tmp_path: Path
    ) -> None:
        import os

        staging = tmp_path / "staging"
        staging.mkdir()
        name = topic()
        produce(inline_loader.kafka, name, names(0, 5))
        old, young, foreign = (
            staging / self.NAME.format(9),
            staging / self.NAME.format(8),
            staging / "batch-7-mine",
        )
        for directory in (old, young, foreign):
            directory.mkdir()
            (directory / "part-1.arrow").write_text("rows")
        file = staging / self.NAME.format(6)
        file.write_text("no directory")
        eight_days_ago = datetime.now(UTC).timestamp() - 8 * 24 * 3600
        for path in (old / "part-1.arrow", old, foreign / "part-1.arrow", foreign, file):
            os.utime(path, (eight_days_ago, eight_days_ago))

        inline_loader(name, staging=Staging(dir=str(staging)))

        assert sorted(staging.iterdir()) == sorted([young, foreign, file])

    def test_a_name_with_a_number_that_no_batch_has_stops_no_load(
        self, inline_loader: Loader, topic: TopicFactory, tmp_path: Path
    ) -> None:
        """Whoever may write there may make any directory."""
        name = topic()
        produce(inline_loader.kafka, name, names(0, 5))
        staging = tmp_path / "staging"
        staging.mkdir()
        for number in ("9" * 18, "9" * 20, "9" * 200):
            (staging / self.NAME.format(number)).mkdir()

        assert inline_loader(name, staging=Staging(dir=str(staging), retention=timedelta(microseconds=1))).rows == 5

    def test_an_open_batch_keeps_its_files_and_a_closed_one_does_not(
        self, inline_loader: Loader, topic: TopicFactory, tmp_path: Path
    ) -> None:
        staging = tmp_path / "staging"
        name, other = topic(), topic()
        produce(inline_loader.kafka, name, [b"bad"])
        produce(inline_loader.kafka, other, names(0, 1))

        options: dict[str, Any] = {"staging": Staging(dir=str(staging), retention=timedelta(microseconds=1))}
        with pytest.raises(StagingError):
            Loader(inline_loader.kafka, inline_loader.engine, Fails())(name, **options)
        (kept,) = staging.iterdir()

        # The load of another group finds them: the batch is open, however old its files are.
        inline_loader(other, group_id="other", sink=SqlTable("other"), **options)
        assert list(staging.iterdir()) == [kept]
        with inline_loader.engine.begin() as conn:
            uri = conn.scalar(sa.text("SELECT staging_uri FROM offset_batches WHERE batch_id = 1"))
            conn.execute(sa.text("UPDATE offset_batches SET staging_uri = :uri WHERE batch_id = 2"), {"uri": uri})
        (staging / self.NAME.format(2)).mkdir()
        inline_loader(other, group_id="other", sink=SqlTable("other"), **options)
        assert list(staging.iterdir()) == [kept], "another batch claims its files"
        with inline_loader.engine.begin() as conn:
            conn.execute(sa.text("UPDATE offset_batches SET state = 'abandoned' WHERE batch_id = 1"))
        inline_loader(other, group_id="other", sink=SqlTable("other"), **options)
        assert list(staging.iterdir()) == []

    def test_a_load_starts_and_cleans_up_where_more_directories_are_left_than_a_statement_has_parameters(
        self, inline_loader: Loader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        name = topic()
        produce(inline_loader.kafka, name, names(0, 5))
        left = [(number, StagingDirectory(str(tmp_path / self.NAME.format(number)))) for number in range(1, 66_001)]
        monkeypatch.setattr(staging_area, "_directories", lambda root: left)
        removed: list[str] = []
        monkeypatch.setattr(StagingDirectory, "remove", lambda self: removed.append(self.uri))
        monkeypatch.setattr(staging_area, "_last_written", lambda directory, now: now - timedelta(days=8))

        assert inline_loader(name, staging=Staging(dir=str(tmp_path))).rows == 5

        assert 400 < len(removed) <= 501

    def test_a_load_that_may_not_remove_directories_tries_it_once(
        self,
        inline_loader: Loader,
        topic: TopicFactory,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        name = topic()
        produce(inline_loader.kafka, name, names(0, 5))
        for number in range(10):
            (tmp_path / self.NAME.format(number)).mkdir()

        def refuse(directory: StagingDirectory) -> None:
            raise PermissionError("AccessDenied")

        monkeypatch.setattr(StagingDirectory, "remove", refuse)
        staging = Staging(dir=str(tmp_path), retention=timedelta(microseconds=1))

        assert inline_loader(name, staging=staging).rows == 5

        warnings = [message for message in caplog.messages if "could not be removed: AccessDenied" in message]
        # The other is that of the batch.
        assert len(warnings) == 2


def test_code_that_changed_between_two_tries_is_warned_about(
    inline_loader: Loader, topic: TopicFactory, caplog: pytest.LogCaptureFixture
) -> None:
    name = topic()
    produce(inline_loader.kafka, name, [b'{"id": "text"}'])
    with pytest.raises(RecordError):
        inline_loader(name)

    with caplog.at_level(logging.WARNING):
        inline_loader(name, on_bad_record=DeadLetters())

    assert "Batch 1 was planned with other columns, another transform, or other code of the transform" in caplog.text
