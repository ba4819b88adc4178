"""The example of a sink of one's own: a DuckDB file, which commits before the positions do."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from sqlalchemy.engine import Connection

from airflow_kafka_offsets import Limits, TimeBounds
from airflow_kafka_offsets.exceptions import DoubleLoadError, OlderLedgerError, TargetError, VerificationError
from airflow_kafka_offsets.rewinding.execution import abandon_batch
from airflow_kafka_offsets.sinks.table import Dataset, Output, Target
from docs.examples.duckdb_sink import ConnectedTable, DuckDBTable
from tests.support import fixtures
from tests.support.clients import Kafka, produce
from tests.support.lake import NEXT, RUN, LakeGroup, ProcessDiedError
from tests.support.loads import Loader, TopicFactory, names
from tests.support.openings import KEPT, at, produce_at
from tests.support.rewinds import Rewinder

engine = fixtures.sqlite_engine
pytestmark = pytest.mark.server

DEATHS = ["before", "after"]
ALL = [(1, offset) for offset in (0, 1, 3, 4, 5)]


@contextmanager
def dying(moment: str) -> Iterator[None]:
    """Have the process die before the commit of DuckDB, or after it."""
    publish = ConnectedTable.publish

    @contextmanager
    def dies(self: ConnectedTable, conn: Connection, output: Output) -> Iterator[Target]:
        with publish(self, conn, output) as target:
            yield target
            if moment == "before":
                raise ProcessDiedError
        raise ProcessDiedError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ConnectedTable, "publish", dies)
        with pytest.raises(ProcessDiedError):
            yield


@dataclass
class File:
    """A DuckDB file, as another program reads it."""

    path: str

    def run(self, query: str) -> list[tuple[object, ...]]:
        with duckdb.connect(self.path) as connection:
            return connection.execute(query).fetchall()

    def read(self) -> pa.Table:
        with duckdb.connect(self.path) as connection:
            return connection.sql("FROM orders").to_arrow_table()


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(str(tmp_path / "shop.duckdb"))


@pytest.fixture
def sink(file: File) -> DuckDBTable:
    return DuckDBTable(file.path, "orders")


@pytest.fixture
def group(inline_loader: Loader, kafka: Kafka, topic: TopicFactory, file: File, sink: DuckDBTable) -> LakeGroup:
    """A topic of six records, the third a dead letter, and nothing loaded."""
    name = topic()
    produce(kafka, name, [*names(0, 2), b"{not json", *names(3, 3)])
    return LakeGroup(inline_loader, name, sink, file.read)


def test_loads_are_proved_and_carry_on(group: LakeGroup) -> None:
    assert group.load(limits=Limits(max_records=4)).rows == 5
    assert group.places() == [(1, 0), (1, 1), (1, 3), (2, 4), (2, 5)]
    produce(group.loader.kafka, group.topic, names(6, 2))

    assert group.load(NEXT).rows == 2

    assert group.proved() == (7, 1)
    assert (group.offsets(), group.position()) == ([0, 1, 3, 4, 5, 6, 7], 8)
    assert group.read()["name"].to_pylist()[-1] == "name-7"


@pytest.mark.parametrize("dies", DEATHS)
def test_a_load_that_dies_between_the_commits_is_finished_by_the_next_try(group: LakeGroup, dies: str) -> None:
    with dying(dies):
        group.load(RUN)
    assert group.position() is None
    assert group.read().num_rows == (5 if dies == "after" else 0)

    done = group.load()

    assert (done.rows, done.dead_letters, len(group.loader.launcher.jobs)) == (5, 1, 1)
    assert (group.places(), group.position(), group.proved()) == (ALL, 6, (5, 1))


@pytest.mark.parametrize("dies", DEATHS)
def test_an_abandoned_batch_is_taken_back_by_the_next_load(group: LakeGroup, dies: str) -> None:
    with dying(dies):
        group.load(RUN)
    abandon_batch("loader", 1, engine=group.loader.engine)

    group.load()

    assert group.places() == [(3, offset) for _, offset in ALL]
    assert group.proved() == (5, 1)


@pytest.mark.parametrize("dies", [None, *DEATHS])
def test_a_rewind_takes_rows_back(group: LakeGroup, dies: str | None) -> None:
    group.load(limits=Limits(max_records=4))
    rewind = Rewinder(group.loader)
    if dies is None:
        done = rewind("to-offset", 1, replace=group.sink)
        assert (done.rows_removed, done.dead_letters_removed) == (4, 1)
    else:
        with dying(dies):
            rewind("to-offset", 1, replace=group.sink)

    group.load(NEXT)

    assert group.offsets() == [0, 1, 3, 4, 5]
    assert group.proved() == (5, 1)


@pytest.mark.parametrize("dies", [None, *DEATHS])
def test_a_replay_replaces_rows_in_one_commit(group: LakeGroup, dies: str | None) -> None:
    group.load()
    bounds = {group.topic: {0: (1, 5)}}
    with pytest.raises(DoubleLoadError):
        group.replay(bounds)
    if dies is not None:
        with dying(dies):
            group.replay(bounds, RUN, replace=True)

    assert group.replay(bounds, replace=True).rows == 3

    assert group.places() == [(1, 0), (1, 5), (2, 1), (2, 3), (2, 4)]
    assert group.proved() == (5, 1)


def test_a_replay_replaces_the_rows_of_a_span_of_time(
    inline_loader: Loader, topic: TopicFactory, file: File, sink: DuckDBTable
) -> None:
    name = topic(**KEPT)
    produce_at(inline_loader.kafka, name, [0, 5, 1, 2, 6, 3])
    group = LakeGroup(inline_loader, name, sink, file.read)
    group.load()

    group.replay(TimeBounds(at(1), at(4), all_records=True), replace=True)

    assert group.places() == [(1, 0), (1, 1), (1, 4), (2, 2), (2, 3), (2, 5)]
    assert group.proved() == (6, 0)


def test_verify_finds_missing_and_duplicated_rows_and_dead_letters(group: LakeGroup, file: File) -> None:
    group.load(limits=Limits(max_records=3))
    file.run("DELETE FROM orders WHERE _kafka_offset = 0")
    file.run("INSERT INTO orders FROM orders WHERE _kafka_offset = 4")
    file.run("INSERT INTO orders SELECT * REPLACE (2 AS _kafka_offset) FROM orders WHERE _kafka_offset = 1")

    with pytest.raises(VerificationError) as raised:
        group.proved()

    assert {(violation.batch_id, violation.offset) for violation in raised.value.violations} == {(1, 2), (2, 3)}


def test_state_tables_of_an_older_backup_are_noticed(group: LakeGroup, file: File) -> None:
    group.load()
    file.run("UPDATE _kafka_publications SET number = 7")
    produce(group.loader.kafka, group.topic, names(6, 1))

    with pytest.raises(OlderLedgerError, match="holds rows of batch 7"):
        group.load(NEXT)


def test_columns_that_it_lacks_are_refused(group: LakeGroup, file: File) -> None:
    file.run("CREATE TABLE orders (id BIGINT)")

    with pytest.raises(TargetError, match="has no column _batch_id, _kafka_offset, _kafka_partition"):
        group.load()
    file.run("DROP TABLE orders")
    assert group.load().rows == 5


def test_duckdb_sink_is_an_asset_and_a_dataset(group: LakeGroup, sink: DuckDBTable, file: File) -> None:
    table = sink.connect(group.loader.engine)
    assert sink.uris(group.loader.engine) == [f"duckdb://{file.path}/orders"]
    assert table.datasets() == [Dataset(f"duckdb://{file.path}", "main.orders")]

    group.load()

    (dataset,) = table.datasets()
    fields = dict(dataset.fields or ())
    assert (fields["id"], fields["name"], fields["_batch_id"]) == ("BIGINT", "VARCHAR", "BIGINT")
    assert pickle.loads(pickle.dumps(sink)) == sink
