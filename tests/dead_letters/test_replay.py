"""Dead letters that are put through the pipeline again: each record is a row of a batch of its own kind."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Engine

from airflow_kafka_offsets import DeadLetters, ExtraColumns, Reading
from airflow_kafka_offsets.core.offsets import OffsetRange
from airflow_kafka_offsets.dead_letters import replay as replay_module
from airflow_kafka_offsets.dead_letters.replay import replay_dead_letters
from airflow_kafka_offsets.dead_letters.selection import DeadLetterFilter, count_by_batch, read_dead_letters
from airflow_kafka_offsets.exceptions import ConfigurationError, DatabaseUnavailableError, FencedError
from airflow_kafka_offsets.formats.extra_columns import Header
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.ledger.dead_letter_batches import Replayed
from airflow_kafka_offsets.ledger.overview import batches
from airflow_kafka_offsets.ledger.tables import Tables
from airflow_kafka_offsets.loading.stage import stage
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.staging.rows import Record
from tests.support.clients import Kafka, produce, producer
from tests.support.database_faults import ADDED
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.openings import KEPT
from tests.support.rewinds import Rewinder
from tests.support.verifying import LEFT_OUT, reread

pytestmark = pytest.mark.server


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    return log


def do(engine: Engine, *statements: str) -> None:
    with engine.begin() as conn:
        for statement in statements:
            conn.execute(sa.text(statement))


def replayed(
    loader: Loader, topic: str, *, corrected: Any = None, of: dict[str, Any] | None = None, **options: Any
) -> list[Replayed]:
    return replay_dead_letters(
        DeadLetterFilter("loader", **(of or {})),
        loader.pipeline([topic], **options),
        engine=loader.engine,
        launcher=loader.launcher,
        corrected=corrected,
        who="ana@host",
        reason="wider",
    )


def dead_letters(loader: Loader) -> list[Any]:
    return rows(loader.engine, "SELECT offset_value, error_class FROM dead_letters ORDER BY offset_value")


def history(loader: Loader) -> list[Any]:
    counts = "SELECT b.batch_id, b.records, b.row_count, b.dead_letters, r.partition, r.records, r.dead_letters"
    return rows(
        loader.engine, f"{counts} FROM offset_batches b JOIN offset_ranges r ON r.batch_id = b.batch_id ORDER BY 1, 5"
    )


def output(loader: Loader) -> list[Any]:
    return rows(
        loader.engine, "SELECT id, name, _kafka_partition, _kafka_offset, _batch_id FROM target ORDER BY 3, 4, 1"
    )


def bad_and_good(loader: Loader, topic: TopicFactory) -> str:
    """A topic with two partitions, of which two batches loaded all but the records whose names are too long."""
    name = topic(partitions=2)
    do(loader.engine, f"CREATE TABLE target (id BIGINT, name TEXT CHECK (length(name) < 7), {ADDED})")
    for first in (0, 100):
        produce(loader.kafka, name, names(first, 12))
        produce(loader.kafka, name, [*names(first + 50, 1), b"{", b'{"id": "x"}'], 1)
        loader(name, **LEFT_OUT)
    return name


def widen(loader: Loader) -> None:
    do(loader.engine, "ALTER TABLE target RENAME TO narrow", f"CREATE TABLE target (id BIGINT, name TEXT, {ADDED})")
    do(loader.engine, "INSERT INTO target SELECT * FROM narrow", "DROP TABLE narrow")


def test_each_batch_with_dead_letters_is_replayed_by_a_batch_of_its_own(
    inline_loader: Loader, topic: TopicFactory
) -> None:
    loader = inline_loader
    name = bad_and_good(loader, topic)
    assert [error_class for _, error_class in dead_letters(loader)].count("target") == 16
    widen(loader)

    done = replayed(loader, name, of={"error_class": "target"})

    assert done == [Replayed(1, 3, 3, 0, 3), Replayed(2, 13, 13, 0, 4)]
    assert dead_letters(loader) == [(offset, "value") for offset in (1, 2, 4, 5)]
    ids = {0: [*range(12), *range(100, 112)], 1: [50, None, None, 150]}
    assert output(loader) == [
        (
            number,
            f"name-{number}",
            partition,
            offset,
            (1 if offset < (12, 3)[partition] else 2) + (0 if len(f"name-{number}") < 7 else 2),
        )
        for partition in ids
        for offset, number in enumerate(ids[partition])
        if number is not None
    ]
    assert history(loader) == [
        (1, 15, 10, 5, 0, 12, 2),
        (1, 15, 10, 5, 1, 3, 3),
        (2, 15, 0, 15, 0, 12, 12),
        (2, 15, 0, 15, 1, 3, 3),
        (3, 3, 3, 0, 0, 2, 0),
        (3, 3, 3, 0, 1, 1, 0),
        (4, 13, 13, 0, 0, 12, 0),
        (4, 13, 13, 0, 1, 1, 0),
    ]
    assert (reread(loader).records, reread(loader).dead_letters) == (30, 4)
    with loader.engine.connect() as conn:
        found = batches(conn, Tables(), "loader", 2)
    assert [(row["batch_id"], row["kind"], row["state"], row["scenario"]) for row in found] == [
        (4, "dead_letters", "committed", "dead letters of batch 2"),
        (3, "dead_letters", "committed", "dead letters of batch 1"),
    ]
    assert {(row["who"], row["reason"], row["target_table"]) for row in found} == {("ana@host", "wider", "target")}


def test_a_second_replay_finds_nothing(inline_loader: Loader, topic: TopicFactory) -> None:
    name = bad_and_good(inline_loader, topic)
    widen(inline_loader)
    replayed(inline_loader, name)
    before = output(inline_loader), history(inline_loader)

    assert replayed(inline_loader, name, of={"error_class": "target"}) == []

    assert (output(inline_loader), history(inline_loader)) == before


def test_still_bad_records_stay_with_the_new_reason(inline_loader: Loader, topic: TopicFactory) -> None:
    loader = inline_loader
    name = bad_and_good(loader, topic)
    counts, found = history(loader), dead_letters(loader)

    assert replayed(loader, name, value_format=Json("id BIGINT NOT NULL, name STRING")) == [
        Replayed(1, 0, 0, 5, 3),
        Replayed(2, 0, 0, 15, 4),
    ]

    assert (history(loader)[:4], dead_letters(loader)) == (counts, found)
    abandoned = "SELECT state, reason FROM offset_batches WHERE batch_id = 3"
    assert rows(loader.engine, abandoned) == [("abandoned", "wider: nothing was written: all records are bad still")]
    reread(loader)


def test_values_can_be_corrected(inline_loader: Loader, topic: TopicFactory) -> None:
    loader = inline_loader
    name = bad_and_good(loader, topic)

    done = replayed(
        loader, name, corrected={1: {Record(name, 1, 1): b'{"id": 7, "name": "good"}', Record(name, 1, 2): b"["}}
    )

    assert done == [Replayed(1, 1, 1, 1, 3)]
    assert rows(
        loader.engine, "SELECT id, name, _batch_id FROM target WHERE _kafka_partition = 1 AND _kafka_offset = 1"
    ) == [(7, "good", 3)]
    reread(loader)


def test_dead_letters_follow_their_table_to_its_new_name(inline_loader: Loader, topic: TopicFactory) -> None:
    loader = inline_loader
    name = topic()
    produce(loader.kafka, name, [*names(0, 1), b"bad"])
    loader(name, on_bad_record=DeadLetters())
    do(loader.engine, "ALTER TABLE target RENAME TO renamed")

    done = replayed(loader, name, corrected={1: {Record(name, 0, 1): b'{"id": 7}'}}, sink=SqlTable("renamed"))

    assert done == [Replayed(1, 1, 1, 0, 2)]
    assert loader(name, sink=SqlTable("renamed"), on_bad_record=DeadLetters()).rows == 0


def test_a_corrected_value_is_of_one_batch(inline_loader: Loader, topic: TopicFactory) -> None:
    loader = inline_loader
    name = topic()
    produce(loader.kafka, name, [b"bad"])
    loader(name, on_bad_record=DeadLetters())
    Rewinder(loader)("to-earliest")
    loader(name, on_bad_record=DeadLetters())
    corrected = {3: {Record(name, 0, 0): b'{"id": 7, "name": "good"}'}}

    assert replayed(loader, name, corrected=corrected, of={"batch_id": 1}) == []
    assert replayed(loader, name, corrected=corrected) == [Replayed(3, 1, 1, 0, 4)]
    assert rows(loader.engine, "SELECT id FROM target") == [(7,)]


@pytest.mark.parametrize(
    ("of", "done"),
    [
        ({"batch_id": 2, "error_class": "target"}, [Replayed(2, 13, 13, 0, 3)]),
        ({"error_class": "value"}, [Replayed(1, 0, 0, 2, 3), Replayed(2, 0, 0, 2, 4)]),
        ({"ranges": (0, 10, 13)}, [Replayed(1, 2, 2, 0, 3), Replayed(2, 1, 1, 0, 4)]),
        ({"ranges": (1, 3, 4)}, [Replayed(2, 1, 1, 0, 3)]),
        ({"batch_id": 3}, []),
    ],
)
def test_filter_selects_dead_letters(
    inline_loader: Loader, topic: TopicFactory, of: dict[str, Any], done: list[Replayed]
) -> None:
    name = bad_and_good(inline_loader, topic)
    widen(inline_loader)
    if "ranges" in of:
        partition, start, end = of["ranges"]
        of = {"ranges": (OffsetRange(name, partition, start, end, end),)}

    assert replayed(inline_loader, name, of=of) == done


def test_key_and_headers_are_decoded_again(inline_loader: Loader, topic: TopicFactory) -> None:
    loader, name = inline_loader, topic(**KEPT)
    writer = producer(loader.kafka)
    writer.produce(name, b'{"id": "x"}', key=b'{"k": 1}', partition=0, headers=[("h", b"1"), ("h", None), ("t", b"t")])
    assert writer.flush(30) == 0
    parts: dict[str, Any] = {
        "extra_columns": ExtraColumns(key_format=Json("k BIGINT"), metadata={"t": Header("t"), "at": "timestamp"})
    }
    loader(name, value_format=Json("id BIGINT"), **parts, **LEFT_OUT)
    do(loader.engine, "DROP TABLE target")

    assert [done.records for done in replayed(loader, name, value_format=Json("id STRING"), **parts)] == [1]

    assert rows(loader.engine, "SELECT k, id, t, _kafka_offset FROM target") == [(1, "x", "t", 0)]


def test_dead_letters_removed_meanwhile_are_not_written_twice(
    inline_loader: Loader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = inline_loader
    name = bad_and_good(loader, topic)
    widen(loader)

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(replay_module, "stage", stage)
        replayed(loader, name)
        return stage(*args)

    monkeypatch.setattr(replay_module, "stage", overtaken)
    with pytest.raises(FencedError, match=r"Batch 3, a replay of dead letters of batch 1 .* was taken over"):
        replayed(loader, name)

    assert len(output(loader)) == 26
    states = "SELECT batch_id, state FROM offset_batches WHERE kind = 'dead_letters' ORDER BY 1"
    assert rows(loader.engine, states) == [(3, "abandoned"), (4, "committed"), (5, "committed")]
    reread(loader)


def test_another_target_is_refused(inline_loader: Loader, topic: TopicFactory) -> None:
    name = bad_and_good(inline_loader, topic)

    with pytest.raises(ConfigurationError, match=r"Batch 1 was loaded into 'target', .* not in 'elsewhere'"):
        replayed(inline_loader, name, sink=SqlTable("elsewhere"))


def test_dead_letters_removed_since_they_were_counted_are_left_out(
    inline_loader: Loader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = bad_and_good(inline_loader, topic)
    widen(inline_loader)
    count = count_by_batch

    def overtaken(*args: Any) -> Any:
        found = count(*args)
        do(inline_loader.engine, "DELETE FROM dead_letters WHERE batch_id = 1")
        return found

    monkeypatch.setattr(replay_module, "count_by_batch", overtaken)
    assert [done.batch for done in replayed(inline_loader, name)] == [2]


def test_with_a_transform(postgres_loader: Loader, topic: TopicFactory) -> None:
    loader = postgres_loader
    name = topic()
    produce(loader.kafka, name, [*names(0, 3), b'{"id": 3, "name": 4}', b"{"])
    transform = "tests.loading.test_transforms.twice"
    loader(name, transform=transform, **LEFT_OUT)

    (done,) = replayed(
        loader,
        name,
        transform=transform,
        value_format=Json("id BIGINT, name STRING"),
        corrected={1: {Record(name, 0, 3): b'{"id": 3, "name": "four"}', Record(name, 0, 4): b"{"}},
    )

    assert done == Replayed(1, 1, 2, 1, 2)
    assert rows(loader.engine, "SELECT id, count(*) FROM target GROUP BY id ORDER BY id") == [(n, 2) for n in range(4)]
    assert loader.launcher.jobs[-1].kafka_config == {}


def test_records_that_were_too_large_to_be_kept_stay_unless_they_are_corrected(
    inline_loader: Loader, topic: TopicFactory
) -> None:
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, [*names(0, 2), b'{"id": 2, "name": "%s"}' % (b"x" * 200)])
    loader(name, reading=Reading(max_record_bytes=100), **LEFT_OUT)

    assert replayed(loader, name) == []
    assert replayed(loader, name, corrected={1: {Record(name, 0, 2): b"{"}}) == [Replayed(1, 0, 0, 1, 2)]
    assert dead_letters(loader) == [(2, "size")]
    assert replayed(loader, name) == []
    assert replayed(loader, name, corrected={1: {Record(name, 0, 2): b'{"id": 2}'}}) == [Replayed(1, 1, 1, 0, 3)]

    assert output(loader)[-1][:2] == (2, None)
    reread(loader)


def test_size_of_kept_dead_letters_is_not_measured_again(inline_loader: Loader, topic: TopicFactory) -> None:
    loader, name = inline_loader, topic()
    produce(loader.kafka, name, [b'{"id": "%s"}' % (b"x" * 200)])
    loader(name, **LEFT_OUT)

    assert replayed(loader, name, reading=Reading(max_record_bytes=100)) == [Replayed(1, 0, 0, 1, 2)]
    assert dead_letters(loader) == [(0, "value")]
    do(loader.engine, "DROP TABLE target")
    assert replayed(loader, name, reading=Reading(max_record_bytes=100), value_format=Json("id STRING")) == [
        Replayed(1, 1, 1, 0, 3)
    ]


def test_dead_letters_are_read_batch_by_batch(
    inline_loader: Loader, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = bad_and_good(inline_loader, topic)
    held: list[set[int]] = []

    def noted(*args: Any, **options: Any) -> Any:
        found = list(read_dead_letters(*args, **options))
        held.append({dead_letter.batch_id for dead_letter in found})
        return iter(found)

    monkeypatch.setattr(replay_module, "read_dead_letters", noted)
    replayed(inline_loader, name)

    assert held == [{1}, {2}]


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_connection_that_breaks_at_commit_neither_loses_nor_doubles_them(
    inline_loader: Loader, topic: TopicFactory, moment: str
) -> None:
    loader = inline_loader
    name = bad_and_good(loader, topic)
    widen(loader)
    broken: list[str] = []

    def break_once(conn: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement == "COMMIT" and not broken and "INTO replaced_output" in seen[-1]:
            broken.append(moment)
            raise sa.exc.OperationalError(statement, {}, Exception("gone"), connection_invalidated=True)
        seen.append(statement)

    seen = [""]
    sa.event.listen(loader.engine, f"{moment}_cursor_execute", break_once)
    target = {"error_class": "target"}

    if moment == "before":
        with pytest.raises(DatabaseUnavailableError):
            replayed(loader, name, of=target)
        assert len(dead_letters(loader)) == 20

    first = 4 if moment == "before" else 3
    assert replayed(loader, name, of=target) == [Replayed(1, 3, 3, 0, first), Replayed(2, 13, 13, 0, first + 1)]
    assert broken
    assert len(dead_letters(loader)) == 4
    reread(loader)
