"""Rules for the parameters of pipelines, loads and replays. A DAG file imports this module: it must stay light."""

from __future__ import annotations

from typing import Any, Literal, get_args

from airflow_kafka_offsets.core.parameters import (
    COUNT,
    DURATION,
    FLAG,
    NAME,
    SHARE,
    TEXT,
    Rule,
    either,
    is_name,
    one_of,
    or_none,
)
from airflow_kafka_offsets.core.planning import OnDataLoss
from airflow_kafka_offsets.formats.header import are_metadata_columns
from airflow_kafka_offsets.formats.record_format import OnNewField, RecordFormat
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.transforms.transform import Transform

OnBadRecord = Literal["fail", "dead_letter"]

OnBusy = Literal["wait", "fail"]


def _are_topics(value: Any) -> bool:
    return (
        isinstance(value, list | tuple) and bool(value) and all(map(is_name, value)) and len(set(value)) == len(value)
    )


# A class has the members of its instances.
SINK = Rule("a sink, such as SqlTable(…)", lambda value: isinstance(value, Sink) and not isinstance(value, type))


def _is_format(value: Any) -> bool:
    return isinstance(value, RecordFormat) and not isinstance(value, type)


_FORMAT = Rule("a format, such as Json(…) or Raw(…)", _is_format)

PIPELINE_RULES = {
    "group_id": NAME,
    "topics": Rule("a list of different topic names", _are_topics),
    "value_format": _FORMAT,
    "key_format": or_none(_FORMAT),
    "metadata_columns": or_none(
        Rule("a dictionary of column names, with 'timestamp' or Header(…)", are_metadata_columns)
    ),
    "sink": SINK,
    "transform": or_none(
        Rule(
            "the import path of a function, 'package.module.function', an ArrowTransform(…), Sql(…)",
            lambda value: isinstance(value, str | Transform) and not isinstance(value, type),
        )
    ),
    "max_records": or_none(COUNT, " for no limit"),
    "max_bytes": or_none(COUNT, " for no limit"),
    "time_budget": or_none(DURATION, " for no limit"),
    "on_data_loss": one_of(*get_args(OnDataLoss)),
    "on_new_field": one_of(*get_args(OnNewField)),
    "on_bad_record": one_of(*get_args(OnBadRecord)),
    "max_dead_letters": or_none(either(COUNT, SHARE, " for a share of the batch"), " for any number"),
    "also_to_topic": or_none(Rule("the name of a topic", is_name)),
    "dead_letter_retention": or_none(DURATION, " to keep them for ever"),
    "max_record_bytes": COUNT,
    "isolation_level": one_of("read_committed", "read_uncommitted"),
    "slice_offsets": COUNT,
    "staging_dir": or_none(TEXT),
    "staging_retention": DURATION,
    "on_busy": one_of(*get_args(OnBusy)),
    "lease": DURATION,
    "idle_timeout": DURATION,
    "mirror_to": or_none(Rule("the name of a consumer group", is_name)),
    # A string, such as a template that was not rendered, would count as true, and rows would be removed.
    "replace": FLAG,
    "all_records": FLAG,
}
