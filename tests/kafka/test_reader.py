"""Reading a slice: what is left out, where it ends, and what the client's troubles become."""

from __future__ import annotations

import gc
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import repeat
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import (
    ConfigurationError,
    DataLossError,
    LogTruncatedError,
    ReadError,
    RecordError,
    UnknownTopicError,
)
from airflow_kafka_offsets.kafka import consumer as consumer_module
from airflow_kafka_offsets.kafka import polled
from airflow_kafka_offsets.kafka import reader as read_module
from airflow_kafka_offsets.kafka.consumer import consumer_config
from airflow_kafka_offsets.kafka.reader import read
from tests.support.fake_consumer import TIMED_OUT, FakeConsumer, Step, end_of_log, failure
from tests.support.messages import FakeMessage

ONE = Slice(0, "orders", 0, 10, 20, leader_epoch=3)
LAST_MS = 253_402_300_799_999
UNKNOWN = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
CUT = "Partition log truncation detected at offset 10 (leader epoch 3): broker end offset is 8: "
OUT_OF_RANGE = failure(KafkaError._AUTO_OFFSET_RESET, "fetch failed: Broker: Offset out of range (broker 1)")


def messages(first: int, end: int, **fields: Any) -> list[FakeMessage]:
    return [FakeMessage(offset, **fields) for offset in range(first, end)]


def offsets(batches: Sequence[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def read_all(consumer: FakeConsumer, one: Slice = ONE, **options: Any) -> list[pa.RecordBatch]:
    with pytest.MonkeyPatch.context() as patch:
        consumer.install(patch)
        batches = list(read(one, {}, **options))
    assert consumer.closed
    return batches


def test_a_client_that_does_not_close_is_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    consumer, is_over = FakeConsumer([messages(10, 20)]).install(monkeypatch), threading.Event()
    monkeypatch.setattr(consumer, "close", is_over.wait)
    monkeypatch.setattr(consumer_module, "_CLOSE_SECONDS", 0.01)

    assert offsets(list(read(ONE, {}))) == list(range(10, 20))

    assert "A Kafka client has not closed" in caplog.text
    is_over.set()


def test_an_error_of_closing_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = FakeConsumer([messages(10, 20)]).install(monkeypatch)
    monkeypatch.setattr(consumer, "close", lambda: raised(TIMED_OUT))
    with pytest.raises(KafkaException):
        list(read(ONE, {}))


def raised(error: Exception) -> None:
    raise error


def refused(error: type[Exception], consumer: FakeConsumer, one: Slice = ONE, **options: Any) -> str:
    with pytest.raises(error) as raised:
        read_all(consumer, one, **options)
    assert consumer.closed
    return str(raised.value)


class TestWhatIsRead:
    def test_the_position_is_validated_where_its_epoch_is_known(self) -> None:
        consumer = FakeConsumer([messages(10, 20)])
        read_all(consumer)
        (assigned,) = consumer.assigned
        assert (assigned.topic, assigned.partition, assigned.offset, assigned.leader_epoch) == ("orders", 0, 10, 3)

    def test_slice_without_leader_epoch_assigns_none(self) -> None:
        consumer = FakeConsumer([messages(10, 20)])
        read_all(consumer, Slice(0, "orders", 0, 10, 20))
        assert consumer.assigned[0].leader_epoch is None

    def test_records_behind_the_end_are_left_out(self) -> None:
        assert offsets(read_all(FakeConsumer([messages(10, 15), [FakeMessage(18), FakeMessage(21)]]))) == [
            *range(10, 15),
            18,
        ]

    def test_an_error_behind_the_end_is_nobodys_concern(self) -> None:
        assert len(offsets(read_all(FakeConsumer([[*messages(10, 20), OUT_OF_RANGE]])))) == 10

    def test_messages_are_made_without_garbage_collections_and_rows_are_worked_on_with_them(self) -> None:
        consumer = FakeConsumer([messages(10, 15), messages(15, 20)])
        with pytest.MonkeyPatch.context() as patch:
            consumer.install(patch)
            assert [gc.isenabled() for _ in read(ONE, {})] == [True, True]
        assert consumer.collecting == {False}

    def test_disabled_garbage_collector_stays_disabled(self) -> None:
        gc.disable()
        try:
            read_all(FakeConsumer([messages(10, 20)]))
            assert not gc.isenabled()
        finally:
            gc.enable()

    def test_columns(self) -> None:
        headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", None)]
        script = [[FakeMessage(10, b"v", b"k", 1_700_000_000_123, headers), FakeMessage(11, None), end_of_log(20)]]
        (batch,) = read_all(FakeConsumer(script), with_headers=True)
        assert batch.drop_columns(["timestamp"]).to_pylist() == [
            {
                "key": b"k",
                "value": b"v",
                "offset": 10,
                "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
            },
            {"key": None, "value": None, "offset": 11, "headers": []},
        ]
        assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1_700_000_000_123_000, None]

    @pytest.mark.parametrize("field", ["body", "name"])
    def test_a_chunk_of_large_records_becomes_batches_that_are_not_too_large(
        self, monkeypatch: pytest.MonkeyPatch, field: str
    ) -> None:
        monkeypatch.setattr(polled, "_MOST_BYTES", 1000)
        sizes = [10, 400, 400, 400, 3000, 10, 10, 900, 300, 300]
        large = [FakeMessage(10 + i, **{field: b"x" * size}) for i, size in enumerate(sizes)]  # type: ignore[arg-type]
        batches = read_all(FakeConsumer([large]))
        assert offsets(batches) == [*range(10, 20)]
        column = "value" if field == "body" else "key"
        found = [[len(text) for text in batch.column(column).to_pylist()] for batch in batches]
        assert [size for batch in found for size in batch] == sizes
        assert max(sum(batch) for batch in found if batch != [3000]) <= 1000

    def test_as_many_as_fit_are_together(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(polled, "_MOST_BYTES", 1000)
        sizes = [3000, 10, 990, 1, 400, 400, 400, 400, 400, 0]
        large = [FakeMessage(10 + i, b"x" * size) for i, size in enumerate(sizes)]

        batches = read_all(FakeConsumer([large]))

        found = [[len(text) for text in batch.column("value").to_pylist()] for batch in batches]
        assert found == [[3000], [10, 990], [1, 400, 400], [400, 400], [400, 0]]

    def test_headers_count_for_the_bytes_of_a_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(polled, "_MOST_BYTES", 1000)
        small: list[tuple[str, bytes | None]] = [("ä", None)] * 4
        large: list[tuple[str, bytes | None]] = [("h", b"x" * 5000)]
        script: list[Step] = [[FakeMessage(10 + i, b"v", fields=small) for i in range(3)]]
        script += [[FakeMessage(13, b"v", fields=large), FakeMessage(14, b"v")], messages(15, 16), messages(16, 20)]
        consumer = FakeConsumer(script)

        batches = read_all(consumer, with_headers=True)

        assert [offsets([batch]) for batch in batches][:4] == [[10], [11], [12], [13]]
        assert offsets(batches) == [*range(10, 20)]
        # After large headers, fewer records are polled at once.
        assert consumer.asked[:3] == [10, 1, 1]
        found = [header for batch in batches for header in batch.column("headers").to_pylist()]
        assert found[2:5] == [[{"key": "ä", "value": None}] * 4, [{"key": "h", "value": b"x" * 5000}], []]

    def test_full_polls_become_one_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(read_module, "_POLL", 2)
        monkeypatch.setattr(read_module, "_BATCH", 4)
        consumer = FakeConsumer([messages(first, first + 2) for first in range(10, 20, 2)])

        batches = read_all(consumer)

        assert [offsets([batch]) for batch in batches] == [[10, 11, 12, 13], [14, 15, 16, 17], [18, 19]]

    def test_records_do_not_wait_for_others_that_are_late(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(read_module, "_POLL", 2)
        consumer = FakeConsumer(
            [messages(10, 12), messages(12, 13), messages(13, 15), [], messages(15, 17), messages(17, 20)]
        )

        batches = read_all(consumer)

        assert [offsets([batch]) for batch in batches] == [[10, 11, 12], [13, 14], [*range(15, 20)]]

    def test_the_time_that_is_spent_on_rows_is_not_time_without_a_record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(read_module, "_POLL", 2)
        consumer = FakeConsumer([messages(10, 12), [], [], messages(12, 20)])
        consumer.install(monkeypatch)
        found = []

        for batch in read(ONE, {}, idle_timeout=60.0):
            found += offsets([batch])
            consumer.now += 100.0

        assert found == [*range(10, 20)]

    def test_after_large_records_fewer_are_polled_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(polled, "_MOST_BYTES", 1000)
        script: list[Step] = [
            messages(10, 12, body=b"x" * 2000),
            messages(12, 13, body=b"x" * 100),
            messages(13, 16, body=b""),
            messages(16, 20),
        ]
        consumer = FakeConsumer(script)

        assert offsets(read_all(consumer)) == [*range(10, 20)]
        # Half a record is one, then twice as many, and then all that are left.
        assert consumer.asked == [10, 1, 2, 4]

    @pytest.mark.parametrize("with_headers", [False, True])
    def test_few_are_polled_at_first_and_after_many_headers(self, with_headers: bool) -> None:
        many: list[tuple[str, bytes | None]] = [("", None)] * 100_000
        script: list[Step] = [messages(0, 16), messages(16, 48), [FakeMessage(48, b"{}", fields=many)]]
        consumer = FakeConsumer([*script, messages(49, 1_000)])

        read_all(consumer, Slice(0, "orders", 0, 0, 1_000), with_headers=with_headers)

        assert consumer.asked[:4] == [16, 32, 64, 1]

    def test_the_last_instant_of_the_year_9999_is_one(self) -> None:
        (batch,) = read_all(FakeConsumer([messages(10, 20, timestamp_ms=LAST_MS)]))
        assert batch.column("timestamp")[0].as_py() == datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)

    def test_a_later_timestamp_can_be_clipped(self) -> None:
        (batch,) = read_all(FakeConsumer([messages(10, 20, timestamp_ms=2**63 - 1)]), clip_timestamps=True)
        assert batch.column("timestamp")[0].as_py() == datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)

    @pytest.mark.parametrize(
        "timestamp_ms",
        [LAST_MS + 1, 1_700_000_000_000_000, 1_700_000_000_000_000_000, 2**63 - 1],
        ids=["year 10000", "microseconds", "nanoseconds", "largest"],
    )
    def test_a_later_timestamp_is_an_error_of_the_first_record_that_has_one(self, timestamp_ms: int) -> None:
        script: list[Step] = [
            [*messages(10, 12, timestamp_ms=5), *messages(12, 13, timestamp_ms=timestamp_ms), *messages(13, 20)]
        ]
        message = refused(RecordError, FakeConsumer(script))
        assert message.startswith(
            f"Record at topic 'orders' partition 0 offset 12 cannot be loaded: its timestamp of {timestamp_ms} ms is "
            "after the year 9999"
        )

    def test_timestamps_behind_the_end_are_nobodys_concern(self) -> None:
        script: list[Step] = [[*messages(10, 20), FakeMessage(20, timestamp_ms=2**62)]]
        assert len(offsets(read_all(FakeConsumer(script)))) == 10


@given(
    logged=st.lists(
        st.tuples(st.integers(0, 60), st.integers(-1, 6)), min_size=1, unique_by=lambda record: record[0]
    ).map(sorted),
    chunk=st.integers(1, 7),
    poll=st.integers(1, 7),
    batch_size=st.integers(1, 20),
)
def test_exactly_the_records_before_the_end_are_read(
    logged: list[tuple[int, int]], chunk: int, poll: int, batch_size: int
) -> None:
    records = [FakeMessage(offset, b"%d" % offset, timestamp_ms=at) for offset, at in logged]
    script: list[Step] = [records[i : i + chunk] for i in range(0, len(records), chunk)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_module, "_POLL", poll)
        patch.setattr(read_module, "_BATCH", batch_size)
        batches = read_all(FakeConsumer([*script, [end_of_log(61)]]), Slice(0, "orders", 0, 0, 50))

    assert offsets(batches) == [offset for offset, _ in logged if offset < 50]
    assert all(batch.num_rows for batch in batches)
    for batch in batches:
        assert batch.column("value").to_pylist() == [b"%d" % offset for offset in batch.column("offset").to_pylist()]


class TestALogThatDoesNotHoldThePosition:
    @pytest.mark.parametrize(
        "event",
        [
            failure(KafkaError._AUTO_OFFSET_RESET, f"{CUT}Local: Partition log truncation detected (broker 1)"),
            failure(KafkaError._LOG_TRUNCATION, "in other words"),
        ],
        ids=["as librdkafka reports it", "by its code"],
    )
    def test_an_epoch_that_ends_before_the_start_means_that_the_log_was_cut(self, event: FakeMessage) -> None:
        message = refused(LogTruncatedError, FakeConsumer([[event]]))
        assert message.startswith(
            "orders[0]: the log reached offset 10 in leader epoch 3 when the position was planned, but now that "
            "epoch ends before the offset. The log was truncated and written again"
        )
        assert "then rewind the group, or load with a new group_id" in message

    def test_the_same_as_an_error_of_the_client(self) -> None:
        refused(LogTruncatedError, FakeConsumer([KafkaError(KafkaError._LOG_TRUNCATION)]))

    def test_a_start_behind_the_end_of_the_log_means_that_it_was_cut(self) -> None:
        message = refused(LogTruncatedError, FakeConsumer([[OUT_OF_RANGE]], beginning=10))
        assert "orders[0]: offsets 10..20 were planned, but the log ends before them" in message

    @pytest.mark.parametrize("beginning", [11, TIMED_OUT], ids=["beginning", "no answer"])
    def test_a_start_before_the_beginning_of_the_log_has_expired(self, beginning: int | KafkaException) -> None:
        message = refused(DataLossError, FakeConsumer([[OUT_OF_RANGE]], beginning=beginning))
        assert "orders[0]: offsets 10..20 were planned, but the log does not hold them any more" in message

    @pytest.mark.parametrize(
        "event", [OUT_OF_RANGE, failure(KafkaError._LOG_TRUNCATION)], ids=["out of range", "another epoch"]
    )
    @pytest.mark.parametrize("together", [True, False])
    def test_a_log_that_is_cut_while_it_is_read_is_read_again(self, event: FakeMessage, together: bool) -> None:
        script: list[Step] = [[*messages(10, 13), event]] if together else [messages(10, 13), [event]]
        message = refused(ReadError, FakeConsumer(script))
        assert "orders[0]: the log was truncated before offset 13 while 10..20 was read" in message

    def test_a_log_that_expires_while_it_is_read_is_a_loss(self) -> None:
        refused(DataLossError, FakeConsumer([messages(10, 13), [OUT_OF_RANGE]], beginning=14))


class TestATopicThatIsGone:
    @pytest.mark.parametrize("topics", [None, {1: object()}], ids=["topic", "partition"])
    @pytest.mark.parametrize(
        "code", [KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION]
    )
    def test_a_deleted_topic_is_named_after_ten_seconds(self, topics: dict[int, object] | None, code: int) -> None:
        consumer = FakeConsumer([messages(10, 13), *repeat(KafkaError(code), 100)], topics=topics)
        message = refused(UnknownTopicError, consumer)
        assert message.startswith("orders[0]: the cluster has not known this partition for 10 s")
        assert "at offset 13 of 10..20" in message
        assert 1010.0 < consumer.now < 1012.0

    def test_a_short_spell_is_waited_for(self) -> None:
        script = [*repeat(UNKNOWN, 19), messages(10, 15), *repeat(UNKNOWN, 19), messages(15, 20)]
        assert len(offsets(read_all(FakeConsumer(script, topics=None)))) == 10

    def test_a_topic_that_is_known_again_is_waited_for(self) -> None:
        script: list[Step] = [UNKNOWN, *repeat([], 60), messages(10, 20)]
        assert len(offsets(read_all(FakeConsumer(script)))) == 10

    def test_the_spell_ends_with_the_answer_that_the_topic_is_known(self) -> None:
        consumer = FakeConsumer([UNKNOWN, *repeat([], 60), UNKNOWN, *repeat([], 10), messages(10, 20)])
        asked: list[float] = []
        answer = consumer.list_topics

        def noted(topic: str, timeout: float) -> object:
            asked.append(consumer.now)
            return answer(topic, timeout)

        consumer.list_topics = noted  # type: ignore[method-assign]
        read_all(consumer)
        assert len(asked) == 1

    def test_a_cluster_that_does_not_answer_is_no_proof(self) -> None:
        message = refused(ReadError, FakeConsumer(repeat(UNKNOWN), topics=TIMED_OUT), idle_timeout=30.0)
        assert "no record came for 30 s at offset 10" in message
        assert UNKNOWN.str() in message

    def test_a_missing_right_is_told_at_once(self) -> None:
        consumer = FakeConsumer([KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), *repeat(UNKNOWN, 100)], topics=None)
        assert "orders[0] cannot be read: this user needs the ACL Read on topic 'orders'" in refused(
            ConfigurationError, consumer
        )
        assert consumer.now < 1001.0

    def test_no_right_to_the_group_is_needed(self) -> None:
        denied = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
        assert len(offsets(read_all(FakeConsumer([denied, *repeat([], 60), messages(10, 20)])))) == 10
        message = refused(ReadError, FakeConsumer([denied]), idle_timeout=5.0)
        assert "the client gave no reason" in message

    def test_a_configuration_that_this_machine_cannot_use_is_told(self, tmp_path: Path) -> None:
        config = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "ssl", "ssl.ca.location": f"{tmp_path}/none"}
        with pytest.raises(
            ConfigurationError, match=r"cannot be used on .*location is '.*/none', and there is no such"
        ):
            list(read(Slice(0, "orders", 0, 0, 10), consumer_config(config, "g", "read_committed")))


class TestSilence:
    def test_a_silent_read_ends_with_the_errors_of_the_client(self) -> None:
        down = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
        message = refused(ReadError, FakeConsumer([messages(10, 13), *repeat(down, 20)]), idle_timeout=5.0)
        assert "orders[0]: no record came for 5 s at offset 13, 7 offsets before the end 20" in message
        assert "planned range: 1/1 brokers are down." in message

    def test_errors_before_the_position_moved_are_not_the_reason(self) -> None:
        down = KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down")
        message = refused(ReadError, FakeConsumer([down, messages(10, 13)]), idle_timeout=5.0)
        assert "the client gave no reason" in message

    def test_offsets_without_a_record_are_no_silence(self) -> None:
        script: list[Step] = [*([end_of_log(offset)] for offset in range(11, 21))]
        consumer = FakeConsumer(script, seconds_a_call=4.0)
        assert read_all(consumer, idle_timeout=5.0) == []
