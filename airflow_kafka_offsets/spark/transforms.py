"""The user's DataFrame transform: imported, called, and its columns checked."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.exceptions import TargetError, TransformError
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.staging.target_columns import TargetColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


Transform = Callable[["DataFrame"], "DataFrame"]


def load_transform(path: str) -> Transform:
    """Import `package.module.function`.

    :raises TransformError: there is no such module or function, or it is not callable
    """
    module_name, _, name = path.rpartition(".")
    if not module_name:
        raise TransformError(f"transform={path!r} is no import path; write 'package.module.function'")
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise TransformError(
            f"transform={path!r}: module {module_name!r} cannot be imported: {error}. It has to be importable where "
            "the Airflow worker runs, for example from the DAG bundle or from an installed package."
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise TransformError(f"transform={path!r}: module {module_name!r} has no function {name!r}")
    transform: Transform = function
    return transform


def transform_code(transform: Transform) -> Any:
    """Return the function, or the class of an object with `__call__`, whose code a transform runs."""
    code: Any = inspect.unwrap(transform)
    while isinstance(code, partial):
        code = inspect.unwrap(code.func)
    return code if inspect.isroutine(code) or inspect.isclass(code) else type(code)


def check_columns(columns: list[str], target: TargetColumns, transform: str) -> None:
    """Compare the columns that a transform returns with those of the target.

    :raises TargetError: naming what the target lacks, and what it cannot do without
    """
    if target.known is None:
        return
    extra = [name for name in columns if name not in target.known and not name.startswith("_kafka_")]
    missing = [name for name in target.required if name not in columns]
    if extra or missing:
        told = [f"the target has no column {', '.join(map(repr, extra))}"] if extra else []
        told += (
            [f"the target needs column {', '.join(map(repr, missing))}, which the transform drops"] if missing else []
        )
        raise TargetError(f"Transform {transform!r} does not fit table {target.table!r}: {'; '.join(told)}")


def apply_transform(transform: Transform, rows: DataFrame, job: StageJob) -> DataFrame:
    """Call the transform.

    :raises TransformError: it raised, or did not return a DataFrame
    """
    _pickle_by_value(transform)
    try:
        result = transform(rows)
    except Exception as error:
        raise TransformError(f"Transform {job.transform!r} raised {type(error).__name__}: {error}") from error
    if not hasattr(result, "mapInArrow"):
        raise TransformError(f"Transform {job.transform!r} returned {type(result).__name__}, not a DataFrame")
    return result


def _pickle_by_value(transform: Transform) -> None:
    """A UDF in the transform's module reaches the executors as code: they need not have the module."""
    from pyspark import cloudpickle

    module = sys.modules.get(transform_code(transform).__module__)
    if module is not None:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
