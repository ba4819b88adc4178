"""Replays that take exactly the records of a span of time, wherever they lie, and replace what was loaded of these."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import BatchBounds, DeadLetters, Limits, Staging, TimeBounds
from airflow_kafka_offsets.core.instants import milliseconds
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DoubleLoadError,
    StagingError,
    VerificationError,
)
from airflow_kafka_offsets.loading.context import LoadResult
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from tests.support.clients import Kafka, produce
from tests.support.dying_load import DyingLoad, Replay
from tests.support.inline import InlineLauncher
from tests.support.loads import Loader, TopicFactory, in_dialect, rows
from tests.support.openings import KEPT, at, one_record_transactions, produce_at
from tests.support.replays import RUN, Interrupted, Replayer, die, offsets, proved, states, url
from tests.support.rewinds import Rewinder

pytestmark = pytest.mark.server

OWN: dict[str, Any] = {"sink": SqlTable("target"), "replace": True}
MINUTES = [0, 5, 1, 2, 6, 3]
SPAN = TimeBounds(at(1), at(4), all_records=True)


@pytest.fixture
def shuffled(replayer: Replayer, topic: TopicFactory) -> str:
    """Two partitions, whose records are out of order; all are loaded."""
    name = topic(partitions=2, **KEPT)
    produce_at(replayer.loader.kafka, name, MINUTES)
    produce_at(replayer.loader.kafka, name, [9, 3], first=10, partition=1)
    replayer.loader(name)
    return name


@pytest.mark.parametrize(
    ("kind", "fits"),
    [("timestamp(3)", True), ("timestamptz", True), ("timestamptz(0)", False)],
)
def test_a_column_that_rounds_timestamps_says_nothing_of_the_span(
    log: Kafka, postgres_engine: Engine, topic: TopicFactory, kind: str, fits: bool
) -> None:
    loader = Loader(log, postgres_engine, InlineLauncher())
    name = topic(**KEPT)
    produce_at(log, name, [1, 1.0001, 0.9999, 2])
    execute(
        postgres_engine,
        "CREATE TABLE target (id bigint, name text, _kafka_topic text, _kafka_partition int, _kafka_offset bigint, "
        f"_kafka_timestamp {kind}, _batch_id bigint)",
    )
    # The session's time zone decides what a column without one means.
    execute(postgres_engine, f"ALTER DATABASE {postgres_engine.url.database} SET timezone = 'Asia/Kolkata'")
    postgres_engine.dispose()
    loader(name)

    if fits:
        assert Replayer(loader)(name, TimeBounds(at(1), at(2), all_records=True), **OWN).rows == 2
        proved(loader)
    else:
        with pytest.raises(ConfigurationError, match=r"has a column _kafka_timestamp of type TIMESTAMP.* milliseconds"):
            Replayer(loader)(name, TimeBounds(at(1), at(2), all_records=True), **OWN)


def test_other_databases_are_refused(replayer: Replayer) -> None:
    other = sa.create_engine("sqlite://")
    other.dialect.name = "mssql"

    with pytest.raises(ConfigurationError, match="milliseconds, which tables on mssql may not store"):
        Replayer(replace(replayer.loader, engine=other))("orders", SPAN, **OWN)
    other.dispose()


def execute(engine: Engine, statement: str) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql(in_dialect(engine, statement))


def batches(replayer: Replayer, table: str = "target") -> dict[tuple[int, int], int]:
    """The batch of each row, by partition and offset."""
    found = rows(replayer.loader.engine, f"SELECT _kafka_partition, _kafka_offset, _batch_id FROM {table}")
    assert len({row[:2] for row in found}) == len(found)
    return {(partition, offset): batch for partition, offset, batch in found}


class TestAnotherTable:
    def test_the_records_of_the_span_are_appended(self, replayer: Replayer, shuffled: str) -> None:  # T06
        result = replayer(shuffled, SPAN)

        assert (result.records, result.rows) == (4, 4)
        assert offsets(replayer.loader, "elsewhere") == {0: [2, 3, 5], 1: [1]}
        assert rows(replayer.loader.engine, "SELECT partition, records FROM offset_ranges WHERE batch_id = 2") == [
            (0, 3),
            (1, 1),
        ]

    @pytest.mark.broker
    def test_replay_reads_transactions(self, replayer: Replayer, topic: TopicFactory) -> None:
        name = topic(**KEPT)
        one_record_transactions(replayer.loader.kafka, name, MINUTES)

        assert replayer(name, SPAN).rows == 3
        assert offsets(replayer.loader, "elsewhere") == {0: [4, 6, 10]}

    def test_without_an_end_all_newer_records_are_taken(self, replayer: Replayer, shuffled: str) -> None:
        replayer(shuffled, TimeBounds(at(3), all_records=True))

        assert offsets(replayer.loader, "elsewhere") == {0: [1, 4, 5], 1: [0, 1]}

    def test_a_span_without_records_is_no_error(self, replayer: Replayer, shuffled: str) -> None:
        assert replayer(shuffled, TimeBounds(at(7), at(8), all_records=True)).rows == 0

    def test_a_run_appends_spans_that_do_not_overlap(self, replayer: Replayer, shuffled: str) -> None:
        replayer(shuffled, SPAN, run=RUN)
        other = replace(RUN, map_index=1)

        replayer(shuffled, TimeBounds(at(4), at(6), all_records=True), run=other)

        assert offsets(replayer.loader, "elsewhere") == {0: [1, 2, 3, 5], 1: [1]}
        # The ranges of all of these go on to the end of the log.
        for bounds in (
            TimeBounds(at(3), at(9), all_records=True),
            TimeBounds(at(0), all_records=True),
            TimeBounds(at(2)),
        ):
            with pytest.raises(DoubleLoadError, match="of the same run replayed"):
                replayer(shuffled, bounds, run=replace(RUN, map_index=2))


class TestTheGroupsTable:
    def test_rows_of_the_span_alone_are_replaced(self, replayer: Replayer, shuffled: str) -> None:  # T07
        result = replayer(shuffled, SPAN, **OWN)

        assert result.rows == 4
        replayed = {(0, 2), (0, 3), (0, 5), (1, 1)}
        loaded = {(0, offset) for offset in range(6)} | {(1, 0), (1, 1)}
        assert batches(replayer) == {place: 2 if place in replayed else 1 for place in loaded}
        assert rows(
            replayer.loader.engine, "SELECT partition, row_count FROM replaced_output WHERE batch_id = 2 ORDER BY 1"
        ) == [(0, 3), (1, 1)]
        proved(replayer.loader)

    def test_again_and_in_part_and_as_a_range(self, replayer: Replayer, shuffled: str) -> None:
        for bounds in (
            SPAN,
            TimeBounds(at(2), at(6), all_records=True),
            TimeBounds(at(0), at(1), all_records=True),
            {shuffled: {0: (2, 4)}},
            SPAN,
        ):
            replayer(shuffled, bounds, **OWN)
            proved(replayer.loader)

        assert batches(replayer) == {
            (0, 0): 4, (0, 1): 3, (0, 2): 6, (0, 3): 6, (0, 4): 1, (0, 5): 6, (1, 0): 1, (1, 1): 6
        }  # fmt: skip

    def test_records_after_the_positions_are_left_to_the_loads(self, replayer: Replayer, shuffled: str) -> None:
        produce_at(replayer.loader.kafka, shuffled, [2, 8, 3], first=20)

        assert replayer(shuffled, SPAN, **OWN).rows == 4
        replayer.loader(shuffled)

        assert len(batches(replayer)) == 11
        proved(replayer.loader)

    @pytest.mark.parametrize(("offset", "batch"), [(3, 2), (4, 1)], ids=["of-the-replay", "of-the-load"])
    def test_a_missing_row_is_still_a_violation(
        self, replayer: Replayer, shuffled: str, offset: int, batch: int
    ) -> None:
        replayer(shuffled, SPAN, **OWN)
        engine = replayer.loader.engine
        execute(engine, f"DELETE FROM target WHERE _kafka_partition = 0 AND _kafka_offset = {offset}")
        with pytest.raises(VerificationError, match=f"rows of batch {batch}, .*rows are missing"):
            proved(replayer.loader)

        # Where the history fits the table, Kafka has the record.
        execute(engine, f"UPDATE offset_ranges SET records = records - 1 WHERE batch_id = {batch} AND partition = 0")
        execute(engine, f"UPDATE offset_batches SET row_count = row_count - 1 WHERE batch_id = {batch}")
        with pytest.raises(
            VerificationError, match=f"the record at offset {offset}, which was loaded by batch 1, is neither"
        ):
            proved(replayer.loader)

    def test_dead_letters_of_the_span_are_replaced_too(self, replayer: Replayer, topic: TopicFactory) -> None:
        name = topic(**KEPT)
        for minutes in (2, 7, 3):
            produce(replayer.loader.kafka, name, [b"no JSON"], timestamp=milliseconds(at(minutes)))
        replayer.loader(name, on_bad_record=DeadLetters())

        replayer(name, SPAN, on_bad_record=DeadLetters(), **OWN)

        found = rows(replayer.loader.engine, "SELECT offset_value, batch_id FROM dead_letters ORDER BY 1")
        assert found == [(0, 2), (1, 1), (2, 2)]
        proved(replayer.loader)

    def test_a_later_try_carries_on_with_the_same_records(self, replayer: Replayer, shuffled: str) -> None:
        with pytest.raises(StagingError):
            replayer(shuffled, SPAN, run=RUN, launcher=Interrupted(die), limits=Limits(max_records=3), **OWN)
        produce_at(replayer.loader.kafka, shuffled, [2], first=20)

        result = replayer(shuffled, SPAN, run=replace(RUN, try_number=2), limits=Limits(max_records=3), **OWN)

        assert result.rows == 4
        assert {state for kind, state in states(replayer.loader) if kind == "replay"} == {"committed"}
        proved(replayer.loader)

    @pytest.mark.broker
    @pytest.mark.parametrize("point", ["after the manifest", "inside the transaction of a replay", "after COMMIT"])
    def test_killed_and_tried_again(self, replayer: Replayer, shuffled: str, point: str, tmp_path: Path) -> None:
        loader = replayer.loader
        options = {"sink": SqlTable("target"), "staging": Staging(dir=str(tmp_path))}
        doomed = Replay(url(loader), loader.kafka.bootstrap_servers, (shuffled,), RUN, options, SPAN, True)
        with DyingLoad(doomed, point) as process:
            process.reach(point)
            process.kill()

        with DyingLoad(replace(doomed, run=replace(RUN, try_number=2))) as process:
            result = process.result()

        assert isinstance(result, LoadResult), result
        assert (result.records, result.rows) == (4, 4)
        assert sorted(place for place, batch in batches(replayer).items() if batch == 2) == [
            (0, 2),
            (0, 3),
            (0, 5),
            (1, 1),
        ]
        proved(loader)

    def test_partly_replaced_batch_is_not_loaded_again(self, replayer: Replayer, topic: TopicFactory) -> None:
        name = topic(**KEPT)
        produce_at(replayer.loader.kafka, name, [1, 9, 2])
        replayer(name, {name: {0: (0, 3)}}, sink=SqlTable("target"))
        replayer.loader(name, start="latest")
        replayer(name, SPAN, **OWN)
        Rewinder(replayer.loader)("to-offset", 0, name)

        # The record at 9 is in the table, as a replay before the first load appended it.
        with pytest.raises(DoubleLoadError, match="a replay of group 'loader', has appended"):
            replayer.loader(name)

    def test_a_batch_of_it_is_not_replayed_as_a_range(self, replayer: Replayer, shuffled: str) -> None:
        replayer(shuffled, SPAN, **OWN)

        with pytest.raises(
            ConfigurationError, match=r"Batch 2 took the records since .* replay that span with all_records"
        ):
            replayer(shuffled, BatchBounds(2), **OWN)

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            (
                "ALTER TABLE target DROP COLUMN _kafka_timestamp",
                "has no column _kafka_timestamp, but it must hold",
            ),
            (
                "UPDATE target SET _kafka_timestamp = NULL WHERE _kafka_offset = 4",
                "holds 1 row of the offsets that are read, without",
            ),
        ],
        ids=["column", "value"],
    )
    def test_rows_that_do_not_say_their_time_are_not_replaced(
        self, replayer: Replayer, shuffled: str, change: str, told: str
    ) -> None:
        execute(replayer.loader.engine, change)

        with pytest.raises(ConfigurationError, match=told):
            replayer(shuffled, SPAN, **OWN)

        assert rows(replayer.loader.engine, "SELECT count(*), max(_batch_id) FROM target") == [(8, 1)]
