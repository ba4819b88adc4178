"""Records and rows of state tables that do harm where a command prints them."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, timedelta
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import Engine

from airflow_kafka_offsets.cli.output import note, show
from airflow_kafka_offsets.escaping import printable
from tests.support.clients import Kafka, produce, producer
from tests.support.command_line import DB, FORMATS, CommandLine, Done, leave_open
from tests.support.hostile import HOSTILE, HostileRows, controls, hostile_texts
from tests.support.loads import BESIDE_OTHERS, Loader, TopicFactory, names
from tests.support.verifying import LEFT_OUT

WORDS = st.sampled_from(["1e5", "0x1F", "1_000", "007", "NaN", "-0", "1,000", "1.10"])
VALUES = (
    hostile_texts()
    | WORDS
    | st.none()
    | st.integers()
    | st.booleans()
    | st.datetimes(timezones=st.just(UTC))
    | st.timedeltas(min_value=timedelta(0))
    | st.lists(hostile_texts(), max_size=2).map(tuple)
)


def shown(rows: list[dict[str, Any]], form: str) -> str:
    with redirect_stdout(io.StringIO()) as printed:
        show(rows, form)
    return printed.getvalue()


@given(st.lists(st.fixed_dictionaries({"text": hostile_texts(), "other": VALUES}), min_size=1, max_size=3))
def test_every_format_prints_visible_characters_and_keeps_values(rows: list[dict[str, Any]]) -> None:
    printed = {form: shown(rows, form) for form in FORMATS}

    for text in printed.values():
        assert controls(text) <= {"\n"}
        text.encode()
    assert [row["text"] for row in json.loads(printed["json"])] == [row["text"] for row in rows]
    assert yaml.safe_load(printed["yaml"]) == json.loads(printed["json"])
    assert printed["plain"].count("\n") == len(rows) + 1


@given(WORDS)
def test_no_table_rewrites_a_number(word: str) -> None:
    for form in ("table", "plain"):
        assert shown([{"value": word, "offset": 7}], form).split()[-3 if form == "table" else -2] == word


def test_notes_are_a_line() -> None:
    with redirect_stderr(io.StringIO()) as printed:
        note(HOSTILE)

    assert printed.getvalue() == f"{printable(HOSTILE)}\n"


COMMANDS = (
    ("groups",),
    ("show", "hostile"),
    ("lag", "hostile"),
    ("history", "hostile"),
    ("history", "hostile", "--batch", "2"),
    ("dead-letters", "list", "hostile"),
    ("dead-letters", "show", "hostile"),
    ("plan", "hostile"),
    ("verify", "hostile", "--table", "target"),
    ("rewind", "hostile", "--to-earliest"),
    ("mirror", "hostile", "--to", "shown"),
    ("groups",),
    ("show", "loader"),
    ("lag", "loader"),
)


@pytest.fixture
def hostile(inline_loader: Loader, loaded_topic: str, engine: Engine) -> HostileRows:
    options = {"group_id": "hostile", **LEFT_OUT, **BESIDE_OTHERS}
    produce(inline_loader.kafka, loaded_topic, [b"\xff"])
    inline_loader(loaded_topic, **options)
    produce(inline_loader.kafka, loaded_topic, names(6, 1))
    leave_open(inline_loader, loaded_topic, **options)
    return HostileRows(engine, "hostile")


@pytest.mark.server
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(data=st.data())
def test_commands_answer_whatever_the_rows_of_a_group_are(
    cli: CommandLine, hostile: HostileRows, data: st.DataObject
) -> None:
    """Where they are of no use to a command, it fails, for this group alone."""
    hostile.restore()
    hostile.write(data.draw(hostile.changes()))

    done: dict[tuple[str, ...], Done] = {
        command: cli(*command, *DB, "--output", data.draw(st.sampled_from(FORMATS))) for command in COMMANDS
    }
    done["export",] = cli("export", "hostile", *DB)

    for printed in done.values():
        assert printed.status in (0, 1)
        assert controls(printed.stdout + printed.stderr) <= {"\n"}
    assert {"loader", "hostile"} <= {*done["groups",].stdout.replace('"', " ").replace(",", " ").split()}
    assert done["show", "loader"].status == done["lag", "loader"].status == 0


@pytest.mark.server
def test_a_dead_letter_writes_nothing_but_text_to_a_terminal(
    cli: CommandLine, inline_loader: Loader, kafka: Kafka, topic: TopicFactory
) -> None:
    name, value = topic(), HOSTILE.encode(errors="surrogatepass")
    text = HOSTILE.replace("\ud800", "")
    writer = producer(kafka)
    for each in (value, text.encode(), b"1e5"):
        writer.produce(name, each, key=each, partition=0, headers=[("h\x1b[1m\u202e", each)])
    assert writer.flush(30) == 0
    inline_loader(name, **LEFT_OUT)

    for form in FORMATS:
        for command in ("show", "list"):
            done = cli("dead-letters", command, "loader", *DB, "--output", form)
            assert done.status == 0
            assert controls(done.stdout) <= {"\n"}
    assert "1e5" in cli("dead-letters", "show", "loader", *DB, "--output", "plain").stdout
    (_, row, _) = cli("dead-letters", "show", "loader", *DB, "--output", "json").json
    assert (row["key"], row["value"]) == (text, text)
