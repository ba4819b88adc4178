"""The kinds of targets that are killed, raced and soaked alike, each with a reader that is not the package's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import deltalake
import pyarrow as pa
import sqlalchemy as sa
from pyarrow.dataset import dataset
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeltaTable, IcebergTable, ParquetFiles
from airflow_kafka_offsets.sinks.fan_out import Branch, FanOut
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.transforms.sql import Sql
from tests.support.external_archive import ExternalArchive
from tests.support.iceberg import find_table, iceberg_sink, scanned
from tests.support.loads import positions, rows


class Place(NamedTuple):
    """Where a row is from, and its id."""

    topic: str
    partition: int
    offset: int
    batch_id: int
    id: int


@dataclass(frozen=True)
class Kind:
    """A kind of target.

    :param commits_externally: whether it makes a commit of its own
    :param refuses: whether it refuses some of the values that `random_topics` writes
    :param sink: makes one, with a name, in a directory
    :param read: every row of it
    """

    name: str
    commits_externally: bool
    refuses: bool
    sink: Callable[[str, Path], Sink]
    read: Callable[[Sink, Engine], list[Place]]


def _read_table(sink: Sink, engine: Engine) -> list[Place]:
    if not sa.inspect(engine).has_table(sink.name):
        return []
    query = f'SELECT _kafka_topic, _kafka_partition, _kafka_offset, _batch_id, id FROM "{sink.name}"'
    return [Place(*row) for row in rows(engine, query)]


def _read_archive(sink: Sink, engine: Engine) -> list[Place]:
    assert isinstance(sink, ExternalArchive)
    with sink.database().connect() as conn:
        if not sa.inspect(conn).has_table(sink.archive):
            return []
        return as_places(record for _, records in sink.read(conn) for record in records)


def _read_iceberg(sink: Sink, engine: Engine) -> list[Place]:
    assert isinstance(sink, IcebergTable)
    table = find_table(sink, engine)
    names = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_batch_id", "id")
    return [] if table is None else [Place(*row) for row in scanned(table, *names)]


def _read_delta(sink: Sink, engine: Engine) -> list[Place]:
    assert isinstance(sink, DeltaTable)
    if not deltalake.DeltaTable.is_deltatable(sink.uri):
        return []
    return as_places(pa.table(deltalake.DeltaTable(sink.uri).to_pyarrow_table()).to_pylist())


def _read_parquet(sink: Sink, engine: Engine) -> list[Place]:
    assert isinstance(sink, ParquetFiles)
    # Arrow leaves out what begins with an underscore.
    return as_places(dataset(sink.uri, format="parquet").to_table().to_pylist()) if Path(sink.uri).exists() else []


def _two_tables(name: str, _: Path) -> FanOut:
    return FanOut.of([SqlTable(name), Branch(SqlTable(f"{name}_ids"), Sql("SELECT id FROM records"))])


def _read_two_tables(sink: Sink, engine: Engine) -> list[Place]:
    assert isinstance(sink, FanOut)
    whole, ids = (_read_table(branch.sink, engine) for branch in sink.branches)
    assert sorted(whole) == sorted(ids)
    return whole


def as_places(records: object) -> list[Place]:
    """Return rows that are dictionaries."""
    names = ("_kafka_topic", "_kafka_partition", "_kafka_offset", "_batch_id", "id")
    return [Place(*(record[name] for name in names)) for record in records]  # type: ignore[attr-defined]


def _iceberg(where: str, name: str, directory: Path) -> Sink:
    return iceberg_sink(where, directory, name=f"shop.{name}")


def _iceberg_by_place(name: str, directory: Path) -> Sink:
    """By a key that each record has for itself: a row that is lost is missed, and one that is doubled is seen."""
    key = ("_kafka_topic", "_kafka_partition", "_kafka_offset")
    return iceberg_sink("sql", directory, name=f"shop.{name}", upsert_key=key)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("table", False, True, lambda name, _: SqlTable(name), _read_table),
        Kind("elsewhere", True, True, lambda name, at: ExternalArchive(name, path=f"{at}/elsewhere.db"), _read_archive),
        *(
            Kind(
                f"iceberg-{where}",
                where != "positions",
                False,
                partial(_iceberg, where),
                _read_iceberg,
            )
            for where in ("positions", "sql", "rest")
        ),
        Kind("delta", True, False, lambda name, at: DeltaTable(f"{at}/delta/{name}"), _read_delta),
        Kind("parquet", True, False, lambda name, at: ParquetFiles(f"{at}/parquet/{name}"), _read_parquet),
        Kind("two tables", False, True, _two_tables, _read_two_tables),
    )
}
"""The kinds by name that append rows."""

UPSERTS = {"iceberg-upsert": Kind("iceberg-upsert", True, False, _iceberg_by_place, _read_iceberg)}
"""Those that replace rows: two groups do not double them, and `verify` does not look at them."""


@dataclass(frozen=True)
class Target:
    """A target in a test.

    :param sink: of the kind
    """

    kind: Kind
    sink: Sink
    engine: Engine

    @classmethod
    def make(cls, kind: str, engine: Engine, directory: Path, name: str = "target") -> Target:
        of_kind = (KINDS | UPSERTS)[kind]
        sink = of_kind.sink(name, directory)
        assert sink.commits_externally is of_kind.commits_externally
        return cls(of_kind, sink, engine)

    def places(self) -> list[Place]:
        """Every row, by a reader that is not the package's."""
        return self.kind.read(self.sink, self.engine)

    def assert_exactly_once(self, topics: Sequence[str] | None = None) -> None:
        """Below each position every offset is there once, and nothing above it; all of committed batches.

        For topics whose every offset holds a record.
        """
        stored = {tp: end for tp, end in positions(self.engine).items() if topics is None or tp[0] in topics}
        found = self.places()
        assert sorted(place[:3] for place in found) == sorted(
            (*tp, offset) for tp, end in stored.items() for offset in range(end)
        )
        committed = rows(self.engine, "SELECT batch_id FROM offset_batches WHERE state = 'committed'")
        assert {(place.batch_id,) for place in found} <= set(committed)
        assert rows(self.engine, "SELECT batch_id FROM offset_batches WHERE publish_started_at IS NOT NULL") == []
