"""What a pipeline refuses before anything is asked or launched."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_kafka_offsets import Coordination, DeadLetters, ExtraColumns, Limits, Reading, Staging, StateTables
from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats.simple_formats import Json, Raw
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
    ("limits", 1000, "Limits(…)"),
    ("on_data_loss", "ignore", "one of fail, skip"),
    ("on_bad_record", "dead_letter", "'fail', or DeadLetters(…)"),
    ("extra_columns", None, "ExtraColumns(…)"),
    ("reading", "read_uncommitted", "Reading(…)"),
    ("staging", "/tmp", "Staging(…)"),
    ("state_tables", "public", "StateTables(…)"),
    ("coordination", "skip", "Coordination(…)"),
]


@pytest.mark.parametrize(
    ("name", "value", "expected"), WRONG, ids=[f"{name}-{n}" for n, (name, _, _) in enumerate(WRONG)]
)
def test_invalid_parameter_is_refused_by_name(name: str, value: Any, expected: str) -> None:
    told = f"{name} must be {expected}; got {name}={value!r}"
    with pytest.raises(ConfigurationError, match=f"^{re.escape(told)}$"):
        checked(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("topics", ["orders"]),
        ("value_format", Raw(headers=True)),
        ("limits", Limits(max_records=1, max_bytes=1, time_budget=timedelta(seconds=1))),
        ("on_data_loss", "skip"),
        ("on_bad_record", DeadLetters(limit=None)),
        ("reading", Reading(isolation_level="read_uncommitted")),
        ("staging", Staging(dir="/tmp")),
        ("state_tables", StateTables(schema="team", prefix="x_")),
        ("coordination", Coordination(on_busy="skip", mirror_to="orders-lag")),
        ("extra_columns", ExtraColumns(key_format=Raw())),
    ],
    ids=str,
)
def test_documented_parameters_are_accepted(name: str, value: Any) -> None:
    checked(name, value)


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("limits", Limits(max_records="{{ n }}"), "Limits.max_records must be an int of at least 1"),  # type: ignore[arg-type]
        ("reading", Reading(max_record_bytes="{{ n }}"), "Reading.max_record_bytes must be"),  # type: ignore[arg-type]
        ("on_bad_record", DeadLetters(limit="{{ n }}"), "DeadLetters.limit must be"),  # type: ignore[arg-type]
    ],
)
def test_a_template_that_nobody_has_rendered_is_refused(name: str, value: Any, refused: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(refused)):
        checked(name, value)


@pytest.mark.parametrize("name", ["g" * 251, "orders\0", "orders\udcff"], ids=["too-long", "nul", "surrogate"])
def test_a_group_that_the_state_tables_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(
        ConfigurationError, match=f"at most 250 characters, and no NUL or lone surrogate; got {len(name)}"
    ):
        replace(PIPELINE, group_id=name).check()


def test_a_group_has_as_many_characters_as_the_state_tables_hold() -> None:
    replace(PIPELINE, group_id="ä" * 250).check()
