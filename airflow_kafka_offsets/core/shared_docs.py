"""Docstrings of classes that share parameters. One class describes a parameter, others refer to that class, and
`help()` shows the description.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")

_DESCRIBED = re.compile(r"^:param (\w+):.*(?:\n[ ]{4}.*)*", re.MULTILINE)

_REFERRED = re.compile(r"\s*As for `(\w+)`:\s+((?:`\w+`(?:,\s+|))+|every parameter but `\w+`)\.")


def complete_docs(*others: type) -> Callable[[T], T]:
    """Return a decorator that adds parameters to a docstring which refers to other classes for them.

    :param others: the classes that it names
    """

    def complete(described: T) -> T:
        text = inspect.getdoc(described)
        if text is not None:  # as with -OO
            names = list(inspect.signature(described).parameters)  # type: ignore[arg-type]
            described.__doc__ = _completed(text, {other.__name__: _parameters(other) for other in others}, names)
        return described

    return complete


def _parameters(of: object) -> dict[str, str]:
    return {match[1]: match[0] for match in _DESCRIBED.finditer(inspect.getdoc(of) or "")}


def _completed(text: str, others: Mapping[str, Mapping[str, str]], order: list[str]) -> str:
    """Return a docstring with all parameters in the order of the signature."""
    found: dict[str, str] = {}
    for other, referred in _REFERRED.findall(text):
        names = re.findall(r"`(\w+)`", referred)
        if referred.startswith("every"):
            names = [name for name in others[other] if name not in names]
        found |= {name: others[other][name] for name in names}
    text = _REFERRED.sub("", text)
    found |= {match[1]: match[0] for match in _DESCRIBED.finditer(text)}
    rest = _DESCRIBED.sub("\0", text)
    head, _, tail = rest.partition("\0")
    blocks = "\n".join(found[name] for name in sorted(found, key=order.index))
    return f"{head.rstrip()}\n\n{blocks}\n{tail.replace(chr(0), '').strip()}\n"
