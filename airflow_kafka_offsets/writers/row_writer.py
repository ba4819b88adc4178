"""The protocol of row writers, and the table of the writers that exist.

A sink chooses the writer of its batches on the worker. It travels in the job as plain data; each Spark task writes its
rows with it.

To add a writer, write a module beside this one with a frozen dataclass that is a `RowWriter`, and add a line to
`WRITERS`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from importlib import import_module
from typing import Any, ClassVar, Protocol, cast

import pyarrow as pa

from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.writers.refused_rows import RefusedRows

WRITERS = {
    "arrow": "airflow_kafka_offsets.writers.arrow_writer:ArrowWriter",
    "fan_out": "airflow_kafka_offsets.writers.fan_out_writer:FanOutWriter",
    "lake": "airflow_kafka_offsets.writers.lake_writer:LakeWriter",
}
"""The class of each writer, by its kind."""

STORAGE = "sink"
"""The name among the connections of a job under which the writer finds what it needs to reach the storage of the
target.
"""


class RowWriter(Protocol):
    """How a task writes the rows of a Spark partition: a frozen dataclass whose fields JSON can hold, and gives back as
    they were.
    """

    kind: ClassVar[str]
    """Its name in `WRITERS`."""

    @property
    def columns(self) -> str | None:
        """The columns of the rows in final files, as `staging.rows.schema_text` has them; None where the worker writes
        the rows.
        """

    def write(
        self,
        rows: Iterable[pa.RecordBatch],
        staging: StagingDirectory,
        storage: Mapping[str, Any],
        refused: RefusedRows,
    ) -> Iterator[StagedFile]:
        """Write the rows of a Spark partition. Each attempt of a task has files of its own.

        :param rows: record batches of one schema
        :param storage: what the sink's `storage_options` returned: secrets are in no plain data of a writer
        :param refused: takes the rows that final files cannot have
        :return: the files, complete; none where there are no rows
        :raises KafkaOffsetsError: the rows cannot be written
        """


def to_plain(writer: RowWriter) -> dict[str, Any]:
    """Return a writer in a form that JSON can hold."""
    return {"kind": writer.kind, **asdict(cast("Any", writer))}


def from_plain(plain: Mapping[str, Any]) -> RowWriter:
    """Return the writer that `to_plain` converted."""
    fields = dict(plain)
    module, _, name = WRITERS[fields.pop("kind")].partition(":")
    writer: RowWriter = getattr(import_module(module), name)(**fields)
    return writer
