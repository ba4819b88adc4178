"""Import the user's DataFrame transform, call it, check the columns that it returns, and find the files of its code."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.core.text import shortened
from airflow_kafka_offsets.exceptions import TargetError, TransformError
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.staging.rows import TargetColumns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


Transform = Callable[["DataFrame"], "DataFrame"]


def load_transform(path: str) -> Transform:
    """Import `package.module.function`.

    :raises TransformError: the module or the function does not exist, or is not callable
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


def source_files(path: str) -> list[Path]:
    """Return the files with the code of a transform: of the module that defines it, and of the module that its path names.

    :param path: its import path
    """
    code = _transform_code(load_transform(path))
    modules = dict.fromkeys([getattr(code, "__module__", None), path.rpartition(".")[0]])
    files = [getattr(sys.modules.get(name), "__file__", None) for name in modules if name is not None]
    # The file of an extension module is binary, and decides as much. A built-in module has no file.
    return [Path(file) for file in files if file is not None]


def _transform_code(transform: Transform) -> Any:
    """Return the function, or the class of an object with `__call__`, whose code a transform runs."""
    code: Any = inspect.unwrap(transform)
    while isinstance(code, partial):
        code = inspect.unwrap(code.func)
    return code if inspect.isroutine(code) or inspect.isclass(code) else type(code)


def check_columns(columns: list[str], target: TargetColumns, transform: str) -> None:
    """Compare the columns that a transform returns with those of the target.

    :raises TargetError: the target lacks columns, or needs columns that the transform drops; the message names them
    """
    if target.known is None:
        return
    extra = [repr(name) for name in columns if name not in target.known and not name.startswith("_kafka_")]
    if target.may_grow:
        extra = []
    missing = [repr(name) for name in target.required if name not in columns]
    problems = [f"the target has no column {', '.join(extra)}"] if extra else []
    if missing:
        problems.append(f"the target needs column {', '.join(missing)}, which the transform drops")
    if problems:
        raise TargetError(f"Transform {transform!r} does not fit table {target.table!r}: {'; '.join(problems)}")


def apply_transform(transform: Transform, rows: DataFrame, job: StageJob) -> DataFrame:
    """Call a transform.

    :raises TransformError: the transform raised, or did not return a DataFrame
    """
    from pyspark import cloudpickle

    # Sends UDFs of the transform's module to the executors as code: the executors need not have the module.
    module = sys.modules.get(_transform_code(transform).__module__)
    if module is not None:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        result = transform(rows)
    except Exception as error:
        reason = f"{type(error).__name__}: {shortened(str(error))}"
        raise TransformError(f"Transform {job.transform!r} raised {reason}") from error
    if not hasattr(result, "mapInArrow"):
        raise TransformError(f"Transform {job.transform!r} returned {type(result).__name__}, not a DataFrame")
    return result
