"""Hide pandas from processes that do not need it: PySpark and pyarrow, which import it if they find it, take most of a
second for that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.abc import MetaPathFinder


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is hidden in this process", name=fullname)


@contextmanager
def hidden_pandas() -> Iterator[None]:
    """Let pandas seem not to be installed, for the duration of the block."""
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


@cache
def without_pandas() -> None:
    """Let pandas seem not to be installed, until the process ends."""
    sys.meta_path.insert(0, _NoPandas())
