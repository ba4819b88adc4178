"""A transform that this test brings runs like any other: a class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_kafka_offsets import DeadLetters
from airflow_kafka_offsets.formats.record_format import BadRecord
from airflow_kafka_offsets.transforms.transform import BatchFunction, BatchTransform, Transformed
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names
from tests.support.loads import rows as rows_of


@dataclass(frozen=True)
class Below:
    """Takes rows with an id below a limit; those above twice the limit are bad."""

    kind: ClassVar[str] = "below"
    limit: int

    @property
    def name(self) -> str:
        return f"below {self.limit}"

    def fingerprint(self) -> str:
        return self.name

    def prepared(self, columns: pa.Schema) -> Below:
        return self

    def result(self, columns: pa.Schema) -> pa.Schema | None:
        return None

    def function(self, columns: pa.Schema) -> BatchFunction:
        def below(rows: pa.RecordBatch) -> Transformed:
            bad = [row for row, value in enumerate(rows["id"].to_pylist()) if value > 2 * self.limit]
            kept = rows.filter(pc.less(rows["id"], self.limit))
            return Transformed(kept, [BadRecord(row, "far above", "transform") for row in bad])

        return below


def test_foreign_transform_loads(loader: Loader, topic: TopicFactory) -> None:
    assert isinstance(Below(3), BatchTransform)
    name = topic()
    produce(loader.kafka, name, names(0, 9))
    result = loader(name, transform=Below(3), on_bad_record=DeadLetters())
    assert (result.rows, result.dead_letters) == (3, 2)
    assert rows_of(loader.engine, "SELECT offset_value, error FROM dead_letters") == [
        (7, "far above"),
        (8, "far above"),
    ]
    assert rows_of(loader.engine, "SELECT transform FROM offset_batches") == [("below 3",)]
