"""A sink that is no table goes through load, retry, rewind, replay and verification by the members of `Sink` alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters, Limits, TimeBounds, replay
from airflow_kafka_offsets.exceptions import (
    DoubleLoadError,
    ForeignBatchError,
    OlderLedgerError,
    RecordError,
    VerificationError,
)
from airflow_kafka_offsets.ledger.batch_rows import TaskRun
from airflow_kafka_offsets.sinks.sink import Sink
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.transforms.sql import Sql
from airflow_kafka_offsets.verification.verify import verify
from tests.support import fixtures
from tests.support.archive import ARCHIVE, Archive, ArchivedRows
from tests.support.clients import Kafka, produce
from tests.support.external_archive import ExternalArchive, ProcessDiedError
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.openings import KEPT, at, produce_at
from tests.support.rewinds import Rewinder

engine = fixtures.sqlite_engine


@pytest.fixture(params=["archive", "elsewhere"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Archive:
    """One that commits with the positions, and one that commits before them."""
    if request.param == "archive":
        return ARCHIVE
    return ExternalArchive("orders_archive", path=str(tmp_path / "elsewhere.db"))


def archived(loader: Loader, sink: Archive) -> list[tuple[int, int]]:
    """Return batch and offset of every row, in order."""
    with sink.connection(loader.engine) as conn:
        return [(batch, offset) for batch, _, offset in ArchivedRows(sink, conn).places()]


def proved(loader: Loader, sink: Archive) -> tuple[int, int, int | None]:
    coverage = verify("loader", sink=sink, engine=loader.engine, kafka_config=loader.config)
    return coverage.rows, coverage.dead_letters, coverage.reread


@pytest.fixture
def loaded(inline_loader: Loader, kafka: Kafka, topic: TopicFactory, sink: Archive) -> str:
    """A topic of ten records, the fourth a dead letter, loaded in batches of four."""
    name = topic()
    produce(kafka, name, [*names(0, 3), b"{not json", *names(4, 6)])
    inline_loader(name, sink=sink, limits=Limits(max_records=4), on_bad_record=DeadLetters())
    return name


def test_foreign_sink_is_a_sink() -> None:
    assert isinstance(ARCHIVE, Sink)
    assert isinstance(SqlTable("orders"), Sink)
    assert not isinstance(object(), Sink)


def test_a_load_is_proved_and_carries_on(inline_loader: Loader, kafka: Kafka, loaded: str, sink: Archive) -> None:
    assert proved(inline_loader, sink) == (9, 1, 10)
    produce(kafka, loaded, names(10, 2))

    assert inline_loader(loaded, sink=sink).rows == 2

    assert archived(inline_loader, sink) == [
        *((1, offset) for offset in (0, 1, 2)),
        *((2, offset) for offset in (4, 5, 6, 7)),
        *((3, offset) for offset in (8, 9)),
        *((4, offset) for offset in (10, 11)),
    ]
    assert proved(inline_loader, sink) == (11, 1, 12)


def test_a_refused_record_leaves_nothing_and_a_retry_loads_the_rest_once(
    inline_loader: Loader, kafka: Kafka, topic: TopicFactory, sink: Archive
) -> None:
    name, run = topic(), TaskRun("run")
    produce(kafka, name, [*names(0, 5), json.dumps({"id": 5, "name": "refused"}).encode()])

    with pytest.raises(RecordError, match="the archive takes no such name") as raised:
        inline_loader(name, sink=sink, limits=Limits(max_records=3), run=run)
    assert raised.value.offset == 5
    assert archived(inline_loader, sink) == [(1, 0), (1, 1), (1, 2)]
    assert positions(inline_loader.engine) == {(name, 0): 3}

    lenient = replace(sink, refused="")
    assert inline_loader(name, sink=lenient, limits=Limits(max_records=3), run=run).rows == 3
    assert archived(inline_loader, sink) == [(1, 0), (1, 1), (1, 2), (2, 3), (2, 4), (2, 5)]
    assert proved(inline_loader, sink) == (6, 0, 6)


@pytest.mark.parametrize("transform", [None, Sql("SELECT * FROM records")], ids=["plain", "transformed"])
def test_a_refused_record_is_a_dead_letter_after_a_death_between_the_two_commits(
    inline_loader: Loader, kafka: Kafka, topic: TopicFactory, tmp_path: Path, transform: Sql | None
) -> None:
    name, run = topic(), TaskRun("run")
    sink = ExternalArchive("orders_archive", path=str(tmp_path / "elsewhere.db"))
    produce(kafka, name, [*names(0, 2), json.dumps({"id": 2, "name": "refused"}).encode(), *names(3, 1)])
    options: dict[str, Any] = {"on_bad_record": DeadLetters(), "transform": transform, "run": run}
    with pytest.raises(ProcessDiedError):
        inline_loader(name, sink=replace(sink, dies="after"), **options)

    result = inline_loader(name, sink=sink, **options)

    assert (result.records, result.rows, result.dead_letters) == (4, 3, 1)
    assert archived(inline_loader, sink) == [(1, 0), (1, 1), (1, 3)]
    assert rows(inline_loader.engine, "SELECT offset_value, error_class FROM dead_letters") == [(2, "target")]
    coverage = verify("loader", sink=sink, engine=inline_loader.engine)
    assert (coverage.rows, coverage.dead_letters) == (3, 1)


def test_a_rewind_takes_back_rows_and_dead_letters(inline_loader: Loader, loaded: str, sink: Archive) -> None:
    done = Rewinder(inline_loader)("to-offset", 2, replace=sink)

    assert (done.rows_removed, done.dead_letters_removed) == (7, 1)
    assert archived(inline_loader, sink) == [(1, 0), (1, 1)]
    assert proved(inline_loader, sink) == (2, 0, 2)
    inline_loader(loaded, sink=sink, on_bad_record=DeadLetters())
    assert [offset for _, offset in archived(inline_loader, sink)] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert proved(inline_loader, sink) == (9, 1, 10)


def test_a_replay_replaces_rows_in_one_transaction(inline_loader: Loader, loaded: str, sink: Archive) -> None:
    def replay_range(**options: Any) -> int:
        return replay(
            inline_loader.pipeline([loaded], sink=sink, on_bad_record=DeadLetters()),
            {loaded: {0: (2, 6)}},
            kafka_config=inline_loader.config,
            engine=inline_loader.engine,
            launcher=inline_loader.launcher,
            **options,
        ).rows

    with pytest.raises(DoubleLoadError, match="would duplicate records"):
        replay_range()

    assert replay_range(replace=True) == 3
    assert [offset for batch, offset in archived(inline_loader, sink) if batch > 3] == [2, 4, 5]
    assert sorted(offset for _, offset in archived(inline_loader, sink)) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert proved(inline_loader, sink) == (9, 1, 10)


def test_a_replay_replaces_the_rows_of_a_span_of_time(
    inline_loader: Loader, topic: TopicFactory, sink: Archive
) -> None:
    name = topic(**KEPT)
    produce_at(inline_loader.kafka, name, [0, 5, 1, 2, 6, 3])
    inline_loader(name, sink=sink)

    replay(
        inline_loader.pipeline([name], sink=sink),
        TimeBounds(at(1), at(4), all_records=True),
        kafka_config=inline_loader.config,
        engine=inline_loader.engine,
        launcher=inline_loader.launcher,
        replace=True,
    )

    assert sorted(archived(inline_loader, sink)) == [(1, 0), (1, 1), (1, 4), (2, 2), (2, 3), (2, 5)]
    assert proved(inline_loader, sink) == (6, 0, 6)


def test_verify_finds_missing_duplicated_and_unknown_rows(inline_loader: Loader, loaded: str, sink: Archive) -> None:
    with sink.connection(inline_loader.engine) as conn:
        batches = dict(sink.read(conn))
        sink.put(conn, 1, batches[1][:2])
        sink.put(conn, 2, [*batches[2][:3], batches[2][0]])
        sink.put(conn, 7, [batches[3][0] | {"_batch_id": 7}])

    with pytest.raises(VerificationError) as raised:
        proved(inline_loader, sink)

    places = [(violation.batch_id, violation.offset) for violation in raised.value.violations]
    assert places == [(1, 0), (2, 4), (7, 8)]
    produce(inline_loader.kafka, loaded, names(10, 1))
    with pytest.raises(OlderLedgerError, match="rows of batch 7"):
        inline_loader(loaded, sink=sink)


def test_a_row_of_a_dead_letter_is_found(inline_loader: Loader, loaded: str, sink: Archive) -> None:
    with sink.connection(inline_loader.engine) as conn:
        records = dict(sink.read(conn))[1]
        sink.put(conn, 1, [*records[:2], records[2] | {"_kafka_offset": 3}])

    with pytest.raises(VerificationError, match="offset 3 was loaded twice"):
        proved(inline_loader, sink)


def test_verify_with_kafka_finds_what_counts_hide(inline_loader: Loader, loaded: str, sink: Archive) -> None:
    with sink.connection(inline_loader.engine) as conn:
        sink.put(conn, 3, dict(sink.read(conn))[3][:1])
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text("UPDATE offset_ranges SET records = 1 WHERE batch_id = 3"))
        conn.execute(sa.text("UPDATE offset_batches SET records = 1, row_count = 1 WHERE batch_id = 3"))

    with pytest.raises(VerificationError, match="the record at offset 9, which was loaded by batch 3, is neither"):
        proved(inline_loader, sink)


@pytest.mark.parametrize("other", [SqlTable("target"), Archive("elsewhere")], ids=lambda sink: sink.name)
def test_another_target_is_never_taken_for_the_renamed_archive(
    inline_loader: Loader, loaded: str, other: Sink, sink: Archive
) -> None:
    produce(inline_loader.kafka, loaded, names(10, 1))

    with pytest.raises(ForeignBatchError, match=r"loads into table '(archive|elsewhere)://orders_archive'"):
        inline_loader(loaded, sink=other)


def test_an_archive_is_never_taken_for_a_renamed_table(
    inline_loader: Loader, kafka: Kafka, topic: TopicFactory, sink: Archive
) -> None:
    name = topic()
    produce(kafka, name, names(0, 2))
    inline_loader(name)
    with inline_loader.engine.begin() as conn:
        conn.execute(sa.text("DROP TABLE target"))

    produce(kafka, name, names(2, 1))
    with pytest.raises(ForeignBatchError, match="loads into table 'target'"):
        inline_loader(name, sink=sink)


def test_an_archive_that_is_gone_is_named(inline_loader: Loader, loaded: str, sink: Archive) -> None:
    with sink.connection(inline_loader.engine) as conn:
        sink.blobs.drop(conn)

    with pytest.raises(VerificationError, match=r"has no table '(archive|elsewhere)://orders_archive'"):
        verify("loader", sink=sink, engine=inline_loader.engine)
