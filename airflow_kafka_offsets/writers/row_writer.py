"""How Spark's tasks write the rows of a batch: the protocol of row writers, and the writer of Arrow files in the
staging directory, for a sink that writes the rows on the worker.

A sink chooses the writer of its batches on the worker. It is pickled with the job; each Spark task writes its rows with
it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from airflow_kafka_offsets.staging.arrow_files import ArrowFileWriter
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.staging.rows import split
from airflow_kafka_offsets.writers.table_rows import RefusedRows

STORAGE = "sink"
"""The name among the connections of a job under which the writer finds what it needs to reach the storage of the
target.
"""


class RowWriter(Protocol):
    """How a task writes the rows of a Spark partition: a frozen dataclass of plain data."""

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
        :param storage: what the sink's `storage_options` returned: a writer holds no secrets
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
