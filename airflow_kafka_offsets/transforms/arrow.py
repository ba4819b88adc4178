"""A function from Arrow record batch to Arrow record batch, in the pass that decodes the records."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_kafka_offsets.core.templates import Templated, with_values
from airflow_kafka_offsets.exceptions import ConfigurationError, TransformError
from airflow_kafka_offsets.transforms.transform import Transformed

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_offsets.transforms.transform import BatchFunction

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ArrowTransform(Templated):
    """A function from `pyarrow.RecordBatch` to `pyarrow.RecordBatch`.

    It gets the declared columns and the origin columns (`_kafka_topic`, …). It may return fewer or more rows, and other
    columns, which must be the same for all batches. It is called once with an empty batch before anything is read.

    :param path: its import path, `package.module.function` (templated)
    :param modules: names of modules that travel to the executors besides the function's own (templated)
    :ivar code: the function; added on the worker
    :ivar columns: what it returns; added on the worker
    """

    kind: ClassVar[str] = "arrow"
    template_fields: ClassVar[tuple[str, ...]] = ("path", "modules")
    path: str
    modules: Sequence[str] = ()
    code: str = field(default="", repr=False, init=False)
    columns: pa.Schema | None = field(default=None, repr=False, init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not isinstance(self.modules, list | tuple):
            raise ConfigurationError(
                "ArrowTransform needs the import path of a function, 'package.module.function', and modules as a list "
                f"of names; got {self.path!r} and modules={self.modules!r}"
            )

    @property
    def name(self) -> str:
        return self.path

    @property
    def _what(self) -> str:
        return f"Transform {self.path!r}"

    def fingerprint(self) -> str:
        from airflow_kafka_offsets.transforms.code import digest, package_files, source_files

        return f"{self.path} {digest([*source_files(self.path), *package_files(self.modules)])}"

    def prepared(self, columns: pa.Schema) -> ArrowTransform:
        from airflow_kafka_offsets.transforms.code import import_function, to_text
        from airflow_kafka_offsets.transforms.columns import known_columns

        function = import_function(self.path)
        prepared = with_values(self, code=to_text(self._what, function, self.modules), columns=None)
        try:
            result = function(_empty(columns))
        except Exception as error:
            log.info(
                "%s cannot be called with an empty batch (%s): its columns are checked with the first records",
                self._what,
                type(error).__name__,
            )
            return prepared
        return with_values(prepared, columns=known_columns(_batch(self._what, result).schema, self._what))

    def result(self, columns: pa.Schema) -> pa.Schema | None:
        return self.columns

    def function(self, columns: pa.Schema) -> BatchFunction:
        from airflow_kafka_offsets.transforms.code import from_text

        return _Function(self._what, from_text(self._what, self.code), self.columns)


def _empty(columns: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([], schema=columns)


def _batch(what: str, result: Any) -> pa.RecordBatch:
    import pyarrow as pa

    if not isinstance(result, pa.RecordBatch):
        raise TransformError(f"{what} returned {type(result).__name__}, not a pyarrow.RecordBatch")
    return result


class _Function:
    """Calls the user's function, and checks what it returns.

    :param columns: what it returns; None where the first batch shows it
    """

    def __init__(self, what: str, function: Any, columns: pa.Schema | None) -> None:
        self._what, self._function, self._columns = what, function, columns

    def __call__(self, rows: pa.RecordBatch) -> Transformed:
        import pyarrow as pa

        from airflow_kafka_offsets.transforms.columns import cast, check_origin, known_columns, places, with_nulls
        from airflow_kafka_offsets.transforms.user_errors import user_error

        try:
            result = self._function(with_nulls(rows))
        except Exception as error:
            raise user_error(f"{self._what}, of {places(rows)},", error) from None
        what = f"{self._what}, of {places(rows)},"
        columns = known_columns(_batch(what, result).schema, what)
        self._columns = self._columns or columns
        if columns != self._columns:
            raise TransformError(
                f"{what} returned other columns than before: {_described(columns)}; before, or of an empty batch, "
                f"{_described(self._columns)}"
            )
        check_origin(rows, result, what)
        try:
            return Transformed(cast(result, columns))
        except pa.ArrowInvalid:
            raise TransformError(f"{what} returns a value that is outside of the range of its column") from None


def _described(columns: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in columns)
