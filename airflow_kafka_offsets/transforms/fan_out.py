"""The transforms of the branches of a fan-out, over each batch of decoded records at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, cast

from airflow_kafka_offsets.transforms.transform import Transformed

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_kafka_offsets.formats.record_format import BadRecord
    from airflow_kafka_offsets.transforms.transform import BatchFunction, BatchTransform


@dataclass(frozen=True)
class FanOutTransform:
    """The transforms of branches. A record that one of them refuses has a row in no branch.

    :param transforms: one for each branch; None for the rows as they are
    """

    kind: ClassVar[str] = "fan_out"
    transforms: tuple[BatchTransform | None, ...]

    @property
    def name(self) -> str:
        return " | ".join("rows as they are" if each is None else each.name for each in self.transforms)

    def fingerprint(self) -> str:
        return repr([None if each is None else [each.kind, each.fingerprint()] for each in self.transforms])

    def prepared(self, columns: pa.Schema) -> FanOutTransform:
        prepared = (None if each is None else each.prepared(columns) for each in self.transforms)
        return FanOutTransform(tuple(cast("BatchTransform | None", each) for each in prepared))

    def result(self, columns: pa.Schema) -> pa.Schema:
        """Return the columns of all branches, as far as they are known."""
        from airflow_kafka_offsets.staging.rows import combined

        return combined(
            {number: columns if each is None else each.result(columns) for number, each in enumerate(self.transforms)}
        )

    def function(self, columns: pa.Schema) -> BatchFunction:
        return _Function([None if each is None else each.function(columns) for each in self.transforms])


class _Function:
    """Calls the function of each branch."""

    def __init__(self, functions: Sequence[BatchFunction | None]) -> None:
        self._functions = functions

    def __call__(self, rows: pa.RecordBatch) -> Transformed:
        import pyarrow as pa

        from airflow_kafka_offsets.staging.rows import join

        bad: list[BadRecord] = []
        places = list(range(rows.num_rows))
        while True:
            results = [Transformed(rows) if function is None else function(rows) for function in self._functions]
            found = {record.row: record for result in reversed(results) for record in result.bad}
            if not found:
                return Transformed(
                    join([result.rows for result in results]), sorted(bad, key=lambda record: record.row)
                )
            # Once more without them: of a record that one branch refuses, no other one may have a row.
            bad += [record._replace(row=places[row]) for row, record in found.items()]
            good = [row for row in range(rows.num_rows) if row not in found]
            places = [places[row] for row in good]
            rows = rows.take(pa.array(good, pa.int64()))
