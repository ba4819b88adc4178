"""The user's functions: import them, find the files of their code, and send them to other processes by value.

Modules that they name travel as source: read where they can be imported, and imported where they cannot.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import ConfigurationError, KafkaOffsetsError, TransformError


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
                f"modules: {module.__name__!r} is not a Python source file, and cannot be sent; install it there"
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


_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def import_function(
    path: str, what: str | None = None, raised_as: type[KafkaOffsetsError] = TransformError
) -> Callable[..., Any]:
    """Import `package.module.function`.

    :param what: names it, for messages; None is a transform
    :raises KafkaOffsetsError: as `raised_as`: the module or the function does not exist, or is not callable
    """
    what = what or f"transform={path!r}"
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise raised_as(f"{what} is not an import path; write 'package.module.function'")
    function: Callable[..., Any] | None = getattr(_import(module_name, what, raised_as), name, None)
    if not callable(function):
        raise raised_as(f"{what}: module {module_name!r} has no function {name!r}")
    return function


def _import(module_name: str, what: str, raised_as: type[KafkaOffsetsError] = TransformError) -> ModuleType:
    try:
        return import_module(module_name)
    except ImportError as error:
        raise raised_as(
            f"{what}: module {module_name!r} cannot be imported: {error}. It must be importable on the Airflow "
            "worker, for example from the DAG bundle or from an installed package."
        ) from error


def source_files(path: str) -> list[Path]:
    """Return the files with the code of a function: of the module that defines it, and of the module that its path
    names.

    :param path: its import path
    """
    modules = dict.fromkeys([path.rpartition(".")[0], code_of(import_function(path)).__module__])
    files = [getattr(sys.modules.get(name), "__file__", None) for name in modules]
    # The file of an extension module is binary, and decides as much. A built-in module has no file.
    return [Path(file) for file in files if file is not None]


def package_files(modules: Iterable[str]) -> list[Path]:
    """Return the files of modules, and of all that is in those that are packages.

    :raises TransformError: one of them cannot be imported
    """
    sources = read_sources(_import(name, f"modules={list(modules)!r}") for name in modules)
    return [Path(source.file) for source in sources.values()]


def code_of(function: Callable[..., Any]) -> Any:
    """Return the function, or the class of an object with `__call__`, whose code a callable runs."""
    code: Any = inspect.unwrap(function)
    while isinstance(code, partial):
        code = inspect.unwrap(code.func)
    return code if inspect.isroutine(code) or inspect.isclass(code) else type(code)


def digest(files: Iterable[Path]) -> str:
    """Return a digest of the contents of files."""
    contents = hashlib.sha256()
    for file in files:
        contents.update(file.read_bytes())
    return contents.hexdigest()


def to_text(what: str, function: Callable[..., Any], modules: Iterable[str]) -> str:
    """Return a function as text, for processes that cannot import it.

    :param what: it is, for messages
    :param modules: those that travel with it, besides the module that defines it; they are imported here
    :raises TransformError: a module cannot be imported, or the function holds what cannot be sent
    """
    from pyspark import cloudpickle

    sources = read_sources(_import(name, f"{what}: modules={list(modules)!r}") for name in modules)
    own = sys.modules.get(code_of(function).__module__)
    try:
        with _by_value(None if own is None or own.__name__ in sources else own):
            pickled = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise TransformError(
            f"{what} cannot be sent to Spark: {type(error).__name__}: {shortened(str(error))}. The objects of its "
            "module that it uses are sent with it; create connections, locks and clients inside the function"
        ) from None
    sent = pickle.dumps(({name: tuple(source) for name, source in sources.items()}, pickled))
    return f"{_PYTHON}:{base64.b64encode(sent).decode()}"


@contextmanager
def _by_value(module: ModuleType | None) -> Iterator[None]:
    """Send what is defined in a module as code, for the duration of the block."""
    from pyspark import cloudpickle

    registered = cloudpickle.cloudpickle.list_registry_pickle_by_value()  # type: ignore[no-untyped-call]
    if module is None or module.__name__ in registered or module.__name__ == "__main__":
        yield
        return
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


def from_text(what: str, text: str) -> Callable[..., Any]:
    """Return the function that `to_text` converted, in another process.

    :raises ConfigurationError: this Python, or its PySpark, is another one than the worker's, or a module is missing
        here
    """
    python, _, encoded = text.partition(":")
    if python != _PYTHON:
        raise ConfigurationError(
            f"{what} was sent by the Airflow worker as code of Python {python}, but Spark runs Python {_PYTHON}: use "
            "the same version"
        )
    try:
        # The worker wrote it, into the job that only its application gets, or into the code that Spark sends.
        sources, pickled = pickle.loads(base64.b64decode(encoded))  # noqa: S301
        install({name: Source(*source) for name, source in sources.items()})
        function: Callable[..., Any] = pickle.loads(pickled)  # noqa: S301
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{what}: Spark's Python has no module {error.name!r}: name it in modules=[…] to send it along, or install "
            "it where the executors run"
        ) from error
    except AttributeError as error:
        raise ConfigurationError(
            f"{what} cannot be read by Spark: {error}. Install the same versions of PySpark, and of the modules that "
            "the function imports, on the worker and where Spark runs"
        ) from error
    return function
