"""Parts of JSON, and JSON of which a part is another."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any


def nodes(plain: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths to all that is in JSON."""
    pairs = plain.items() if isinstance(plain, dict) else enumerate(plain) if isinstance(plain, list) else ()
    for name, each in pairs:
        yield (*above, name)
        yield from nodes(each, (*above, name))


def at(plain: Any, path: tuple[Any, ...]) -> Any:
    """Return the part that a path leads to."""
    for name in path:
        plain = plain[name]
    return plain


def changed(plain: Any, path: tuple[Any, ...], how: str, value: Callable[[], Any]) -> Any:
    """Return JSON of which a part is removed, is there twice, or is another value.

    :param how: `remove`, `twice` or `set`
    """
    made = copy.deepcopy(plain)
    parent, last = at(made, path[:-1]), path[-1]
    if how == "remove":
        del parent[last]
    elif how == "twice" and isinstance(parent, list):
        parent.append(parent[last])
    else:
        parent[last] = value()
    return made
