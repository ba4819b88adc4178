"""Functions from DataFrame to DataFrame: one that Spark's driver imports, and the body of a task that is decorated with
`@task.kafka_batch`, which travels by value.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.core.text import first_few
from airflow_kafka_offsets.exceptions import ConfigurationError, TransformError
from airflow_kafka_offsets.transforms.code import (
    code_of,
    digest,
    from_text,
    import_function,
    package_files,
    source_files,
    to_text,
)
from airflow_kafka_offsets.transforms.user_errors import user_error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True, slots=True)
class DataFrameFunction:
    """A function from DataFrame to DataFrame, which users write as text.

    :param path: its import path, `package.module.function`
    """

    kind: ClassVar[str] = "dataframe"
    needs_path: ClassVar[bool] = True
    path: str

    @property
    def name(self) -> str:
        return self.path

    def fingerprint(self) -> str:
        return f"{self.path} {digest(source_files(self.path))}"

    def prepared(self, columns: pa.Schema) -> DataFrameFunction:
        """Import the function, to learn now that it can be."""
        import_function(self.path)
        return self

    def apply(self, rows: DataFrame) -> DataFrame:
        return call(self.name, import_function(self.path), rows)


def call(name: str, function: Callable[..., Any], rows: DataFrame, modules: Iterable[ModuleType] = ()) -> DataFrame:
    """Call the user's function.

    :param name: of the transform
    :param modules: that the executors need not have, besides the function's own
    :raises TransformError: it raised, or did not return a DataFrame
    """
    from pyspark import cloudpickle

    # Sends UDFs of the transform's module to the executors as code: the executors need not have the module.
    own = sys.modules.get(code_of(function).__module__)
    for module in [*modules, *([own] if own is not None else [])]:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        result: DataFrame = function(rows)
    except Exception as error:
        raise user_error(f"Transform {name!r}", error) from None
    if not hasattr(result, "mapInArrow"):
        raise TransformError(f"Transform {name!r} returned {type(result).__name__}, not a DataFrame")
    return result


def check_types(name: str, rows: DataFrame) -> None:
    """Check the types of what a transform returned.

    :param name: of the transform
    :raises TransformError: a column is an interval, of which Arrow has not all
    """
    if intervals := [field.name for field in rows.schema.fields if "interval" in field.dataType.typeName()]:
        names = first_few(map(repr, intervals))
        raise TransformError(f"Transform {name!r} returns {names} as INTERVAL, which no target can have: cast it")


@dataclass(frozen=True)
class TaskBody:
    """A function from DataFrame to DataFrame, as code.

    :param function: its name, for messages and for the history
    :param code: what `code.to_text` returned
    :param source: a digest of its source
    :param modules: that travel with it
    """

    kind: ClassVar[str] = "body"
    needs_path: ClassVar[bool] = False
    function: str
    code: str = field(repr=False)
    source: str = field(repr=False)
    modules: Sequence[str] = ()

    @classmethod
    def of(
        cls, function: Callable[..., Any], arguments: Mapping[str, Any] | None = None, modules: Sequence[str] = ()
    ) -> TaskBody:
        """Return the transform that calls a function.

        :param arguments: of the function, besides the DataFrame
        :param modules: that travel with it, besides its own
        :raises ConfigurationError: an argument is not plain data
        :raises TransformError: the function cannot be sent, or a module cannot be imported
        """
        name, given = function.__qualname__, dict(arguments or {})
        what = f"Transform {name!r}"
        try:
            text = json.dumps([given, _outer_values(function)], sort_keys=True)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{what}: its arguments must be what JSON can hold; got {given!r}") from error
        code = to_text(what, partial(function, **given) if given else function, modules)
        own = inspect.getsourcefile(code_of(function))
        files = [*([Path(own)] if own is not None else []), *package_files(modules)]
        return cls(name, code, hashlib.sha256(f"{name} {text} {digest(files)}".encode()).hexdigest(), modules)

    @property
    def name(self) -> str:
        return self.function

    def fingerprint(self) -> str:
        return f"{self.function} {self.source}"

    def prepared(self, columns: pa.Schema) -> TaskBody:
        return self

    def apply(self, rows: DataFrame) -> DataFrame:
        function = from_text(f"Transform {self.name!r}", self.code)
        # What UDFs use of them is sent to the executors as code.
        return call(self.name, function, rows, [import_module(name) for name in self.modules])


def _outer_values(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the plain values of functions around this one: a DAG file may make several tasks of one function."""
    try:
        outer = inspect.getclosurevars(inspect.unwrap(function)).nonlocals
    except TypeError:  # no function of Python's
        return {}
    plain = (str, int, float, bool, type(None))
    return {name: value if isinstance(value, plain) else type(value).__name__ for name, value in outer.items()}
