"""Modules that travel as source: read where they can be imported, and imported where they cannot."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from airflow_kafka_offsets.exceptions import TransformError


class Source(NamedTuple):
    """A module.

    :param file: where it was read, for tracebacks
    """

    text: str
    file: str
    is_package: bool


def read_sources(modules: Iterable[ModuleType]) -> dict[str, Source]:
    """Return the sources of modules, and of all that is in those that are packages, by their names.

    :raises TransformError: a module has no source
    """
    sources: dict[str, Source] = {}
    for module in modules:
        file = Path(getattr(module, "__file__", None) or "")
        if file.suffix != ".py":
            raise TransformError(
                f"modules: {module.__name__!r} is no file of Python source, and cannot be sent; install it there"
            )
        if file.name != "__init__.py":
            sources[module.__name__] = _read(file)
            continue
        for part in sorted(file.parent.rglob("*.py")):
            names = part.relative_to(file.parent).with_suffix("").parts
            names = names[:-1] if names[-1] == "__init__" else names
            sources[".".join([module.__name__, *names])] = _read(part)
    return sources


def _read(file: Path) -> Source:
    return Source(file.read_text(encoding="utf-8"), str(file), file.name == "__init__.py")


class _Importer(MetaPathFinder, InspectLoader):
    """Imports modules from their sources, before any of the same names that are installed."""

    def __init__(self) -> None:
        self.sources: dict[str, Source] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self.sources:
            source = self.sources[fullname]
            spec = spec_from_loader(fullname, self, origin=source.file, is_package=source.is_package)
            assert spec is not None
            spec.has_location = True  # a module has a __file__ then
            return spec
        if any(name.startswith(f"{fullname}.") for name in self.sources) and not _is_elsewhere(fullname, path):
            return ModuleSpec(fullname, None, is_package=True)
        return None

    def is_package(self, fullname: str) -> bool:
        return self.sources[fullname].is_package

    def get_source(self, fullname: str) -> str:
        return self.sources[fullname].text

    def exec_module(self, module: ModuleType) -> None:
        source = self.sources[module.__name__]
        exec(compile(source.text, source.file, "exec"), vars(module))  # noqa: S102 - it is the user's own module


def _is_elsewhere(name: str, path: Sequence[str] | None) -> bool:
    others = (finder for finder in sys.meta_path if finder is not _IMPORTER)
    return any(finder.find_spec(name, path) is not None for finder in others)


_IMPORTER = _Importer()


def install(sources: Mapping[str, Source]) -> None:
    """Let modules be imported from their sources, from now on.

    A process that can import them itself has done so, and keeps them. Spark uses a process for several loads: another
    source of a module that came from here replaces it.
    """
    for name, source in sources.items():
        if _IMPORTER.sources.get(name) != source and getattr(sys.modules.get(name), "__loader__", None) is _IMPORTER:
            del sys.modules[name]
    _IMPORTER.sources.update(sources)
    if sources and _IMPORTER not in sys.meta_path:
        sys.meta_path.insert(0, _IMPORTER)
