"""The protocols of transforms.

A DAG author writes a transform as plain data. `prepared` adds, on the worker and before Spark starts, what other
processes need: code, and the columns of the result. There are two ways to run: a `BatchTransform` in the pass that
decodes the records, a `DataFrameTransform` in a Spark session.

To add a kind, write a frozen dataclass that is one of these, in a module that Spark's driver and executors can import.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from airflow_kafka_offsets.formats.record_format import BadRecord


RECORDS = "records"
"""The name of the decoded records in SQL."""


class Transformed(NamedTuple):
    """The rows that a transform makes of a batch.

    :param bad: the rows of the input that cannot be transformed, in their order
    """

    rows: pa.RecordBatch
    bad: Sequence[BadRecord] = ()


class BatchFunction(Protocol):
    """Transforms batches, in Spark's tasks. A task creates a function for each slice."""

    def __call__(self, rows: pa.RecordBatch) -> Transformed:
        """Transform decoded rows, with their origin columns.

        :raises TransformError: the user's code raised, or returned an unusable value
        """


@runtime_checkable
class Transform(Protocol):
    """A transform: a frozen dataclass that is pickled on its way to Spark."""

    kind: ClassVar[str]
    """The name of the class in fingerprints of batches."""

    @property
    def name(self) -> str:
        """The name in messages and in the history of batches."""

    def fingerprint(self) -> str:
        """Return what decides which rows it makes, the code included. A batch with another fingerprint is staged
        again.
        """

    def prepared(self, columns: pa.Schema) -> Transform:
        """Return the transform with what Spark's processes need. Called on the worker, before anything is read.

        :param columns: of a decoded row, with the origin columns
        :raises ConfigurationError: the transform cannot work, or a library is missing
        :raises TransformError: the user's code cannot be imported, or does not return what it has to
        """


@runtime_checkable
class BatchTransform(Transform, Protocol):
    """A transform of each record batch by itself: rows do not leave the Python process that decodes them."""

    def result(self, columns: pa.Schema) -> pa.Schema | None:
        """Return the columns of the result, once it is prepared; None where only the first batch will show them.

        :param columns: of a decoded row
        """

    def function(self, columns: pa.Schema) -> BatchFunction:
        """Return the function. Called in Spark's tasks."""


@runtime_checkable
class DataFrameTransform(Transform, Protocol):
    """A transform of a DataFrame, in a Spark session."""

    needs_path: ClassVar[bool]
    """Whether Spark's driver imports it."""

    def apply(self, rows: DataFrame) -> DataFrame:
        """Call it. Called in Spark's driver.

        :raises TransformError: the user's code raised, or did not return a DataFrame
        """


def as_transform(given: str | Transform | None) -> Transform | None:
    """Return what a user wrote as a transform: text is the import path of a function from DataFrame to DataFrame."""
    if not isinstance(given, str):
        return given
    from airflow_kafka_offsets.transforms.dataframe import DataFrameFunction

    return DataFrameFunction(given)
