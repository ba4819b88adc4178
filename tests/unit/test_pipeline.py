"""What a pipeline refuses before anything is asked or launched."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats import Json
from airflow_kafka_offsets.pipeline import Pipeline
from airflow_kafka_offsets.sinks import SqlTable

PIPELINE = Pipeline(group_id="group", topics=("orders",), value_format=Json("id BIGINT"), sink=SqlTable("target"))


@pytest.mark.parametrize("name", ["", " "])
def test_a_mirror_without_a_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"mirror_to must be the name of a consumer group.*mirror_to='{name}'"):
        replace(PIPELINE, mirror_to=name).check()


@pytest.mark.parametrize("name", [None, "orders-lag"])
def test_a_mirror_is_a_name_or_none(name: str | None) -> None:
    replace(PIPELINE, mirror_to=name).check()
