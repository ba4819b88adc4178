"""Rows that no file of the target can have, on their way to the commit, where their records become dead letters."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.staging.arrow_files import ArrowFileWriter
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import StagedFile
from airflow_kafka_offsets.staging.rows import REASON, Record, are_of, record_of


class RefusedRows(ExitStack):
    """Writes the refused rows of a task into a file, with the reasons. It is created with the first of them.

    The file is complete when the context is left.

    :param are_kept: whether their records may become dead letters; the first one is an error otherwise
    :param why_not: why they may not although dead letters are asked for, as the end of a sentence
    """

    def __init__(self, staging: StagingDirectory, are_kept: bool = False, why_not: str = "") -> None:
        super().__init__()
        self._staging, self._are_kept, self._why_not = staging, are_kept, why_not
        self._writer: ArrowFileWriter | None = None

    @property
    def file(self) -> StagedFile | None:
        """The complete file, once the context is left; None if no row was refused."""
        return None if self._writer is None else self._writer.file

    def take_out(self, batch: pa.RecordBatch, reasons: Mapping[int, str]) -> pa.RecordBatch:
        """Return the rows of a batch without refused ones, and without other rows of the same records.

        :param reasons: by the index of the row
        :raises RecordError: refused records may not become dead letters; names the first
        :raises TargetError: the rows do not say which record they are of
        """
        records: dict[Record, str] = {}
        for row in sorted(reasons):
            records.setdefault(record_of(batch, row, reasons[row]), reasons[row])
        if not self._are_kept:
            record, reason = next(iter(records.items()))
            raise RecordError(f"{reason}{self._why_not}", *record)
        is_refused = are_of(batch, records)
        rows = batch.filter(is_refused)
        whys = [records[record_of(rows, row, "")] for row in range(rows.num_rows)]
        rows = rows.append_column(pa.field(REASON, pa.string()), pa.array(whys, pa.string()))
        if self._writer is None:
            name = f"refused-{uuid.uuid4().hex}.arrow"
            self._writer = self.enter_context(ArrowFileWriter(self._staging, name, rows.schema))
        self._writer.write(rows)
        return batch.filter(pc.invert(is_refused))
