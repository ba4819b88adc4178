"""Reading what is committed to a directory of Parquet files. Needs no database: the manifests say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow_kafka_offsets.exceptions import TargetError

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_offsets.sinks.parquet.snapshot import ParquetSnapshot


def committed_files(uri: str, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Return the URIs of the files that are committed to a `ParquetDataset`, for any reader of Parquet.

    They are those of one moment. A file stays where it is after a replay or a rewind replaced it, so that a reader
    which has the list can finish.

    :param uri: that of the dataset
    :param storage_options: of the object store, by the names of the library `object_store`
    :raises TargetError: there is no dataset, or it is not consistent
    """
    return [f"{uri.rstrip('/')}/{file.name}" for file in _dataset(uri, storage_options).active()]


def read_committed(
    uri: str, columns: Sequence[str] | None = None, storage_options: Mapping[str, Any] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows that are committed to a `ParquetDataset`, with the columns that it has now, those of the
    partitions too.

    :param uri: that of the dataset
    :param columns: those to read; all by default
    :param storage_options: of the object store, by the names of the library `object_store`
    :raises TargetError: there is no dataset, or it is not consistent
    """
    dataset = _dataset(uri, storage_options)
    return dataset.scan(dataset.columns.names if columns is None else columns)


def _dataset(uri: str, storage_options: Mapping[str, Any] | None) -> ParquetSnapshot:
    from airflow_kafka_offsets.sinks.parquet.snapshot import ParquetSnapshot

    dataset = ParquetSnapshot.read(uri, uri, storage_options or {})
    if dataset is None:
        raise TargetError(f"There is no ParquetDataset at {uri!r}")
    return dataset
