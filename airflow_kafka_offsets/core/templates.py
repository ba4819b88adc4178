"""Templates in the parameters of sinks, formats and transforms. Airflow renders those of operators itself.

These are frozen dataclasses, so Airflow cannot render them in place: it calls `resolve`, as it does for references to
XComs, and takes what that returns. Imports nothing heavy: DAG files and Spark's tasks import the classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from copy import copy
from dataclasses import MISSING, Field, fields, replace
from typing import Any, ClassVar, Self, TypeVar, cast

from airflow_kafka_offsets.exceptions import ConfigurationError

T = TypeVar("T")

_TEMPLATE = re.compile(r"\{\{|\{%|\{#")


class Templated:
    """A frozen dataclass with fields that are templates where they hold `{{` or `{%`.

    What such a field means is checked when it is rendered: the dataclass is constructed again then.
    """

    __slots__ = ()

    template_fields: ClassVar[tuple[str, ...]] = ()
    """The fields that are rendered."""

    def resolve(self, context: Any) -> Self:
        """Return the object with its templates rendered. Airflow calls this before the task runs.

        :raises ConfigurationError: a rendered value cannot work
        """
        changes = {}
        for field in _fields_of(self):
            value = getattr(self, field.name)
            if field.name not in self.template_fields or not holds_template(value):
                continue
            changes[field.name] = self._read(field, _render(value, context))
        return replace(cast("Any", self), **changes) if changes else self

    def serialize(self) -> dict[str, Any]:
        """Return what Rendered Templates shows: the fields that are given, without those that may hold secrets."""
        given = {field.name: getattr(self, field.name) for field in _fields_of(self) if field.repr and field.init}
        defaults = {field.name: _default(field) for field in _fields_of(self)}
        shown = {name: value for name, value in given.items() if value != defaults[name]}
        return as_json({"type": type(self).__name__, **shown})

    def _read(self, field: Field[Any], rendered: Any) -> Any:
        return _read_number(field.name, rendered) if type(field.default) is int else rendered


def as_json(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping with values in the types of JSON. Airflow 3.1 and 3.2 store what `serialize` returns as it is,
    and take a text that differs from one process to the next for another version of the DAG.
    """
    return {str(name): _as_json(value) for name, value in given.items()}


def _as_json(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return as_json(value)
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in value]
    if isinstance(value, Set):
        return sorted(map(str, value))
    if isinstance(value, Templated):
        return value.serialize()
    if callable(value) and hasattr(value, "__qualname__"):
        return f"<callable {value.__module__}.{value.__qualname__}>"
    return str(value)


def with_values(value: T, **values: Any) -> T:
    """Return a copy of a frozen dataclass with other values, also of fields that its constructor does not take.

    Its rules are not checked: these are values that the package adds.
    """
    made = copy(value)
    for name, each in values.items():
        object.__setattr__(made, name, each)
    return made


def holds_template(value: Any) -> bool:
    """Return whether a text, or one within a collection or a `Templated` object, is a template."""
    return _is_template(value) or any(map(holds_template, _held(value)))


def is_rendered_later(value: Any) -> bool:
    """Return whether Airflow replaces a value of a templated parameter: a text with a template, or a reference to an
    XCom.
    """
    if isinstance(value, Templated):
        return False
    return _is_template(value) or hasattr(value, "iter_references") or any(map(is_rendered_later, _held(value)))


def unrendered(name: str, value: Any, *, is_rendered: bool) -> Iterator[tuple[str, Any]]:
    """Yield the templates of a parameter that Airflow would not render, each with the name of the parameter.

    :param is_rendered: whether the parameter itself is templated
    """
    if isinstance(value, Templated):
        for field in _fields_of(value):
            where, held = f"{name}.{field.name}", getattr(value, field.name)
            if hasattr(held, "iter_references"):
                # Airflow would not let the task wait for the one that the XCom is of.
                yield where, held
            yield from unrendered(where, held, is_rendered=is_rendered and field.name in value.template_fields)
        return
    for key in value if isinstance(value, Mapping) else ():
        yield from unrendered(f"a key of {name}", key, is_rendered=False)
    for held in _held(value):
        yield from unrendered(name, held, is_rendered=is_rendered)
    if _is_foreign_template(value) or (not is_rendered and _is_template(value)):
        yield name, value


def _is_template(value: Any) -> bool:
    return isinstance(value, str) and bool(_TEMPLATE.search(value))


def _is_foreign_template(value: Any) -> bool:
    """Return whether an object shows a template that Airflow does not see, such as a sink of somebody else's, with a
    table's name.
    """
    is_seen = isinstance(value, str | Mapping | list | tuple | Set)
    is_rendered = hasattr(value, "template_fields") or hasattr(value, "resolve")
    return not is_seen and not is_rendered and bool(_TEMPLATE.search(repr(value)))


def _held(value: Any) -> Iterable[Any]:
    """Return what a collection, or the templated fields of a `Templated` object, hold."""
    if isinstance(value, Templated):
        return [getattr(value, name) for name in value.template_fields]
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple | Set) else ()


def _render(value: Any, context: Any) -> Any:
    if isinstance(value, str):
        # Other texts stay as they are: Jinja would drop the newline at their end.
        return context["task"].render_template(value, context) if _TEMPLATE.search(value) else value
    if isinstance(value, Templated):
        return value.resolve(context)
    if isinstance(value, Mapping):
        return {key: _render(held, context) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_render(element, context) for element in value)
    return value


def _read_number(name: str, rendered: Any) -> int:
    if not str(rendered).strip().isdecimal():
        raise ConfigurationError(f"{name} must be a whole number; it is rendered to {name}={rendered!r}")
    return int(rendered)


def _fields_of(value: Templated) -> tuple[Field[Any], ...]:
    return fields(cast("Any", value))


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default
