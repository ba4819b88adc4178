"""How a running batch is shown, and how often."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from airflow_kafka_offsets.spark.progress import (
    Bar,
    Display,
    MarkedLine,
    MarkedLines,
    Progress,
    SliceNotes,
    display_here,
    mark_of,
)
from airflow_kafka_offsets.staging.directory import StagingDirectory
from tests.spark.test_package import JOB

TEXT = ["Batch 3: read 4 records", "  slice 1: orders[0]"]


def test_the_task_that_submitted_an_application_reads_its_lines_again(capsys: pytest.CaptureFixture[str]) -> None:
    display = MarkedLines("a1")
    display.line("two\nlines")
    display.progress(TEXT, 4, 10)

    assert [MarkedLine.of(line, "a1") for line in capsys.readouterr().out.splitlines()] == [
        MarkedLine("two", None),
        MarkedLine("lines", None),
        MarkedLine(TEXT[0], (4, 10)),
        MarkedLine(TEXT[1], None),
    ]
    assert MarkedLine.of("26/11/23 01:00:00 WARN Utils: [kafka-offsets a1] x", "a1") is None


@pytest.mark.parametrize("mark", ["", " a2", " 5/7", f" a1 {'9' * 5_000}/7"])
def test_a_value_in_an_error_of_spark_is_no_line_of_this_package(mark: str) -> None:
    assert MarkedLine.of(f"[kafka-offsets{mark}] Batch 7: 1,000 records were loaded", mark_of("/tmp/x/jobs")) is None
    assert MarkedLine.of(f"[kafka-offsets{mark}] Batch 7: 1,000 records were loaded", "a1") is None
    assert mark_of("/tmp/x/jobs") != mark_of("/tmp/y/jobs")


def test_a_terminal_gets_a_bar_and_a_log_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(display_here(), Display)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    bar = display_here()
    bar.close()
    assert isinstance(bar, Bar)


def test_the_bar_shows_how_many_records_are_read_and_is_gone_at_the_end() -> None:
    terminal = io.StringIO()
    bar = Bar(Console(file=terminal, force_terminal=True, width=100))
    bar.progress(TEXT, 4, 10)
    bar.line("Batch 3 [x] is slow")
    bar.close()

    assert "4/10" in terminal.getvalue()
    assert "Batch 3" in terminal.getvalue()
    assert "Batch 3 [x] is slow" in terminal.getvalue()
    assert "slice 1" not in terminal.getvalue()


def test_reports_become_rarer_in_a_long_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("airflow_kafka_offsets.spark.progress.time.monotonic", lambda: now)
    progress = Progress(replace(JOB, progress_interval=5.0), SliceNotes(StagingDirectory(str(tmp_path))), Display())
    reports = 0
    while now < 4 * 3600:
        now += progress._pause()
        reports += 1

    # Each has nine lines at most.
    assert reports < 350
    assert progress._pause() == 60.0
