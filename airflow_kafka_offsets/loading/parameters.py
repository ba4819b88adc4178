"""Rules for the parameters of pipelines, loads and replays. A DAG file imports this module: it must stay light."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args

from airflow_kafka_offsets.core.options import (
    Coordination,
    DeadLetters,
    Limits,
    Reading,
    Staging,
    StateTables,
    group_of,
)
from airflow_kafka_offsets.core.parameters import FLAG, NAME, Rule, either, is_name, one_of, or_none
from airflow_kafka_offsets.core.planning import OnDataLoss
from airflow_kafka_offsets.formats.extra_columns import FORMAT, ExtraColumns
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.transforms.transform import Transform

OnBadRecord = Literal["fail"] | DeadLetters


def _are_topics(value: Any) -> bool:
    return (
        isinstance(value, list | tuple) and bool(value) and all(map(is_name, value)) and len(set(value)) == len(value)
    )


_PATH = re.compile(r"[^\s.]+(\.[^\s.]+)+")

# A class has the members of its instances.
SINK = Rule("a sink, such as SqlTable(…)", lambda value: isinstance(value, Sink) and not isinstance(value, type))

PIPELINE_RULES = {
    "group_id": NAME,
    "topics": Rule("a list of different topic names", _are_topics),
    "value_format": FORMAT,
    "extra_columns": group_of(ExtraColumns),
    "sink": SINK,
    "transform": or_none(
        Rule(
            "the import path of a function, 'package.module.function', an ArrowTransform(…), Sql(…)",
            lambda value: (
                _PATH.fullmatch(value) is not None
                if isinstance(value, str)
                else isinstance(value, Transform) and not isinstance(value, type)
            ),
        )
    ),
    "limits": group_of(Limits),
    "on_data_loss": one_of(*get_args(OnDataLoss)),
    "on_bad_record": either(Rule("'fail'", lambda value: value == "fail"), group_of(DeadLetters)),
    "coordination": group_of(Coordination),
    "reading": group_of(Reading),
    "staging": group_of(Staging),
    "state_tables": group_of(StateTables),
    # A string, such as a template that was not rendered, would count as true, and rows would be removed.
    "replace": FLAG,
}
"""The rules of the parameters that are not fields of a group; those of a group are in its class."""
