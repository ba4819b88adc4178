"""What single parameters of a load must be. Imports nothing heavy: operators ask when a DAG file is parsed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal, NamedTuple, get_args

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats import ValueFormat
from airflow_kafka_offsets.planning import OnDataLoss
from airflow_kafka_offsets.sinks import SqlTable

OnBadRecord = Literal["fail", "dead_letter"]


class _Rule(NamedTuple):
    expected: str
    fits: Callable[[Any], bool]


def check(given: Mapping[str, Any]) -> None:
    """Refuse values of a wrong type, and those that can mean nothing.

    :param given: parameters by name; others than those known here are not looked at
    :raises ConfigurationError: says which parameter, what it must be, and which value was received
    """
    for name, rule in _RULES.items():
        if name in given and not rule.fits(given[name]):
            raise ConfigurationError(f"{name} must be {rule.expected}; got {name}={given[name]!r}")


def _or_none(rule: _Rule, meaning: str = "") -> _Rule:
    return _Rule(f"{rule.expected}, or None{meaning}", lambda value: value is None or rule.fits(value))


def _one_of(*words: str) -> _Rule:
    return _Rule(f"one of {', '.join(words)}", lambda value: value in words)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_topics(value: Any) -> bool:
    return (
        isinstance(value, list | tuple) and bool(value) and all(map(_is_name, value)) and len(set(value)) == len(value)
    )


_NAME = _Rule("a text that is not empty", _is_name)
_TEXT = _Rule("a text", lambda value: isinstance(value, str))
# True and False are int to Python.
_COUNT = _Rule(
    "an int of at least 1", lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1
)
_DURATION = _Rule("a positive timedelta", lambda value: isinstance(value, timedelta) and value > timedelta(0))

_RULES = {
    "group_id": _NAME,
    "topics": _Rule("a list of different topic names", _are_topics),
    "value_format": _Rule("Json(…) or Raw(…)", lambda value: isinstance(value, ValueFormat)),
    "sink": _Rule("a SqlTable(…)", lambda value: isinstance(value, SqlTable)),
    "transform": _or_none(_Rule("the import path of a function, 'package.module.function'", _TEXT.fits)),
    "max_records": _or_none(_COUNT, " for no limit"),
    "max_bytes": _or_none(_COUNT, " for no limit"),
    "time_budget": _or_none(_DURATION, " for no limit"),
    "on_data_loss": _one_of(*get_args(OnDataLoss)),
    "on_bad_record": _one_of(*get_args(OnBadRecord)),
    "max_dead_letters": _or_none(_COUNT, " for any number"),
    "isolation_level": _one_of("read_committed", "read_uncommitted"),
    "slice_offsets": _COUNT,
    "staging_dir": _or_none(_TEXT),
    "staging_retention": _DURATION,
    "lease": _DURATION,
    "idle_timeout": _DURATION,
    "mirror_to": _or_none(_Rule("the name of a consumer group", _is_name)),
    # Text, such as a template that nobody renders, would be true, and rows would be removed.
    "replace": _Rule("True or False", lambda value: isinstance(value, bool)),
    "offsets_schema": _or_none(_TEXT),
    "offsets_prefix": _TEXT,
    "kafka_conn_id": _NAME,
    "spark_conn_id": _NAME,
}
