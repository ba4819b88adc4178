"""What a test loads, from options that it gives in one mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from airflow_kafka_offsets.loading.pipeline import LoadOptions, Pipeline

_OF_A_LOAD = {field.name for field in fields(LoadOptions)}


def pipeline_and_options(options: Mapping[str, Any]) -> tuple[Pipeline, LoadOptions]:
    """Return the pipeline and the options of a load that parameters of both describe."""
    of_a_load = {name: value for name, value in options.items() if name in _OF_A_LOAD}
    return (
        Pipeline(**{name: value for name, value in options.items() if name not in _OF_A_LOAD}),
        LoadOptions(**of_a_load),
    )
