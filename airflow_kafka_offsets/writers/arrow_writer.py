"""Rows as an Arrow file in the staging directory, for a sink that writes them on the worker."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from airflow_kafka_offsets.staging.arrow_files import ArrowFileWriter
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.writers.refused_rows import RefusedRows


@dataclass(frozen=True)
class ArrowWriter:
    """Write the rows of a Spark partition into one Arrow file."""

    kind: ClassVar[str] = "arrow"

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
        # Each attempt has a file of its own. The manifest does not name the files of failed and superseded speculative
        # attempts.
        name = f"part-{uuid.uuid4().hex}.arrow"
        writer: ArrowFileWriter | None = None
        with ExitStack() as stack:
            for batch in rows:
                if not batch.num_rows:
                    continue
                if writer is None:
                    writer = stack.enter_context(ArrowFileWriter(staging, name, batch.schema))
                writer.write(batch)
        if writer is not None:
            yield writer.file
