"""How Spark's tasks write the rows of a batch: the protocol of row writers, the table of those that exist, and the
writer of Arrow files in the staging directory, for a sink that writes the rows on the worker.

A sink chooses the writer of its batches on the worker. It travels in the job as plain data; each Spark task writes its
rows with it.

To add a writer, write a module next to this one with a frozen dataclass that is a `RowWriter`, and add a line to
`WRITERS`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from typing import Any, ClassVar, Protocol, cast

import pyarrow as pa

from airflow_kafka_offsets.staging.arrow_files import ArrowFileWriter
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.staging.rows import split
from airflow_kafka_offsets.writers.table_rows import RefusedRows

WRITERS = {
    "arrow": "airflow_kafka_offsets.writers.row_writer:ArrowWriter",
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
        """Write the rows of a Spark partition. Each attempt of a task has its own files.

        :param rows: record batches of one schema
        :param storage: what the sink's `storage_options` returned: secrets are in no plain data of a writer
        :param refused: takes the rows that final files cannot have
        :return: the files, complete; none where there are no rows
        :raises KafkaOffsetsError: the rows cannot be written
        """


@dataclass(frozen=True)
class ArrowWriter:
    """Write the rows of a Spark partition into an Arrow file for each schema: one, or one for each branch of a fan-out
    that has rows.

    :param is_fan_out: whether the rows are those of several targets, as `staging.branches` joins them
    """

    kind: ClassVar[str] = "arrow"

    is_fan_out: bool = False

    @property
    def columns(self) -> None:
        """Nothing: the files say their columns."""

    def write(
        self,
        rows: Iterable[pa.RecordBatch],
        staging: StagingDirectory,
        storage: Mapping[str, Any],
        refused: RefusedRows,
    ) -> Iterator[StagedFile]:
        """Write rows; see `RowWriter.write`."""
        writers: dict[int | None, ArrowFileWriter] = {}
        with ExitStack() as stack:
            for batch in rows:
                for branch, part in split(batch) if self.is_fan_out else [(None, batch)]:
                    if not part.num_rows:
                        continue
                    if branch not in writers:
                        # Each attempt has its own files. The manifest does not name the files of failed and
                        # superseded speculative attempts.
                        name = f"part-{uuid.uuid4().hex}.arrow"
                        writers[branch] = stack.enter_context(ArrowFileWriter(staging, name, part.schema))
                    writers[branch].write(part)
        for branch, writer in writers.items():
            yield replace(writer.file, branch=branch)


def to_plain(writer: RowWriter) -> dict[str, Any]:
    """Return a writer in a form that JSON can hold."""
    return {"kind": writer.kind, **asdict(cast("Any", writer))}


def from_plain(plain: Mapping[str, Any]) -> RowWriter:
    """Return the writer that `to_plain` converted."""
    fields = dict(plain)
    module, _, name = WRITERS[fields.pop("kind")].partition(":")
    writer: RowWriter = getattr(import_module(module), name)(**fields)
    return writer
