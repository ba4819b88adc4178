"""The commands as they are declared: arguments, help, and the reference that is written from it."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_kafka_offsets.cli import airflow_program
from airflow_kafka_offsets.cli.arguments import duration
from airflow_kafka_offsets.cli.output import show
from airflow_kafka_offsets.core.instants import CommittedBy
from scripts.command_reference import DIRECTORY, DOCUMENT, commands, reference


def test_the_reference_is_what_the_commands_say() -> None:
    """Where this fails: `make reference`."""
    written = [DOCUMENT, *sorted(DIRECTORY.iterdir())]
    assert {path: path.read_text(encoding="utf-8") for path in written} == reference()


def test_every_command_has_an_example_that_the_parser_takes() -> None:
    parsers = commands()
    assert {"init", "groups", "show", "lag", "history", "plan", "verify", "export", "doctor"} <= set(parsers)
    for name, parser in parsers.items():
        assert parser.epilog is not None, name
        # A shell joins lines like that.
        beginning, *examples = parser.epilog.replace("\\\n", "").split("kafka-offsets ")
        assert beginning == "Example: ", name
        assert examples, name
        for example in examples:
            words, command = shlex.split(example.split(">")[0]), name.split()
            assert words[: len(command)] == command
            args = vars(parser.parse_args(words[len(command) :]))
            changes = args.get("execute") or (name == "replay" and args["replace"])
            assert not changes or args["reason"], f"{example}: a change needs --reason"


def test_every_command_that_prints_rows_has_every_format() -> None:
    without = {name for name, parser in commands().items() if "--output" not in parser._option_string_actions}
    assert without == {"init", "export", "archive-classes"}


def test_declaring_commands_imports_nothing_that_they_run_with() -> None:
    """Airflow declares them for each of its own commands too."""
    code = (
        "import sys; from airflow_kafka_offsets.cli.airflow_program import get_commands; get_commands();"
        "print(sorted({'confluent_kafka', 'pyarrow', 'pyspark', 'airflow_kafka_offsets.ledger'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def parsed(*arguments: str) -> argparse.Namespace:
    return commands()["plan"].parse_args(["orders", "--conn-id", "warehouse", *arguments])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("earliest", "earliest"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("PT1H30M", timedelta(hours=1, minutes=30)),
        ("P1W2DT0.5S", timedelta(days=9, seconds=0.5)),
        ("committed-by:old-job", CommittedBy("old-job")),
    ],
)
def test_a_start_is_what_an_operator_takes(text: str, value: object) -> None:
    assert parsed("--start", text).start == value


@pytest.mark.parametrize("text", ["P", "PT", "P1M", "1h", "PT1S1H", "-P1D", "", "P999999999W"])
def test_a_duration_is_iso_8601_and_has_a_certain_length(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="must be an ISO 8601 duration"):
        duration(text)


@pytest.mark.parametrize("text", ["P", "PT", "P1M", "PT1S1H", "P999999999W"])
def test_a_start_that_is_no_duration_is_a_usage_error(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed("--start", text)
    assert ended.value.code == 2


HUGE = "99999999999999999999"


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("abandon", ["--batch", HUGE]),
        ("abandon", ["--batch", str(2**63)]),
        ("history", ["--batch", HUGE]),
        ("history", ["--limit", HUGE]),
        ("rewind", ["--to-earliest", "--abandon", HUGE]),
        ("import", ["--from-group", "old-job", "--abandon", HUGE]),
    ],
)
def test_a_number_that_no_batch_can_have_is_refused(
    command: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        commands()[command].parse_args(["orders", "--conn-id", "warehouse", *arguments])
    assert ended.value.code == 2
    assert "must be a whole number of at least 1, of 64 bits at most" in capsys.readouterr().err


@pytest.mark.parametrize("output", ["table", "plain"])
def test_without_rows_data_is_empty_and_a_note_says_so(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    show([], output)
    assert capsys.readouterr() == ("", "There is nothing to show\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("rewind", "orders", "--to-offset", "abc"), "to-offset needs a whole number of 64 bits at most; got 'abc'"),
        (("rewind", "orders"), "A rewind takes exactly one of"),
        (("rewind", "orders", "--preview", "-", "--to-latest"), "--preview has a scenario and a scope"),
        (
            ("rewind", "orders", "--to-latest", "--topic", "t:a"),
            "A scope is topic or topic:0,1, with partitions as numbers",
        ),
        (("import", "orders", "--from-group", "g", "--topic", "t u"), "several of them are a list; got 't u'"),
        (("show", "orders", "--topic", "t:"), "A scope is topic or topic:0,1"),
        (("lag", "orders", "--topic", "t:-1"), "A scope is topic or topic:0,1"),
        (("lag", "orders", "--topic", "t[x]"), "A scope is topic or topic:0,1"),
        (("plan", "orders", "--topic", "t:0"), "--topic takes whole topics here, such as --topic t"),
        (
            ("replay", "orders", "--topic", "t:0", "--table", "t", "--batch", "1"),
            "--topic takes whole topics here, such as --topic t; partitions are named with their offsets: --offsets",
        ),
        (("doctor", "--topic", ":0"), "A scope is topic or topic:0,1"),
        (("replay", "orders", "--topic", "t", "--table", "t"), "A replay takes either --offsets"),
        (("plan", "orders", "--start", "yesterday"), "got start='yesterday'"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_options_that_cannot_work_are_usage_errors_of_one_line(
    arguments: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Options are looked at before anything is connected to.
    monkeypatch.delenv("AIRFLOW_CONN_WAREHOUSE", raising=False)
    args = commands()[arguments[0]].parse_args([*arguments[1:], "--conn-id", "warehouse"])
    with pytest.raises(SystemExit) as ended:
        airflow_program.run(args.command, args)
    (line,) = capsys.readouterr().err.splitlines()
    assert (ended.value.code, line.startswith(f"kafka-offsets {arguments[0]}: "), message in line) == (2, True, True)


TYPED: list[dict[str, Any]] = [
    {
        "offset": 12_345_678,
        "at": datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2))),
        "time_lag_seconds": timedelta(days=1, seconds=1.5),
        "flags": ("no position", "odd"),
        "error": None,
    }
]


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (
            "json",
            '[{"offset": 12345678, "at": "2026-01-01T10:00:00+00:00", "time_lag_seconds": 86401.5, '
            '"flags": ["no position", "odd"], "error": null}]',
        ),
        (
            "plain",
            "  OFFSET  AT                   TIME-LAG    FLAGS             ERROR\n"
            "12345678  2026-01-01 10:00:00  1d 0h       no position, odd  -",
        ),
    ],
)
def test_machines_get_values_and_people_get_texts(output: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    show(TYPED, output)
    assert capsys.readouterr().out.rstrip() == told


@pytest.mark.parametrize("output", ["json", "yaml", "plain", "table"])
def test_long_texts_are_printed_whole(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"word-{number}" for number in range(100)]
    show([{"reason": " ".join(words)}], output)
    printed = capsys.readouterr().out
    assert [word for word in words if word not in printed] == []


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (timedelta(0), "0s"),
        (timedelta(seconds=59.9), "59s"),
        (timedelta(seconds=200), "3m 20s"),
        (timedelta(hours=5), "5h 0m"),
        (timedelta(days=12, hours=3, minutes=9), "12d 3h"),
    ],
)
def test_durations_are_short(value: timedelta, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    show([{"lag_seconds": value}], "plain")
    assert capsys.readouterr().out.splitlines()[1].strip() == told
