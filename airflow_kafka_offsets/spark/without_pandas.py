"""Keeping others from importing pandas, which takes most of a second, in processes that have no use for it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is of no use in this process", name=fullname)


@contextmanager
def hidden_pandas() -> Iterator[None]:
    """Have pandas look as if it were not installed, to those who import it only to know its types: most of a second.

    PySpark does so before its first call into the JVM, and pyarrow with the first value that it makes.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@cache
def do_without_pandas() -> None:
    """The same for good, in a process that has no use for it."""
    sys.meta_path.insert(0, _NoPandas())
