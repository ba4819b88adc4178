"""Rows of keys that the target refuses, where refused records become dead letters."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.sinks.sql import upsert
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.loads import Loader, TopicFactory, rows
from tests.support.mariadb import needs_checks
from tests.support.upserts import KEYED, ORIGIN, POSTGRES, do, held, record
from tests.support.verifying import LEFT_OUT

pytestmark = pytest.mark.server


def dead_letters(loader: Loader) -> list[int]:
    return [offset for (offset,) in rows(loader.engine, "SELECT offset_value FROM dead_letters ORDER BY offset_value")]


def test_the_newest_row_that_is_not_refused_wins(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    needs_checks(inline_loader.engine)
    name = topic()
    produce(
        kafka,
        name,
        [
            record(1, "a"),
            record(1, "b"),
            record(2, "bad"),
            record(1, "bad"),
            record(3, "c"),
            record(3, "bad"),
            record(4, "d"),
        ],
    )
    do(inline_loader.engine, f"CREATE TABLE target (id BIGINT PRIMARY KEY, name TEXT CHECK (name <> 'bad'), {ORIGIN})")

    result = inline_loader(name, **KEYED, **LEFT_OUT)

    assert (result.records, result.rows, result.dead_letters) == (7, 3, 3)
    assert held(inline_loader.engine) == [(1, "b", 1), (3, "c", 4), (4, "d", 6)]
    assert dead_letters(inline_loader) == [2, 3, 5]


def test_a_bad_row_that_a_newer_one_replaces_is_never_written(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    """It is not tried, and is no dead letter: only the newest row of a key is merged."""
    needs_checks(inline_loader.engine)
    name = topic()
    produce(kafka, name, [record(1, "bad"), record(1, "b")])
    do(inline_loader.engine, f"CREATE TABLE target (id BIGINT PRIMARY KEY, name TEXT CHECK (name <> 'bad'), {ORIGIN})")

    assert inline_loader(name, **KEYED, **LEFT_OUT).dead_letters == 0

    assert held(inline_loader.engine) == [(1, "b", 1)]


def test_many_bad_rows_of_a_key_take_no_look_at_all_rows_each(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_checks(inline_loader.engine)
    monkeypatch.setattr(upsert, "_OLDER_ROWS", 8)
    name = topic()
    good = [record(key, "a") for key in range(2, 300)]
    produce(kafka, name, [record(1, "a"), *good[:150], *(20 * [record(1, "bad")]), *good[150:], *(6 * good[:1])])
    do(inline_loader.engine, f"CREATE TABLE target (id BIGINT PRIMARY KEY, name TEXT CHECK (name <> 'bad'), {ORIGIN})")
    merges: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        merges.extend([statement] if statement.startswith("INSERT INTO target") else [])

    sa.event.listen(inline_loader.engine, "before_cursor_execute", note)
    result = inline_loader(name, **KEYED, **LEFT_OUT)

    assert (result.rows, result.dead_letters) == (299, 20)
    assert held(inline_loader.engine)[0] == (1, "a", 0)
    # The first is found among all rows; each of the others takes a few of its own.
    assert len(merges) < 100


def test_null_keys(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, [record(None, "a"), record(1, "b"), record(None, "c")])

    assert inline_loader(name, **KEYED, **LEFT_OUT, value_format=Json("id BIGINT, name STRING")).dead_letters == 2

    assert held(inline_loader.engine) == [(1, "b", 1)]
    assert dead_letters(inline_loader) == [0, 2]


@POSTGRES
def test_values_that_the_type_refuses(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    """They are refused by the temporary table already."""
    name = topic()
    produce(kafka, name, [record(1, "{}"), record(2, "{"), record(1, "{")])
    do(inline_loader.engine, f"CREATE TABLE target (id BIGINT PRIMARY KEY, name JSONB, {ORIGIN})")

    assert inline_loader(name, **KEYED, **LEFT_OUT).rows == 1

    assert rows(inline_loader.engine, "SELECT id, _kafka_offset FROM target") == [(1, 0)]
    assert dead_letters(inline_loader) == [1, 2]


def test_a_row_that_another_refuses_is_an_error(inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce(kafka, name, [record(1, "a"), record(2, "a")])
    do(inline_loader.engine, f"CREATE TABLE target (id BIGINT PRIMARY KEY, name TEXT UNIQUE, {ORIGIN})")

    with pytest.raises(
        RecordError, match=r"offset 1 .*(duplicate key|UNIQUE constraint).*correct the target, or the record; then"
    ):
        inline_loader(name, **KEYED, **LEFT_OUT)

    assert held(inline_loader.engine) == []
