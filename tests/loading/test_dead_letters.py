"""Records that cannot be decoded: with the batch, or instead of it. The cases are those of `docs/semantics.md`."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from airflow_kafka_offsets import DeadLetters, Limits, Reading, Staging, StateTables
from airflow_kafka_offsets.exceptions import DeadLetterError, RecordError
from airflow_kafka_offsets.formats.simple_formats import Json
from airflow_kafka_offsets.sinks.sql.table import SqlTable
from airflow_kafka_offsets.verification.verify import verify
from tests.support.clients import Kafka, produce, producer
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.openings import KEPT, ids

pytestmark = pytest.mark.server


@pytest.fixture
def kafka(log: Kafka) -> Kafka:
    """A log in memory; the real broker where a test is marked `broker`."""
    return log


class TestDeadLetters:
    BAD = (b"{not json", b'{"id": "text"}', b"\xff\xfe", b"[]")

    @pytest.mark.broker
    def test_bad_records_are_set_aside_with_the_batch(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic(partitions=2, **KEPT)
        kafka = inline_loader.kafka
        writer = producer(inline_loader.kafka)
        for number, value in enumerate([*names(0, 3), *self.BAD, *names(3, 2)]):
            writer.produce(
                name, value, key=b"key", partition=0, headers=[("h", b"1"), ("h", None)], timestamp=1_000 + number
            )
        assert writer.flush(30) == 0
        produce(kafka, name, names(10, 5), 1)

        result = inline_loader(name, on_bad_record=DeadLetters())

        assert (result.records, result.rows, result.dead_letters) == (14, 10, 4)
        assert ids(inline_loader) == [0, 1, 2, 3, 4, *range(10, 15)]
        dead_letters = rows(
            inline_loader.engine,
            "SELECT topic, partition, offset_value, value, key, headers, error FROM dead_letters ORDER BY offset_value",
        )
        assert [(t, p, o, bytes(v)) for t, p, o, v, *_ in dead_letters] == [
            (name, 0, 3 + i, value) for i, value in enumerate(self.BAD)
        ]
        assert {bytes(key) for *_, key, _, _ in dead_letters} == {b"key"}
        assert {headers for *_, headers, _ in dead_letters} == {'[["h", "MQ=="], ["h", null]]'}
        assert "'id' is declared as BIGINT, but holds string" in dead_letters[1][-1]
        assert rows(inline_loader.engine, "SELECT records, row_count, dead_letters FROM offset_batches") == [
            (14, 10, 4)
        ]

    def test_a_run_warns_once_of_the_first_and_says_how_to_see_all(
        self, inline_loader: Loader, topic: TopicFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        name, sink = topic(), SqlTable("target", conn_id="warehouse")
        produce(inline_loader.kafka, name, [*self.BAD, *names(4, 2)])
        options: dict[str, Any] = {"sink": sink, "limits": Limits(max_records=2), "on_bad_record": DeadLetters()}

        inline_loader(name, **options, state_tables=StateTables(prefix="x_"))
        inline_loader(name, **options, state_tables=StateTables(prefix="x_"))

        (warning,) = [record.message for record in caplog.records if "new dead letters" in record.message]
        assert (
            f"4 new dead letters of group 'loader'; the first one is {name}[0] offset 0 of batch 1: it is not"
            in warning
        )
        assert " exactly one JSON object, at byte 1. '" in warning
        assert "'kafka-offsets dead-letters list loader --conn-id warehouse --prefix x_' lists all" in warning

    def test_instants_that_no_client_can_read_are_among_them(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        times = [
            "0001-01-01T00:00:00Z",
            "0000-12-31T23:59:59Z",
            "9999-12-31T23:59:59.999999Z",
            "9999-12-31T23:59:59-01:00",
        ]
        produce(inline_loader.kafka, name, [b'{"id": %d, "at": "%s"}' % (i, at.encode()) for i, at in enumerate(times)])

        inline_loader(name, value_format=Json("id BIGINT, at TIMESTAMP"), on_bad_record=DeadLetters())

        table = sa.Table("target", sa.MetaData(), autoload_with=inline_loader.engine)
        with inline_loader.engine.connect() as conn:
            read = conn.execute(sa.select(table.c.id, table.c.at).order_by(table.c.id)).all()
        assert [(number, at.year) for number, at in read] == [(0, 1), (2, 9999)]
        errors = rows(inline_loader.engine, "SELECT offset_value, error FROM dead_letters ORDER BY offset_value")
        assert errors == [(offset, "column 'at': it lies outside of the years 1 to 9999") for offset in (1, 3)]

    def test_records_that_are_too_large_are_among_them_without_their_contents(
        self, inline_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(inline_loader.kafka, name, [*names(0, 2), b'{"id": 2, "name": "%s"}' % (b"x" * 1_000), *names(3, 2)])
        with pytest.raises(
            RecordError,
            match=r"offset 2 cannot be loaded: it has 1,021 bytes, but Reading.max_record_bytes allows 1,000",
        ):
            inline_loader(name, reading=Reading(max_record_bytes=1_000))

        result = inline_loader(name, reading=Reading(max_record_bytes=1_000), on_bad_record=DeadLetters())

        assert (result.records, result.rows, result.dead_letters) == (5, 4, 1)
        assert rows(inline_loader.engine, "SELECT offset_value, value, error FROM dead_letters") == [
            (2, None, "it has 1,021 bytes, but Reading.max_record_bytes allows 1,000")
        ]
        verify("loader", sink=SqlTable("target"), engine=inline_loader.engine, kafka_config=inline_loader.config)

    def test_the_same_records_fail_the_batch_by_default(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        produce(inline_loader.kafka, name, [*names(0, 3), *self.BAD])

        with pytest.raises(RecordError, match=f"topic '{name}' partition 0 offset 3"):
            inline_loader(name)

        inline_loader(name, on_bad_record=DeadLetters())
        assert rows(inline_loader.engine, "SELECT count(*) FROM dead_letters") == [(4,)]

    def test_too_many_fail_the_batch_and_name_the_first(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        produce(inline_loader.kafka, name, [*names(0, 3), *self.BAD])

        with pytest.raises(
            DeadLetterError, match=r"4 of 7 records of batch 1 .* DeadLetters.limit allows 3 .* offset 3"
        ):
            inline_loader(name, on_bad_record=DeadLetters(limit=3), staging=Staging(slice_offsets=3))
        assert ids(inline_loader) == []
        assert rows(inline_loader.engine, "SELECT count(*) FROM dead_letters") == [(0,)]

        inline_loader(name, on_bad_record=DeadLetters(limit=4))
        assert len(inline_loader.launcher.jobs) == 1, "the staged files were not used"
        assert rows(inline_loader.engine, "SELECT count(*) FROM dead_letters") == [(4,)]

    def test_too_many_of_one_slice_fail_the_batch_before_it_is_staged(
        self, postgres_loader: Loader, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(postgres_loader.kafka, name, [*names(0, 3), *self.BAD])

        told = (
            rf"More than 3 records of {name}\[0\] 0\.\.7 cannot be decoded, and DeadLetters.limit allows 3 .* "
            "partition 0 offset 3"
        )
        with pytest.raises(DeadLetterError, match=told):
            postgres_loader(name, on_bad_record=DeadLetters(limit=3))
        assert rows(postgres_loader.engine, "SELECT state FROM offset_batches") == [("planned",)]

        postgres_loader(name, on_bad_record=DeadLetters(limit=4))
        assert rows(postgres_loader.engine, "SELECT count(*) FROM dead_letters") == [(4,)]

    def test_a_limit_may_be_a_share_of_the_batch(self, inline_loader: Loader, topic: TopicFactory) -> None:
        name = topic()
        produce(inline_loader.kafka, name, [*names(0, 6), *self.BAD])
        slices = Staging(slice_offsets=3)

        with pytest.raises(DeadLetterError, match=r"4 of 10 records .* DeadLetters.limit allows 3 in this batch"):
            inline_loader(name, on_bad_record=DeadLetters(limit=0.39), staging=slices)

        assert inline_loader(name, on_bad_record=DeadLetters(limit=0.4), staging=slices).dead_letters == 4
