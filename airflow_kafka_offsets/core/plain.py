"""Objects of plain data that somebody else may have written."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")


def checked(kind: type[T], fields: Mapping[str, Any]) -> T:
    """Return an object of plain values, whose numbers a database can store.

    :raises TypeError: a value has another type, or there is none, or one too many
    :raises ValueError: a number is too large, or a text is none of Unicode
    """
    made, kinds = kind(**fields), _kinds(kind)  # type: ignore[arg-type]
    for name, value in fields.items():
        if isinstance(value, str):
            value.encode()
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{name} is too large")
        kind_of = kinds[name]
        # To Python, a truth value is a number.
        is_odd = isinstance(value, bool) and bool not in (kind_of, *get_args(kind_of))
        if kind_of is not Any and (is_odd or not isinstance(value, kind_of)):
            raise TypeError(f"{name} is of the type {type(value).__name__}")
    return made


@cache
def _kinds(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a class."""
    return {name: tuple if get_origin(of) is tuple else of for name, of in get_type_hints(kind).items()}
