"""The user's functions: import them, find the files of their code, and send them to other processes by value."""

from __future__ import annotations

import base64
import hashlib
import inspect
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import ConfigurationError, KafkaOffsetsError, TransformError
from airflow_kafka_offsets.transforms.sources import Source, install, read_sources

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
        raise raised_as(f"{what} is no import path; write 'package.module.function'")
    function = getattr(_import(module_name, what, raised_as), name, None)
    if not callable(function):
        raise raised_as(f"{what}: module {module_name!r} has no function {name!r}")
    found: Callable[..., Any] = function
    return found


def _import(module_name: str, what: str, raised_as: type[KafkaOffsetsError] = TransformError) -> ModuleType:
    try:
        return import_module(module_name)
    except ImportError as error:
        raise raised_as(
            f"{what}: module {module_name!r} cannot be imported: {error}. It has to be importable where "
            "the Airflow worker runs, for example from the DAG bundle or from an installed package."
        ) from error


def source_files(path: str) -> list[Path]:
    """Return the files with the code of a function: of the module that defines it, and of the module that its path
    names.

    :param path: its import path
    """
    return _files([path.rpartition(".")[0], code_of(import_function(path)).__module__])


def package_files(modules: Iterable[str]) -> list[Path]:
    """Return the files of modules, and of all that is in those that are packages.

    :raises TransformError: one of them cannot be imported
    """
    sources = read_sources(_import(name, f"modules={list(modules)!r}") for name in modules)
    return [Path(source.file) for source in sources.values()]


def _files(modules: Iterable[str | None]) -> list[Path]:
    """Return the files of imported modules."""
    names = [name for name in dict.fromkeys(modules) if name is not None]
    files = [getattr(sys.modules.get(name), "__file__", None) for name in names]
    # The file of an extension module is binary, and decides as much. A built-in module has no file.
    return [Path(file) for file in files if file is not None]


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
    :param modules: those that travel with it, beside the module that defines it; they are imported here
    :raises TransformError: a module cannot be imported, or the function holds what cannot be sent
    """
    from pyspark import cloudpickle

    sources = read_sources(_import(name, f"{what}: modules={list(modules)!r}") for name in modules)
    own = sys.modules.get(code_of(function).__module__)
    try:
        with by_value([own] if own is not None and own.__name__ not in sources else []):
            pickled = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise TransformError(
            f"{what} cannot be sent to Spark: {type(error).__name__}: {shortened(str(error))}. What it uses of its "
            "module travels with it; create connections, locks and clients inside of the function"
        ) from None
    sent = pickle.dumps(({name: tuple(source) for name, source in sources.items()}, pickled))
    return f"{_PYTHON}:{base64.b64encode(sent).decode()}"


@contextmanager
def by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    """Send what is defined in modules as code, for the duration of the block."""
    from pyspark import cloudpickle

    registered = cloudpickle.cloudpickle.list_registry_pickle_by_value()  # type: ignore[no-untyped-call]
    added = [
        module
        for module in dict.fromkeys(modules)
        if module.__name__ not in registered and module.__name__ != "__main__"
    ]
    for module in added:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


def from_text(what: str, text: str) -> Callable[..., Any]:
    """Return the function that `to_text` converted, in another process.

    :raises ConfigurationError: this Python, or its PySpark, is another one than the worker's, or a module is missing
        here
    """
    python, _, encoded = text.partition(":")
    if python != _PYTHON:
        raise ConfigurationError(
            f"{what} was sent by the Airflow worker as code of Python {python}, and Spark runs Python {_PYTHON}: have "
            "both run the same"
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
            f"{what} cannot be read by Spark: {error}. Have the worker and Spark run the same version of PySpark, and "
            "of what the function imports"
        ) from error
    return function
