"""Templates in the parameters of sinks, formats and transforms. Airflow renders those of operators itself.

These are frozen dataclasses, so Airflow cannot render them in place: it calls `resolve`, as it does for references to
XComs, and takes what that returns. Imports nothing heavy: DAG files and Spark's tasks import the classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import MISSING, Field, fields, replace
from typing import Any, ClassVar, Self, cast

from airflow_kafka_offsets.exceptions import ConfigurationError

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
        given = {field.name: getattr(self, field.name) for field in _fields_of(self) if field.repr}
        defaults = {field.name: _default(field) for field in _fields_of(self)}
        shown = {name: value for name, value in given.items() if value != defaults[name]}
        return {"type": type(self).__name__} | shown

    def _read(self, field: Field[Any], rendered: Any) -> Any:
        return _read_number(field.name, rendered) if type(field.default) is int else rendered


def holds_template(value: Any) -> bool:
    """Return whether a text, or one within a collection or a `Templated` object, is a template."""
    return next(_templates(value), None) is not None


def is_rendered_later(value: Any) -> bool:
    """Return whether Airflow replaces a value of a templated parameter: a text with a template, or a reference to an
    XCom.
    """
    if isinstance(value, Templated):
        return False
    if isinstance(value, str):
        return bool(_TEMPLATE.search(value))
    if isinstance(value, Mapping):
        return any(map(is_rendered_later, value.values()))
    if isinstance(value, list | tuple | Set):
        return any(map(is_rendered_later, value))
    return hasattr(value, "iter_references")


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
    elif isinstance(value, Mapping):
        for key, held in value.items():
            yield from unrendered(f"a key of {name}", key, is_rendered=False)
            yield from unrendered(name, held, is_rendered=is_rendered)
    elif isinstance(value, list | tuple | Set):
        for element in value:
            yield from unrendered(name, element, is_rendered=is_rendered)
    elif isinstance(value, str):
        if not is_rendered and _TEMPLATE.search(value):
            yield name, value
    # Such as a sink of somebody else's, with a table's name.
    elif not hasattr(value, "template_fields") and not hasattr(value, "resolve") and _TEMPLATE.search(repr(value)):
        yield name, value


def _templates(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if _TEMPLATE.search(value):
            yield value
    elif isinstance(value, Templated):
        for name in value.template_fields:
            yield from _templates(getattr(value, name))
    elif isinstance(value, Mapping):
        for held in value.values():
            yield from _templates(held)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from _templates(element)


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
