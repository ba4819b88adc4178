"""Groups of parameters: what they refuse when they are made, what templates become, and what pickles and copies."""

from __future__ import annotations

import pickle
import re
from dataclasses import FrozenInstanceError, replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_kafka_offsets import (
    Coordination,
    DeadLetters,
    ExtraColumns,
    Header,
    Json,
    Limits,
    Reading,
    Spark,
    Staging,
    StateTables,
)
from airflow_kafka_offsets.core.options import Options
from airflow_kafka_offsets.exceptions import ConfigurationError

NUMBER = "an int of at least 1"
USUAL = f"{NUMBER}, or None for the usual size"
DURATION = "a positive timedelta"
SHARE = f"{NUMBER}, or a float between 0 and 1 for a share of the batch, or None for any number"

WRONG: list[tuple[type[Options], str, Any, str]] = [
    (Limits, "max_records", 0, USUAL),
    (Limits, "max_records", "1000", USUAL),
    (Limits, "max_records", 1.5, USUAL),
    (Limits, "max_records", True, USUAL),
    (Limits, "max_bytes", "1MB", USUAL),
    (Limits, "time_budget", 60, f"{DURATION}, or None for no limit"),
    (DeadLetters, "limit", 0, SHARE),
    (DeadLetters, "limit", "10", SHARE),
    (DeadLetters, "topic", " ", "a text that is not empty, or None"),
    (DeadLetters, "retention", timedelta(0), f"{DURATION}, or None to keep them for ever"),
    (Reading, "isolation_level", "committed", "one of read_committed, read_uncommitted"),
    (Reading, "max_record_bytes", None, NUMBER),
    (Reading, "max_record_bytes", "1MB", NUMBER),
    (Reading, "idle_timeout", 60.0, DURATION),
    (Reading, "idle_timeout", timedelta(seconds=-1), DURATION),
    (Staging, "dir", 7, "a text, or None"),
    (Staging, "slice_offsets", None, NUMBER),
    (Staging, "retention", 7, DURATION),
    (StateTables, "schema", 7, "a text, or None"),
    (StateTables, "prefix", None, "a text"),
    (Coordination, "on_busy", "explode", "one of wait, skip, fail"),
    (Coordination, "lease", 60, DURATION),
    (Coordination, "lease", timedelta(0), DURATION),
    (Coordination, "mirror_to", "", "a text that is not empty, or None"),
    (ExtraColumns, "key_format", "id BIGINT", "a format, such as Json(…) or Raw(…), or None"),
    (ExtraColumns, "on_new_field", "grow", "one of ignore, fail, add"),
    (Spark, "conn_id", "", "a text that is not empty"),
    (Spark, "conf", "a=b", "a dictionary of properties, or None"),
]


@pytest.mark.parametrize(("group", "name", "value", "expected"), WRONG)
def test_a_wrong_value_is_refused_when_the_group_is_made(
    group: type[Options], name: str, value: Any, expected: str
) -> None:
    told = f"{group.__name__}.{name} must be {expected}; got {name}={value!r}"
    with pytest.raises(ConfigurationError, match=f"^{re.escape(told)}$"):
        group(**{name: value})


@pytest.mark.parametrize(
    ("group", "name", "value", "where"),
    [
        (Coordination, "lease", "{% if params.long %}60{% endif %}", "Coordination.lease"),
        (Reading, "isolation_level", "{{ params.level }}", "Reading.isolation_level"),
        (ExtraColumns, "metadata", {"{{ params.name }}": "timestamp"}, "ExtraColumns.a key of metadata"),
        (ExtraColumns, "metadata", {"s": Header("s", which="{{ p }}")}, "ExtraColumns.metadata.which"),  # type: ignore[arg-type]
    ],
)
def test_a_template_that_airflow_does_not_render_is_refused(
    group: type[Options], name: str, value: Any, where: str
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{re.escape(where)} is not templated, .* templated are "):
        group(**{name: value})


def test_a_template_passes_until_a_group_is_to_be_without() -> None:
    limits = Limits(max_records="{{ params.n }}")  # type: ignore[arg-type]

    with pytest.raises(
        ConfigurationError, match=r"^Limits\.max_records must be .*; got max_records='{{ params\.n }}'$"
    ):
        limits.check()
    replace(limits, max_records=5).check()


@pytest.mark.parametrize("given", ["staging/here", "./staging"])
def test_a_staging_directory_is_an_absolute_path_or_a_uri(given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^Staging\.dir must be an absolute path or a URI; got dir="):
        Staging(dir=given)


def test_a_group_shows_what_differs_from_its_defaults() -> None:
    assert repr(Limits()) == "Limits()"
    assert repr(Reading(isolation_level="read_uncommitted")) == "Reading(isolation_level='read_uncommitted')"


@pytest.mark.parametrize("group", [Limits(max_records=5), ExtraColumns(key_format=Json("k INT")), Spark("other")])
def test_a_group_is_a_value(group: Options) -> None:
    assert pickle.loads(pickle.dumps(group)) == group
    with pytest.raises(FrozenInstanceError):
        group.max_records = 7  # type: ignore[attr-defined]
