"""What single parameters must be. Imports nothing heavy: operators ask when a DAG file is parsed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, Literal, NamedTuple, get_args

from airflow_kafka_offsets.exceptions import ConfigurationError
from airflow_kafka_offsets.formats import ValueFormat
from airflow_kafka_offsets.planning import OnDataLoss
from airflow_kafka_offsets.sinks import SqlTable

OnBadRecord = Literal["fail", "dead_letter"]
OnBusy = Literal["wait", "fail"]

_TEMPLATE = "{{"


class Rule(NamedTuple):
    """What a parameter must be.

    :param expected: in words, for the error
    """

    expected: str
    fits: Callable[[Any], bool]


def check(given: Mapping[str, Any], rules: Mapping[str, Rule] | None = None) -> None:
    """Refuse values of a wrong type, and those that can mean nothing.

    :param given: parameters by name; others than those that have a rule are not looked at
    :param rules: by the name of the parameter; None is those of `Pipeline`, `LoadOptions` and `replay`
    :raises ConfigurationError: says which parameter, what it must be, and which value was received
    """
    for name, rule in (_RULES if rules is None else rules).items():
        if name in given and not rule.fits(given[name]):
            raise ConfigurationError(f"{name} must be {rule.expected}; got {name}={given[name]!r}")


def check_untemplated(given: Mapping[str, Any], rules: Mapping[str, Rule], templated: Collection[str]) -> None:
    """Refuse the same when a DAG is parsed, and templates that Airflow would not render.

    :param given: parameters that are not templated
    :param templated: the names of those that are, for the error
    :raises ConfigurationError: says which parameter, and which value was received
    """
    check(given, rules)
    for name in rules:
        # Not only text: a sink has a name and a connection.
        if name in given and _TEMPLATE in repr(given[name]):
            raise ConfigurationError(
                f"{name} is not templated, and {name}={given[name]!r} would stay as it is; templated are {', '.join(templated) or 'none'}"
            )


def _or_none(rule: Rule, meaning: str = "") -> Rule:
    return Rule(f"{rule.expected}, or None{meaning}", lambda value: value is None or rule.fits(value))


def _one_of(*words: str) -> Rule:
    return Rule(f"one of {', '.join(words)}", lambda value: value in words)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _are_texts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)


def _are_topics(value: Any) -> bool:
    return (
        isinstance(value, list | tuple) and bool(value) and all(map(_is_name, value)) and len(set(value)) == len(value)
    )


_NAME = Rule("a text that is not empty", _is_name)
_TEXT = Rule("a text", lambda value: isinstance(value, str))
# True and False are int to Python.
_COUNT = Rule(
    "an int of at least 1", lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1
)
_FLAG = Rule("True or False", lambda value: isinstance(value, bool))
_TABLE = Rule("a SqlTable(…)", lambda value: isinstance(value, SqlTable))
_DURATION = Rule("a positive timedelta", lambda value: isinstance(value, timedelta) and value > timedelta(0))

_RULES = {
    "group_id": _NAME,
    "topics": Rule("a list of different topic names", _are_topics),
    "value_format": Rule("Json(…) or Raw(…)", lambda value: isinstance(value, ValueFormat)),
    "sink": _TABLE,
    "transform": _or_none(Rule("the import path of a function, 'package.module.function'", _TEXT.fits)),
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
    "on_busy": _one_of(*get_args(OnBusy)),
    "lease": _DURATION,
    "idle_timeout": _DURATION,
    "mirror_to": _or_none(Rule("the name of a consumer group", _is_name)),
    # Text, such as a template that nobody renders, would be true, and rows would be removed.
    "replace": _FLAG,
}
OPERATOR_RULES = _RULES | {
    "on_busy": _one_of("wait", "skip", "fail"),
    "offsets_schema": _or_none(_TEXT),
    "offsets_prefix": _TEXT,
    "conn_id": _or_none(_NAME),
    "offsets_conn_id": _NAME,
    "kafka_conn_id": _NAME,
    "spark_conn_id": _NAME,
}
VERIFY_RULES = OPERATOR_RULES | {"kafka_conn_id": _or_none(_NAME)}
REWIND_RULES = OPERATOR_RULES | {
    "replace": _or_none(_TABLE),
    "abandon_open_batch": _FLAG,
    "new_group": _FLAG,
    "new_cluster": _FLAG,
}
LAG_RULES = {
    "group_id": _NAME,
    "topics": Rule("a text or a list of texts", lambda value: isinstance(value, str) or _are_texts(value)),
    "offsets_conn_id": _NAME,
    "per_partition": _FLAG,
    "allow_incomplete": _FLAG,
    "poll_interval": _DURATION,
    "rearm_after": _DURATION,
    "isolation_level": _RULES["isolation_level"],
    "offsets_schema": _or_none(_TEXT),
    "offsets_prefix": _TEXT,
    "kafka_conn_id": _NAME,
}
