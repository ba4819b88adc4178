"""The tree of errors is what its documentation says."""

import inspect
import pickle
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from airflow_kafka_offsets import exceptions
from airflow_kafka_offsets.exceptions import KafkaOffsetsError, RecordError, Violation

ROOT = Path(__file__).parents[1]

_BULLET = re.compile(r"^(?P<indent> *)\* `(?P<name>\w+)`(?P<retriable> \(retriable\))?", re.MULTILINE)


class Documented(NamedTuple):
    parent: str | None
    retriable: bool


def documented_tree() -> dict[str, Documented]:
    tree: dict[str, Documented] = {}
    path: list[tuple[int, str]] = []
    for bullet in _BULLET.finditer(inspect.getdoc(exceptions) or ""):
        indent = len(bullet["indent"])
        path = [(depth, name) for depth, name in path if depth < indent]
        tree[bullet["name"]] = Documented(path[-1][1] if path else None, bullet["retriable"] is not None)
        path.append((indent, bullet["name"]))
    return tree


def defined_classes() -> dict[str, type[KafkaOffsetsError]]:
    return {
        name: kind
        for name, kind in vars(exceptions).items()
        if inspect.isclass(kind) and issubclass(kind, KafkaOffsetsError)
    }


def test_the_documented_tree_names_exactly_the_classes_that_exist() -> None:
    assert sorted(documented_tree()) == sorted(defined_classes())


@pytest.mark.parametrize("name", sorted(defined_classes()))
def test_a_class_has_the_documented_parent(name: str) -> None:
    parent = documented_tree()[name].parent
    expected: type = defined_classes()[parent] if parent else Exception
    assert defined_classes()[name].__bases__ == (expected,)


@pytest.mark.parametrize("name", sorted(defined_classes()))
def test_a_class_is_retriable_where_the_documentation_says_so(name: str) -> None:
    assert defined_classes()[name].retriable is documented_tree()[name].retriable


@pytest.mark.parametrize("name", sorted(defined_classes()))
def test_every_class_says_what_it_is(name: str) -> None:
    assert vars(defined_classes()[name]).get("__doc__")


# Bases that nothing raises, and errors of rewinds, mirrors and verifications.
_NOT_OF_LOADS = {
    "KafkaOffsetsError",
    "PlanningError",
    "OpenBatchError",
    "RewindConflictError",
    "MirrorError",
    "VerificationError",
}


def who_retries() -> dict[str, list[str]]:
    """Return the last cells of the rows of `docs/operate.md` that name each class."""
    section = (ROOT / "docs" / "operate.md").read_text().partition("\n## Retries\n")[2].partition("\n## ")[0]
    found: dict[str, list[str]] = defaultdict(list)
    for row in re.findall(r"^\| (`.*`) \|.*\| (.*) \|$", section, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", row[0]):
            found[name].append(row[1])
    return found


def test_the_documents_say_once_of_each_error_of_a_load_who_retries_it() -> None:
    expected = dict.fromkeys(defined_classes().keys() - _NOT_OF_LOADS, 1)
    assert {name: len(cells) for name, cells in who_retries().items()} == expected


@pytest.mark.parametrize("name", sorted(defined_classes().keys() - _NOT_OF_LOADS))
def test_the_documents_say_that_airflow_retries_what_is_retriable(name: str) -> None:
    (cell,) = who_retries()[name]
    # Of an attempt that was fenced, Airflow decides as of any other error.
    by_airflow = defined_classes()[name].retriable or name == "FencedError"
    assert cell.startswith("Airflow" if by_airflow else "nobody: ")


# Errors that are made of more than a message.
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "RecordError": ("it is too long", "orders", 3, 42),
    "VerificationError": ("loader", (Violation("a row is missing", "orders", 3, 42, 7), Violation("another")), 2),
}


@pytest.mark.parametrize("name", sorted(defined_classes()))
def test_an_error_is_pickled_with_all_that_it_says(name: str) -> None:
    arguments = _ARGUMENTS.get(name, ("a message",))
    error = defined_classes()[name](*arguments)

    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert copy.args == error.args == arguments
    assert (str(copy), repr(copy), vars(copy)) == (str(error), repr(error), vars(error))


def test_a_record_error_carries_the_records_place_and_names_it() -> None:
    error = RecordError("it is too long", topic="orders", partition=3, offset=42)
    assert (error.reason, error.topic, error.partition, error.offset) == ("it is too long", "orders", 3, 42)
    assert "topic 'orders' partition 3 offset 42 cannot be loaded: it is too long" in str(error)
