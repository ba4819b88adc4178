"""Rules for single parameters, and how an error names one that breaks its rule. Imports nothing heavy: operators ask
when a DAG file is parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from airflow_kafka_offsets.core.templates import is_rendered_later, unrendered
from airflow_kafka_offsets.exceptions import ConfigurationError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


class Rule(NamedTuple):
    """What a parameter must be.

    :param expected: in words, for the error
    :param read: returns the value that a rendered template stands for; a text that is no such value stays a text
    """

    expected: str
    fits: Callable[[Any], bool]
    read: Callable[[str], Any] = str


def check(given: Mapping[str, Any], rules: Mapping[str, Rule], *, group: str = "") -> None:
    """Refuse values of a wrong type, and those that can mean nothing.

    :param given: parameters by name; others than those that have a rule are not looked at
    :param rules: by the name of the parameter
    :param group: the class that the parameters are fields of
    :raises ConfigurationError: says which parameter, what it must be, and which value was received
    """
    for name, rule in rules.items():
        if name in given and not rule.fits(given[name]):
            where = f"{group}.{name}" if group else name
            raise ConfigurationError(f"{where} must be {rule.expected}; got {name}={given[name]!r}")


def check_parsed(
    given: Mapping[str, Any], rules: Mapping[str, Rule], templated: Collection[str], *, group: str = ""
) -> None:
    """Refuse the same when a DAG is parsed, but for what Airflow renders later, and templates that it would not render.

    :param given: parameters by name
    :param templated: the names of those that Airflow renders
    :param group: the class that the parameters are fields of
    :raises ConfigurationError: says which parameter, and which value was received
    """
    for name in rules:
        if name not in given:
            continue
        for where, value in unrendered(name, given[name], is_rendered=name in templated):
            field = f"{group}.{where}" if group else where
            raise ConfigurationError(
                f"{field} is not templated, and {where}={value!r} would not be rendered; templated are "
                f"{', '.join(templated) or 'none'}"
            )
    known = {name: value for name, value in given.items() if name not in templated or not is_rendered_later(value)}
    check(known, rules, group=group)


def read_rendered(given: Mapping[str, Any], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return parameters with the numbers, and the None, that rendered texts stand for.

    :param given: parameters by name, after Airflow has rendered them
    :raises ConfigurationError: one cannot work; says which, and which value was received
    """
    read = {
        name: rules[name].read(value) if name in rules and isinstance(value, str) else value
        for name, value in given.items()
    }
    check(read, rules)
    return read


def from_attributes(cls: type[T], source: object, **others: Any) -> T:
    """Return a dataclass whose fields have the values of attributes of the same names.

    :param source: an operator, for example, that was given the fields as parameters
    :param others: fields that have other values
    """
    given = {field.name: getattr(source, field.name) for field in fields(cls) if field.name not in others}
    return cls(**given | others)


def assign(owner: object, given: Mapping[str, Any]) -> None:
    """Assign the parameters of a constructor to attributes of the same names.

    :param given: the local variables of the constructor, which has no others yet
    """
    for name in given.keys() - {"self", "kwargs", "__class__"}:
        setattr(owner, name, given[name])


def or_none(rule: Rule, meaning: str = "") -> Rule:
    """Return the rule that also allows None.

    :param meaning: of None, for the error
    """
    nothing = ("",) if rule.read is str else ("", "None")
    return Rule(
        f"{rule.expected}, or None{meaning}",
        lambda value: value is None or rule.fits(value),
        lambda text: None if text.strip() in nothing else rule.read(text),
    )


def either(rule: Rule, other: Rule, meaning: str = "") -> Rule:
    """Return the rule that allows what either of two allows.

    :param meaning: of a value that the other one allows, for the error
    """
    return Rule(
        f"{rule.expected}, or {other.expected}{meaning}",
        lambda value: rule.fits(value) or other.fits(value),
        lambda text: next((read for read in (rule.read(text), other.read(text)) if not isinstance(read, str)), text),
    )


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


def read_count(text: str) -> int | str:
    """Return the whole number that a text is; a text that is none as it is."""
    return int(text) if text.strip().isdecimal() else text


def _read_share(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


# True and False are int to Python.
COUNT = Rule(
    "an int of at least 1",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 1,
    read_count,
)

SHARE = Rule("a float between 0 and 1", lambda value: isinstance(value, float) and 0 < value < 1, _read_share)

MAX_RECORD_BYTES = 64 << 20
"""The default of `max_record_bytes`: far more than a broker accepts by default, and little enough for a Python worker
of Spark.
"""

FLAG = Rule(
    "True or False",
    lambda value: isinstance(value, bool),
    lambda text: {"true": True, "false": False}.get(text.strip().lower(), text),
)

DURATION = Rule("a positive timedelta", lambda value: isinstance(value, timedelta) and value > timedelta(0))
