"""The rows of several targets, each in an Arrow file of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pyarrow as pa

from airflow_kafka_offsets.staging.arrow_files import ArrowFileWriter
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.staging.rows import split
from airflow_kafka_offsets.writers.refused_rows import RefusedRows


@dataclass(frozen=True)
class FanOutWriter:
    """Write the rows of a Spark partition into an Arrow file for each branch that has some."""

    kind: ClassVar[str] = "fan_out"

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
        """Write rows, as `staging.branches` joins them; see `RowWriter.write`."""
        writers: dict[int, ArrowFileWriter] = {}
        with ExitStack() as stack:
            for batch in rows:
                for number, part in split(batch):
                    if number not in writers:
                        name = f"part-{uuid.uuid4().hex}.arrow"
                        writers[number] = stack.enter_context(ArrowFileWriter(staging, name, part.schema))
                    writers[number].write(part)
        for number, writer in writers.items():
            yield replace(writer.file, branch=number)
