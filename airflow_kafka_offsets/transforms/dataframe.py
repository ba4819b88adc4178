"""A function from DataFrame to DataFrame that Spark's driver imports, and what calls such functions."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.exceptions import TransformError
from airflow_kafka_offsets.transforms.code import code_of, import_function, source_files
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
        digest = hashlib.sha256(self.path.encode())
        for file in source_files(self.path):
            digest.update(file.read_bytes())
        return digest.hexdigest()

    def prepared(self, columns: pa.Schema) -> DataFrameFunction:
        """Import the function, to learn now that it can be."""
        import_function(self.path)
        return self

    def apply(self, rows: DataFrame) -> DataFrame:
        return call(self.name, import_function(self.path), rows)


def call(name: str, function: Callable[..., Any], rows: DataFrame, modules: Iterable[ModuleType] = ()) -> DataFrame:
    """Call the user's function.

    :param name: of the transform
    :param modules: that the executors need not have, beside the function's own
    :raises TransformError: it raised, or did not return a DataFrame
    """
    from pyspark import cloudpickle

    # Sends UDFs of the transform's module to the executors as code: the executors need not have the module.
    own = sys.modules.get(code_of(function).__module__)
    for module in [*modules, *([own] if own is not None else [])]:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        result = function(rows)
    except Exception as error:
        raise user_error(f"Transform {name!r}", error) from None
    if not hasattr(result, "mapInArrow"):
        raise TransformError(f"Transform {name!r} returned {type(result).__name__}, not a DataFrame")
    frame: DataFrame = result
    return frame
