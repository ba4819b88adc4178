"""Rules for single parameters, and how an error names one that breaks its rule. Imports nothing heavy: operators ask when a DAG file is parsed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from airflow_kafka_offsets.exceptions import ConfigurationError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_TEMPLATE = "{{"


class Rule(NamedTuple):
    """What a parameter must be.

    :param expected: in words, for the error
    """

    expected: str
    fits: Callable[[Any], bool]


def check(given: Mapping[str, Any], rules: Mapping[str, Rule]) -> None:
    """Refuse values of a wrong type, and those that can mean nothing.

    :param given: parameters by name; others than those that have a rule are not looked at
    :param rules: by the name of the parameter
    :raises ConfigurationError: says which parameter, what it must be, and which value was received
    """
    for name, rule in rules.items():
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


def from_attributes(cls: type[T], source: object, **others: Any) -> T:
    """Return a dataclass whose fields have the values of attributes of the same names.

    :param source: an operator, for example, that was given the fields as parameters
    :param others: fields that have other values
    """
    return cls(
        **{field.name: getattr(source, field.name) for field in fields(cls) if field.name not in others} | others
    )


def or_none(rule: Rule, meaning: str = "") -> Rule:
    """Return the rule that also allows None.

    :param meaning: of None, for the error
    """
    return Rule(f"{rule.expected}, or None{meaning}", lambda value: value is None or rule.fits(value))


def either(rule: Rule, other: Rule, meaning: str) -> Rule:
    """Return the rule that allows what either of two allows.

    :param meaning: of a value that the other one allows, for the error
    """
    return Rule(f"{rule.expected}, or {other.expected}{meaning}", lambda value: rule.fits(value) or other.fits(value))


def one_of(*words: str) -> Rule:
    """Return the rule that allows some words and nothing else."""
    return Rule(f"one of {', '.join(words)}", lambda value: value in words)


def is_name(value: Any) -> bool:
    """Return whether a value is text that is not blank."""
    return isinstance(value, str) and bool(value.strip())


def are_texts(value: Any) -> bool:
    """Return whether a value is a list of texts."""
    return isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)


NAME = Rule("a text that is not empty", is_name)

TEXT = Rule("a text", lambda value: isinstance(value, str))

# True and False are int to Python.
COUNT = Rule(
    "an int of at least 1", lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1
)

SHARE = Rule("a float between 0 and 1", lambda value: isinstance(value, float) and 0 < value < 1)

MAX_RECORD_BYTES = 64 << 20
"""The default of `max_record_bytes`: far more than a broker accepts by default, and little enough for a Python worker of Spark."""

FLAG = Rule("True or False", lambda value: isinstance(value, bool))

DURATION = Rule("a positive timedelta", lambda value: isinstance(value, timedelta) and value > timedelta(0))
