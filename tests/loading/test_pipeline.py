"""What a pipeline refuses before anything is asked or launched."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.json_format import Json
from airflow_kafka_offsets.formats.raw import Raw
from airflow_kafka_offsets.loading.pipeline import LoadOptions, Pipeline
from airflow_kafka_offsets.sinks.sql.table import SqlTable

PIPELINE = Pipeline(group_id="group", topics=("orders",), value_format=Json("id BIGINT"), sink=SqlTable("target"))


def checked(name: str, value: Any) -> None:
    """Check a pipeline, or the options of a load, with one parameter."""
    if hasattr(LoadOptions, name):
        LoadOptions(**{name: value}).check()
    else:
        replace(PIPELINE, **{name: value}).check()


def a_function() -> None:
    """A transform is named, and not given."""


WRONG: list[tuple[str, Any, str]] = [
    ("group_id", "", "a text that is not empty"),
    ("group_id", 7, "a text that is not empty"),
    ("topics", (), "a list of different topic names"),
    ("topics", "abc", "a list of different topic names"),
    ("topics", ("a", "a"), "a list of different topic names"),
    ("topics", (None,), "a list of different topic names"),
    ("value_format", "id BIGINT", "a format, such as Json(…) or Raw(…)"),
    ("sink", "target", "a sink, such as SqlTable(…)"),
    (
        "transform",
        a_function,
        "the import path of a function, 'package.module.function', an ArrowTransform(…), Sql(…), or None",
    ),
    ("max_records", 0, "an int of at least 1, or None for no limit"),
    ("max_records", "1000", "an int of at least 1, or None for no limit"),
    ("max_records", 1.5, "an int of at least 1, or None for no limit"),
    ("max_records", True, "an int of at least 1, or None for no limit"),
    ("max_bytes", "1MB", "an int of at least 1, or None for no limit"),
    ("time_budget", 60, "a positive timedelta, or None for no limit"),
    ("on_data_loss", "ignore", "one of fail, skip"),
    ("on_bad_record", "deadletter", "one of fail, dead_letter"),
    (
        "max_dead_letters",
        0,
        "an int of at least 1, or a float between 0 and 1 for a share of the batch, or None for any number",
    ),
    (
        "max_dead_letters",
        "10",
        "an int of at least 1, or a float between 0 and 1 for a share of the batch, or None for any number",
    ),
    ("max_record_bytes", 0, "an int of at least 1"),
    ("max_record_bytes", "1MB", "an int of at least 1"),
    ("isolation_level", "committed", "one of read_committed, read_uncommitted"),
    ("slice_offsets", None, "an int of at least 1"),
    ("slice_offsets", "10", "an int of at least 1"),
    ("staging_dir", 7, "a text, or None"),
    ("staging_retention", 7, "a positive timedelta"),
    ("on_busy", "skip", "one of wait, fail"),
    ("lease", 60, "a positive timedelta"),
    ("lease", timedelta(0), "a positive timedelta"),
    ("idle_timeout", 60.0, "a positive timedelta"),
    ("idle_timeout", timedelta(seconds=-1), "a positive timedelta"),
    ("mirror_to", "", "the name of a consumer group, or None"),
    ("mirror_to", " ", "the name of a consumer group, or None"),
    ("tables", "public", "Tables(…)"),
]


@pytest.mark.parametrize(
    ("name", "value", "expected"), WRONG, ids=[f"{name}-{n}" for n, (name, _, _) in enumerate(WRONG)]
)
def test_what_a_parameter_cannot_be_is_refused_by_its_name(name: str, value: Any, expected: str) -> None:
    told = f"{name} must be {expected}; got {name}={value!r}"
    with pytest.raises(ConfigurationError, match=f"^{re.escape(told)}$"):
        checked(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topics", ["orders"]),
        ("value_format", Raw(headers=True)),
        ("max_records", 1),
        ("max_bytes", 1),
        ("max_dead_letters", None),
        ("on_data_loss", "skip"),
        ("on_bad_record", "dead_letter"),
        ("isolation_level", "read_uncommitted"),
        ("time_budget", timedelta(seconds=1)),
        ("staging_dir", "/tmp"),
        ("on_busy", "fail"),
        ("mirror_to", None),
        ("mirror_to", "orders-lag"),
    ],
    ids=str,
)
def test_what_is_documented_passes(name: str, value: Any) -> None:
    checked(name, value)


@pytest.mark.parametrize("name", ["g" * 251, "orders\0"], ids=["too-long", "nul"])
def test_a_group_that_the_state_tables_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"at most 250 characters, and no NUL among them; got {len(name)}"):
        replace(PIPELINE, group_id=name).check()


def test_a_group_has_as_many_characters_as_the_state_tables_hold() -> None:
    replace(PIPELINE, group_id="ä" * 250).check()
