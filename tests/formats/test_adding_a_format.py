"""A format that this test brings loads like any other: a class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters, Staging
from airflow_kafka_offsets.exceptions import ConfigurationError, DeadLetterError, RecordError
from airflow_kafka_offsets.formats.record_format import BadRecord, Decoded, Decoder, RecordFormat
from airflow_kafka_offsets.spark.job import StageJob
from tests.support.clients import Kafka, produce
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, assert_exactly_once, positions, rows
from tests.support.memory_log import MemoryLog


@dataclass(frozen=True, slots=True)
class Lines:
    """Text, split at a separator into columns of type STRING.

    :param names: of the columns, separated by spaces
    """

    kind: ClassVar[str] = "lines"
    names: str
    separator: str = "|"

    @property
    def reads_headers(self) -> bool:
        return False

    def fingerprint(self) -> str:
        return f"{self.kind} {self.separator}"

    def columns(self) -> pa.Schema:
        if not self.names.split():
            raise ConfigurationError(f"Lines needs the name of a column; got names={self.names!r}")
        return pa.schema([(name, pa.string()) for name in self.names.split()])

    def decoder(self, columns: pa.Schema) -> Decoder:
        def decode(records: pa.RecordBatch) -> Decoded:
            lines: list[list[str]] = []
            bad: list[BadRecord] = []
            for index, value in enumerate(records.column("value").to_pylist()):
                try:
                    fields = (value or b"").decode().split(self.separator)
                except UnicodeDecodeError:
                    bad.append(BadRecord(index, "not UTF-8"))
                    continue
                if len(fields) == len(columns):
                    lines.append(fields)
                else:
                    bad.append(BadRecord(index, f"{len(fields)} fields for {len(columns)} columns"))
            arrays = [pa.array([line[place] for line in lines], pa.string()) for place in range(len(columns))]
            return Decoded(pa.RecordBatch.from_arrays(arrays, schema=columns), bad)

        return decode


class ThroughText(InlineLauncher):
    """Runs what a submitted application would get."""

    def __call__(self, job: StageJob) -> None:
        copy = StageJob.from_text(job.to_text())
        assert copy == job
        super().__call__(copy)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    return MemoryLog().install(monkeypatch)


@pytest.fixture
def loader(kafka: Kafka, tmp_path: Path) -> Iterator[Loader]:
    engine = sa.create_engine(f"sqlite:///{tmp_path}/warehouse.db")
    yield Loader(kafka, engine, ThroughText())
    engine.dispose()


LINES = Lines("id name")
RECORDS = [b"1|Ada", b"2|Grace", b"3", "4|Zoë".encode(), None, b"5|Lin|da"]
GOOD = [("1", "Ada"), ("2", "Grace"), ("4", "Zoë")]


@pytest.fixture
def orders(topic: TopicFactory, kafka: Kafka) -> str:
    name = topic(partitions=2)
    produce(kafka, name, RECORDS, 0)
    produce(kafka, name, [b"6|Tim", b"7|\xff"], 1)
    return name


def test_foreign_format_is_accepted() -> None:
    assert isinstance(LINES, RecordFormat)


def test_a_bad_record_fails_the_load_and_nothing_is_written(loader: Loader, orders: str) -> None:
    with pytest.raises(RecordError, match=r"offset 2.*1 fields for 2 columns"):
        loader(orders, value_format=LINES)
    assert rows(loader.engine, "SELECT count(*) FROM target") == [(0,)]
    assert positions(loader.engine) == {}


@pytest.mark.parametrize("slice_offsets", [1, 4, 250_000])
def test_bad_records_are_dead_lettered_and_the_others_loaded(loader: Loader, orders: str, slice_offsets: int) -> None:
    result = loader(
        orders, value_format=LINES, on_bad_record=DeadLetters(), staging=Staging(slice_offsets=slice_offsets)
    )

    assert (result.records, result.rows, result.dead_letters) == (8, 4, 4)
    assert sorted(rows(loader.engine, "SELECT id, name FROM target")) == [*GOOD, ("6", "Tim")]
    origins = "SELECT id, _kafka_partition, _kafka_offset FROM target ORDER BY id"
    assert rows(loader.engine, origins) == [("1", 0, 0), ("2", 0, 1), ("4", 0, 3), ("6", 1, 0)]
    assert rows(loader.engine, "SELECT offset_value, value, error FROM dead_letters ORDER BY offset_value") == [
        (1, b"7|\xff", "not UTF-8"),
        (2, b"3", "1 fields for 2 columns"),
        (4, None, "1 fields for 2 columns"),
        (5, b"5|Lin|da", "3 fields for 2 columns"),
    ]
    assert positions(loader.engine) == {(orders, 0): 6, (orders, 1): 2}
    assert loader(orders, value_format=LINES, on_bad_record=DeadLetters()).records == 0


def test_more_dead_letters_than_allowed_fail_the_load(loader: Loader, orders: str) -> None:
    with pytest.raises(DeadLetterError, match=r"DeadLetters\.limit allows 2"):
        loader(orders, value_format=LINES, on_bad_record=DeadLetters(limit=2))
    assert positions(loader.engine) == {}


@pytest.mark.parametrize(("retried_with", "launches"), [(LINES, 1), (Lines("id name", ";"), 2)])
def test_a_retry_commits_staged_files_of_the_same_format_and_stages_again_with_another(
    loader: Loader, topic: TopicFactory, retried_with: Lines, launches: int
) -> None:
    name = topic()
    produce(loader.kafka, name, [b"1|2;3", b"4;5|6"])
    columns = (
        "id TEXT UNIQUE, name TEXT, _kafka_topic TEXT, _kafka_partition INT, _kafka_offset BIGINT, _batch_id BIGINT"
    )
    with loader.engine.begin() as conn:
        conn.execute(sa.text(f"CREATE TABLE target ({columns})"))
        conn.execute(sa.text("INSERT INTO target (id) VALUES ('1')"))
    with pytest.raises(RecordError, match="offset 0"):
        loader(name, value_format=LINES)
    with loader.engine.begin() as conn:
        conn.execute(sa.text("DELETE FROM target"))

    assert loader(name, value_format=retried_with).rows == 2

    assert len(loader.launcher.jobs) == launches
    separator = retried_with.separator
    expected = [tuple(line.split(separator)) for line in ("1|2;3", "4;5|6")]
    assert rows(loader.engine, "SELECT id, name FROM target ORDER BY _kafka_offset") == expected
    assert_exactly_once(loader.engine)


def test_a_mistake_is_found_before_anything_is_planned(loader: Loader, orders: str) -> None:
    with pytest.raises(ConfigurationError, match="Lines needs the name of a column; got names=' '"):
        loader(orders, value_format=Lines(" "))
    assert not sa.inspect(loader.engine).get_table_names()


def test_a_type_that_spark_does_not_have_is_refused_before_anything_is_planned(
    loader: Loader, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lines, "columns", lambda _: pa.schema([("id", pa.time64("us"))]))
    with pytest.raises(ConfigurationError, match=r"cannot have the type time64\[us\]; known types are BOOLEAN"):
        loader(orders, value_format=LINES)
    assert not sa.inspect(loader.engine).get_table_names()


def test_a_column_with_a_reserved_name_is_refused(loader: Loader, orders: str) -> None:
    with pytest.raises(ConfigurationError, match="Column '_kafka_offset' cannot be declared"):
        loader(orders, value_format=Lines("id _kafka_offset"))
