"""Each scenario of `docs/semantics.md` moves positions, and the next load reads on from there, on Postgres and SQLite.

`verify` proves the group before and after each rewind.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.core.offsets import TopicPartition
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    UnknownTopicError,
)
from airflow_kafka_offsets.kafka import admin
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.rewinding import previewing
from airflow_kafka_offsets.rewinding.scenarios import write_offsets
from devstack.topics import delete_records
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, names, positions, rows
from tests.support.openings import at, produce_at
from tests.support.rewinds import TARGET, Rewinder, once, only

pytestmark = pytest.mark.server


def test_R01_a_preview_stores_nothing(rewinder: Rewinder, topic: TopicFactory) -> None:
    name = topic()
    produce(rewinder.loader.kafka, name, names(0, 100))
    # A new group has no history.
    for scenario, value in (("to-offset", 50), ("undo", None), ("to-batch", 1)):
        with pytest.raises(ConfigurationError, match="nothing was loaded yet"):
            rewinder.preview(scenario, value, name, new_group=scenario != "to-offset")

    preview = rewinder.preview("to-offset", 50, name, new_group=True)

    one = only(preview)
    assert (one.beginning, one.end, one.old, one.new and one.new.offset) == (0, 100, None, 50)
    assert (one.difference, one.offsets_reread, one.clamped) == (None, 0, False)
    assert sa.inspect(rewinder.loader.engine).get_table_names() == []

    rewinder.execute(preview)
    assert rewinder.positions(name) == {0: 50}
    rewinder.prove()
    rewinder.loader(name)
    assert rewinder.times(name) == once((50, 100))
    rewinder.prove()


SCENARIOS = {
    "R03-to-earliest": ("to-earliest", None, 0, ""),
    "R04-to-latest": ("to-latest", None, 200, ""),
    "R05-to-current": ("to-current", None, 100, ""),
    "R07-shift-forward": ("shift-by", 50, 150, ""),
    "R07-shift-back": ("shift-by", -50, 50, ""),
    "R08-clamped-to-beginning": ("shift-by", -150, 0, "clamped: -50 is before the beginning offset"),
    "R09-clamped-to-end": ("shift-by", 150, 200, "clamped: 250 is beyond the end offset"),
}
ON_THE_BROKER = {"R03-to-earliest", "R04-to-latest", "R07-shift-back"}
DAILY_WITHOUT_REPLACING = {"R03-to-earliest", "R07-shift-back", "R07-shift-forward"}
"""Scenarios that are added to every day; all are with `replace`, which also reads on from there, and `make soak` has
them all for both.
"""


@pytest.mark.parametrize(
    ("name", "value", "offset", "note", "replace"),
    [
        pytest.param(
            *scenario,
            replace,
            id=f"{case}-{'replace' if replace else 'add'}",
            marks=[pytest.mark.broker] * (case in ON_THE_BROKER)
            + [pytest.mark.long] * (not replace and case not in DAILY_WITHOUT_REPLACING),
        )
        for case, scenario in SCENARIOS.items()
        for replace in (False, True)
    ],
)
def test_positions_move_and_the_next_load_reads_on_from_there(
    rewinder: Rewinder, half: str, name: str, value: int | None, offset: int, note: str, replace: bool
) -> None:
    preview = rewinder.preview(name, value)
    one = only(preview)
    assert one.new is not None
    assert (one.new.offset, one.note, one.clamped) == (offset, note, bool(note))
    assert (one.difference, one.offsets_reread, one.offsets_skipped) == (
        offset - 100,
        max(0, 100 - offset),
        max(0, offset - 100),
    )

    done = rewinder.execute(preview, replace=TARGET if replace else None, who="somebody", reason="a test")

    again, removed = (offset, max(offset, 100)), max(0, 100 - offset) if replace else 0
    assert (done.rows_removed, done.dead_letters_removed) == (removed, 0)
    assert rewinder.positions(half) == {0: offset}
    if offset == 100 and (replace or name != "to-current"):
        assert (done.batch_id, done.moved) == (None, 0)
        assert rewinder.history() == [(1, "load", "committed")]
    else:
        assert (done.batch_id, done.moved) == (2, int(offset != 100))
        assert rewinder.history() == [(1, "load", "committed"), (2, "rewind", "committed")]
        assert rows(rewinder.loader.engine, "SELECT who, reason FROM offset_batches WHERE batch_id = 2") == [
            ("somebody", "a test")
        ]
    assert rewinder.gaps() == ([(0, 100, offset, "passed over")] if offset > 100 else [])
    assert rewinder.times(half) == once((0, min(offset, 100)) if replace else (0, 100))
    rewinder.prove()

    rewinder.loader(half)
    kept = (0, min(offset, 100)) if replace else (0, 100)
    assert rewinder.times(half) == once(kept, (offset, 200)), again
    rewinder.prove()


@pytest.mark.broker
def test_R12_each_partition_is_clamped_to_its_own_log(rewinder: Rewinder, topic: TopicFactory) -> None:
    name = topic(partitions=2)
    kafka = rewinder.loader.kafka
    produce(kafka, name, names(0, 100))
    produce(kafka, name, names(100, 10), 1)
    rewinder.loader(name)
    delete_records(kafka.bootstrap_servers, name, 20)

    preview = rewinder.preview("to-offset", 5)

    first, second = preview.partitions
    assert (first.new and first.new.offset, first.clamped, first.note) == (
        20,
        True,
        "clamped: 5 is before the beginning offset",
    )
    assert (second.new and second.new.offset, second.clamped, second.note) == (5, False, "")
    assert preview.offsets_reread == 85
    assert rewinder.execute(preview, replace=TARGET).rows_removed == 85
    rewinder.loader(name)
    # What only the target has left of the records is not touched.
    assert (rewinder.times(name), rewinder.times(name, 1)) == (once((0, 100)), once((0, 10)))
    rewinder.prove()


@pytest.mark.broker
def test_R14_an_instant_is_the_first_record_at_or_after_it(rewinder: Rewinder, topic: TopicFactory) -> None:
    name = topic(retention_ms="-1")
    produce_at(rewinder.loader.kafka, name, [number / 60 for number in range(50)])
    produce_at(rewinder.loader.kafka, name, [60 + number / 60 for number in range(50)], first=50)
    rewinder.loader(name)

    preview = rewinder.preview("to-datetime", "2026-03-01T12:30:00")

    one = only(preview)
    assert (preview.instant, one.new and one.new.offset, one.offsets_reread) == (at(30), 50, 50)
    # The same instant in another zone, and one that a record has.
    for same in ("2026-03-01T14:00:00+01:30", at(30), "2026-03-01T13:00:00Z"):
        found = only(rewinder.preview("to-datetime", same)).new
        assert found is not None
        assert found.offset == 50
    rewinder.execute(preview, replace=TARGET)
    rewinder.loader(name)
    assert rewinder.times(name) == once((0, 100))
    rewinder.prove()


def test_R19_after_the_last_record_comes_the_end(rewinder: Rewinder, half: str) -> None:
    one = only(rewinder.preview("to-datetime", datetime.now().astimezone() + timedelta(days=1)))

    assert (one.new and one.new.offset, one.note) == (200, "no record at or after that instant: the end offset")
    assert one.skipped == ((100, 200),)


def test_a_duration_counts_back_from_the_databases_clock(rewinder: Rewinder, topic: TopicFactory) -> None:
    name = topic(retention_ms="-1")
    produce_at(rewinder.loader.kafka, name, [0, 1])
    produce(rewinder.loader.kafka, name, names(2, 2))
    rewinder.loader(name)

    preview = rewinder.preview("by-duration", "PT1H")

    assert preview.instant is not None
    assert abs(preview.instant + timedelta(hours=1) - datetime.now().astimezone()) < timedelta(minutes=1)
    rewinder.execute(preview)
    rewinder.prove()
    rewinder.loader(name)
    assert rewinder.times(name) == once((0, 4), (2, 4))
    rewinder.prove()


class TestScope:
    def test_R22_only_what_is_in_the_scope_moves(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name, other = topic(partitions=3), topic()
        for partition in range(3):
            produce(rewinder.loader.kafka, name, names(10 * partition, 10), partition)
        produce(rewinder.loader.kafka, other, names(100, 5))
        rewinder.loader(name, other)

        assert rewinder("to-earliest", None, f"{name}:1").moved == 1

        assert rewinder.positions(name) == {0: 10, 1: 0, 2: 10}
        assert rewinder.positions(other) == {0: 5}
        rewinder.prove()
        rewinder.loader(name, other)
        assert [rewinder.times(name, partition) for partition in range(3)] == [
            once((0, 10)),
            once((0, 10), (0, 10)),
            once((0, 10)),
        ]
        rewinder.prove()
        # Without a scope it is all topics of the group.
        assert rewinder("to-earliest").moved == 4

    def test_topics_and_partitions_that_do_not_exist_are_named(self, rewinder: Rewinder, half: str) -> None:
        with pytest.raises(UnknownTopicError, match=re.escape(f"no partition {half}[4] (the topic has 1: 0..0)")):
            rewinder.preview("to-earliest", None, f"{half}:0,4")
        with pytest.raises(UnknownTopicError, match="has no topic 'no-such-topic'"):
            rewinder.preview("to-earliest", None, "no-such-topic")
        with pytest.raises(ConfigurationError, match=r"no group 'nobody'.*'loader'"):
            Rewinder(rewinder.loader, "nobody").preview("to-earliest")
        assert rewinder.positions(half) == {0: 100}


class TestFiles:
    @pytest.mark.broker
    def test_R28_what_was_exported_changes_nothing(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name = topic(partitions=3)
        for partition in range(3):
            produce(rewinder.loader.kafka, name, names(10 * partition, 3 + partition), partition)
        rewinder.loader(name)
        exported = write_offsets({TopicPartition(*tp): one for tp, one in positions(rewinder.loader.engine).items()})

        preview = rewinder.preview("from-file", exported)

        assert len(preview.partitions) == 3
        assert preview.changed == ()
        assert rewinder.execute(preview).batch_id is None
        # After other moves, it is the way back.
        rewinder("to-earliest")
        assert rewinder("from-file", exported).moved == 3
        assert rewinder.positions(name) == {0: 3, 1: 4, 2: 5}
        assert rewinder.gaps() == [], "what was loaded before is not passed over"
        rewinder.prove()

    def test_a_scope_holds_for_a_file_too(self, rewinder: Rewinder, topic: TopicFactory) -> None:
        name, other = topic(partitions=2), topic()
        for partition in range(2):
            produce(rewinder.loader.kafka, name, names(10 * partition, 5), partition)
        produce(rewinder.loader.kafka, other, names(20, 5))
        rewinder.loader(name, other)
        text = f"TOPIC,PARTITION,OFFSET\r\n{name},0,1\r\n\r\n{name},1,2\r\n{other},0,99\r\n"

        assert [
            (one.topic, one.partition, one.new and one.new.offset)
            for one in rewinder.preview("from-file", text, f"{name}:1", other).partitions
        ] == sorted([(name, 1, 2), (other, 0, 5)])
        with pytest.raises(ConfigurationError, match=r"Nothing of from-file \(3 partitions\) is in the scope"):
            rewinder.preview("from-file", text, topic())

        rewinder("from-file", text, f"{name}:1")
        assert rewinder.positions(name) == {0: 5, 1: 2}
        rewinder.loader(name, other)
        assert rewinder.times(name, 1) == once((0, 5), (2, 5))
        rewinder.prove()

    def test_an_unknown_partition_of_a_file_is_named(self, rewinder: Rewinder, half: str) -> None:
        with pytest.raises(UnknownTopicError, match=re.escape(f"no partition {half}[7] (the topic has 1: 0..0)")):
            rewinder.preview("from-file", f"{half},0,1\n{half},7,1\n")


@pytest.mark.parametrize(
    ("name", "value", "more"),
    [
        ("to-earliest", None, []),
        ("shift-by", -1, []),
        # No record is found, nor is a newer timestamp known.
        ("to-datetime", "2026-03-01T12:00:00", ["list_offsets"] * 2),
    ],
    ids=["to-earliest", "shift-by", "to-datetime"],
)
def test_a_preview_of_many_partitions_takes_a_handful_of_requests(
    inline_loader: Loader,
    topic: TopicFactory,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    value: Any,
    more: list[str],
) -> None:
    many = topic(partitions=200)
    rewinder = Rewinder(inline_loader)
    rewinder("to-earliest", None, many, new_group=True)
    asked: list[str] = []

    class Counted(Cluster):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            client = self._admin._client

            class Counting:
                def __getattr__(self, question: str) -> Any:
                    if question != "poll":
                        asked.append(question)
                    return getattr(client, question)

            self._admin._client = Counting()

    monkeypatch.setattr(previewing, "Cluster", Counted)

    assert len(rewinder.preview(name, value).partitions) == 200
    assert asked == ["list_topics", "describe_topics", "list_offsets", "list_offsets", *more]


@pytest.mark.parametrize(
    "scenario", [("to-latest", None), ("to-datetime", "2026-01-01T00:00:00Z")], ids=["end", "instant"]
)
def test_no_leader_outside_of_the_scope_is_asked(
    rewinder: Rewinder, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch, scenario: tuple[str, Any]
) -> None:
    """It may be dead."""
    name = topic(partitions=2)
    produce(rewinder.loader.kafka, name, names(0, 5), 1)
    asked: set[int] = set()
    clients: Any = admin
    make = clients.AdminClient

    def noting(*arguments: Any, **options: Any) -> Any:
        client = make(*arguments, **options)
        list_offsets = client.list_offsets

        def noted(offsets: Any, **options: Any) -> Any:
            asked.update(one.partition for one in offsets)
            return list_offsets(offsets, **options)

        client.list_offsets = noted
        return client

    monkeypatch.setattr(admin, "AdminClient", noting)

    one = only(rewinder.preview(*scenario, f"{name}:1", new_group=True))

    assert (one.topic_partition, one.end) == (TopicPartition(name, 1), 5)
    assert asked == {1}
