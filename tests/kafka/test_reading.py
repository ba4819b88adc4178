"""Reading slices of a real broker, without Spark: odd records, filters, epochs, and logs that are gone or cut."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition

from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.core.offsets import TopicPartition as Partition
from airflow_kafka_offsets.exceptions import DataLossError, LogTruncatedError, RecordError, UnknownTopicError
from airflow_kafka_offsets.formats.columns import row_columns
from airflow_kafka_offsets.formats.record_format import RecordFormat
from airflow_kafka_offsets.formats.simple_formats import Json, Raw
from airflow_kafka_offsets.kafka import errors
from airflow_kafka_offsets.kafka.cluster import Cluster
from airflow_kafka_offsets.kafka.consumer import consumer_config
from airflow_kafka_offsets.kafka.reader import read
from airflow_kafka_offsets.spark.job import StageJob
from airflow_kafka_offsets.spark.tasks import read_arrow
from airflow_kafka_offsets.staging.dead_letters import dead_letters
from airflow_kafka_offsets.staging.directory import StagingDirectory
from airflow_kafka_offsets.staging.manifest import Manifest, SliceRead
from airflow_kafka_offsets.staging.rows import TargetColumns
from devstack.kafka import KafkaBroker
from tests.support import clients
from tests.support.clients import produce
from tests.support.loads import TopicFactory, names

pytestmark = pytest.mark.server

NOON = 1_700_000_000_000


def config(kafka: KafkaBroker, **options: Any) -> dict[str, Any]:
    return consumer_config({"bootstrap.servers": kafka.bootstrap_servers, **options}, "reader", "read_committed")


def produce_records(kafka: KafkaBroker, topic: str, *records: dict[str, Any], **options: Any) -> None:
    """Write records with all they can have to partition 0, in order."""
    errors: list[object] = []
    producer = clients.producer(kafka, **options)
    for record in records:
        producer.produce(topic, partition=0, on_delivery=lambda error, _: errors.append(error), **record)
    assert producer.flush(30) == 0
    assert errors == [None] * len(records)


def offsets(kafka: KafkaBroker, one: Slice) -> list[int]:
    return [offset for batch in read(one, config(kafka)) for offset in batch.column("offset").to_pylist()]


def rows_and_note(
    kafka: KafkaBroker, directory: Path, one: Slice, value_format: RecordFormat, **options: Any
) -> tuple[list[dict[str, Any]], SliceRead]:
    """What a Spark task makes of a slice."""
    job = StageJob(
        batch_id=1,
        group_id="reader",
        tasks=((one,),),
        kafka_config={"bootstrap.servers": kafka.bootstrap_servers},
        isolation_level="read_committed",
        record_format=value_format,
        columns=row_columns(value_format),
        transform=None,
        target=TargetColumns("target", None),
        fingerprint="f00d",
        staging_uri=str(directory),
        **options,
    )
    indexes = pa.RecordBatch.from_pydict({"id": pa.array([0], pa.int64())})
    rows = [row for batch in read_arrow(job, iter([indexes])) for row in batch.to_pylist()]
    (note,) = StagingDirectory(str(directory)).notes("slice-")
    return rows, SliceRead.from_plain(note)


def test_odd_records_are_read_as_they_are(kafka: KafkaBroker, topic: TopicFactory, tmp_path: Path) -> None:
    name = topic()
    headers = [("a", b"1"), ("a", None), ("a", b""), ("ü", b"\xff")]
    produce_records(
        kafka,
        name,
        {"key": None, "value": b"no key"},
        {"key": b"", "value": b""},
        {"key": b"tombstone", "value": None},
        {"key": b"\xff\x00", "value": b"headers", "headers": headers, "timestamp": NOON},
    )

    rows, note = rows_and_note(kafka, tmp_path, Slice(0, name, 0, 0, 4), Raw(headers=True))

    assert [(row["key"], row["value"]) for row in rows] == [
        (None, b"no key"),
        (b"", b""),
        (b"tombstone", None),
        (b"\xff\x00", b"headers"),
    ]
    assert [[(header["key"], header["value"]) for header in row["headers"]] for row in rows] == [[], [], [], headers]
    assert rows[3]["_kafka_timestamp"].timestamp() * 1000 == NOON
    assert note.bytes == len(b"no keytombstone\xff\x00headers")


def test_the_client_has_no_headers_of_a_record_with_more_than_a_hundred_thousand(
    kafka: KafkaBroker, topic: TopicFactory
) -> None:
    name = topic()
    counts = (100_000, 100_001)
    produce_records(kafka, name, *({"value": b"", "headers": [("", None)] * count} for count in counts))

    batches = list(read(Slice(0, name, 0, 0, 2), config(kafka), with_headers=True))

    # As documented: nothing of the second record says that it has some.
    assert [len(headers) for batch in batches for headers in batch.column("headers")] == [100_000, 0]


def test_a_record_that_is_larger_than_a_fetch_is_read(kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic(max_message_bytes=3_100_000)
    values = [b"small", b"x" * 3_000_000, b"small again"]
    produce_records(kafka, name, *({"value": value} for value in values), **{"message.max.bytes": 3_100_000})

    batches = list(read(Slice(0, name, 0, 0, 3), config(kafka, **{"fetch.message.max.bytes": 1000})))

    assert [value for batch in batches for value in batch.column("value").to_pylist()] == values


def test_bad_records_are_set_aside_with_all_they_have(kafka: KafkaBroker, topic: TopicFactory, tmp_path: Path) -> None:
    name = topic()
    bad = {"key": b"k", "value": b"{not json", "headers": [("h", b"v")], "timestamp": NOON}
    produce_records(kafka, name, {"value": b'{"id": 1}'}, bad, {"value": b'{"id": 2}'})

    rows, note = rows_and_note(
        kafka, tmp_path, Slice(0, name, 0, 0, 3), Json("id BIGINT NOT NULL"), has_dead_letters=True
    )

    assert [(row["id"], row["_kafka_offset"]) for row in rows] == [(1, 0), (2, 2)]
    (letters,) = dead_letters(StagingDirectory(str(tmp_path)), Manifest(1, "f00d", (), (note,)))
    (letter,) = letters.to_pylist()
    assert (letter["topic"], letter["partition"], letter["offset"]) == (name, 0, 1)
    assert (letter["key"], letter["value"], letter["headers"]) == (b"k", b"{not json", '[["h", "dg=="]]')
    assert letter["timestamp"].timestamp() * 1000 == NOON
    assert letter["error"] == "it is not exactly one JSON object, at byte 1"


def produce_with_headers(kafka: KafkaBroker, topic: str, *records: tuple[bytes, bytes]) -> None:
    """Write records to partition 0, in order, whose headers have any bytes as their keys: the client in Python takes
    text only.

    :param records: the key of the header, and the value of the record
    """
    libraries = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "librdkafka" in line}
    client = ctypes.CDLL(libraries.pop())
    client.rd_kafka_conf_new.restype = client.rd_kafka_new.restype = ctypes.c_void_p
    conf, error, size = (
        ctypes.c_void_p(client.rd_kafka_conf_new()),
        ctypes.create_string_buffer(500),
        ctypes.c_size_t(500),
    )
    assert client.rd_kafka_conf_set(conf, b"bootstrap.servers", kafka.bootstrap_servers.encode(), error, size) == 0
    producer = ctypes.c_void_p(client.rd_kafka_new(0, conf, error, size))
    # The parameters of rd_kafka_producev are pairs and triples that begin with their kind.
    topic_is, partition_is, value_is, flags_are, header_is, end = map(ctypes.c_int, (1, 3, 4, 7, 9, 0))
    copy = ctypes.c_int(2)
    where = (topic_is, ctypes.c_char_p(topic.encode()), partition_is, ctypes.c_int32(0), flags_are, copy)
    for key, value in records:
        what = (value_is, ctypes.c_char_p(value), ctypes.c_size_t(len(value)))
        header = (header_is, ctypes.c_char_p(key), ctypes.c_char_p(b"v"), ctypes.c_ssize_t(1))
        assert client.rd_kafka_producev(producer, *where, *what, *header, end) == 0
    assert client.rd_kafka_flush(producer, 30_000) == 0
    client.rd_kafka_destroy(producer)


class TestAHeaderWhoseKeyIsNotUtf8:
    @pytest.fixture
    def one(self, kafka: KafkaBroker, topic: TopicFactory) -> Slice:
        name = topic()
        good = [(b"h", b'{"id": %d}' % number) for number in range(100)]
        produce_with_headers(kafka, name, *good, (b"caf\xe9", b'{"id": 100}'), (b"caf\xe9", b"{"), (b"h", b"{"))
        return Slice(0, name, 0, 0, 103)

    def test_is_an_error_that_names_the_record_where_headers_are_asked_for(
        self, kafka: KafkaBroker, one: Slice, tmp_path: Path
    ) -> None:
        message = rf"'{one.topic}' partition 0 offset 100 .*the key of a header is not UTF-8"
        with pytest.raises(RecordError, match=message):
            rows_and_note(kafka, tmp_path, one, Raw(headers=True))

    def test_is_left_out_where_headers_would_only_be_kept_with_a_dead_letter(
        self, kafka: KafkaBroker, one: Slice, tmp_path: Path
    ) -> None:
        rows, note = rows_and_note(kafka, tmp_path, one, Json("id BIGINT"), has_dead_letters=True)

        assert [row["id"] for row in rows] == [*range(101)]
        (letters,) = dead_letters(StagingDirectory(str(tmp_path)), Manifest(1, "f00d", (), (note,)))
        found = [(letter["offset"], letter["value"], letter["headers"]) for letter in letters.to_pylist()]
        assert found == [(101, b"{", None), (102, b"{", '[["h", "dg=="]]')]


class TestEpochs:
    def test_the_epoch_that_is_told_with_the_end_is_one_that_every_offset_before_it_can_be_read_from(
        self, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 10))

        log = Cluster({"bootstrap.servers": kafka.bootstrap_servers}).logs([name])[Partition(name, 0)]

        assert log.leader_epoch is not None
        for start in (0, 5, 9):
            assert offsets(kafka, Slice(0, name, 0, start, 10, leader_epoch=log.leader_epoch)) == [*range(start, 10)]

    def test_an_epoch_that_the_log_never_had_is_that_of_another_log(
        self, kafka: KafkaBroker, topic: TopicFactory
    ) -> None:
        name = topic()
        produce(kafka, name, names(0, 10))

        with pytest.raises(LogTruncatedError, match=rf"{name}\[0\]: the log reached offset 5 in leader epoch 99 when"):
            offsets(kafka, Slice(0, name, 0, 5, 10, leader_epoch=99))


class TestAStartThatTheLogDoesNotHold:
    def test_behind_its_end(self, kafka: KafkaBroker, topic: TopicFactory) -> None:
        name = topic()
        produce(kafka, name, names(0, 10))

        with pytest.raises(
            LogTruncatedError, match=rf"{name}\[0\]: offsets 11\.\.20 were planned, but the log ends before"
        ):
            offsets(kafka, Slice(0, name, 0, 11, 20))

    def test_before_its_beginning(self, kafka: KafkaBroker, topic: TopicFactory) -> None:
        name = topic()
        produce(kafka, name, names(0, 10))
        admin = clients.admin(kafka)
        admin.delete_records([TopicPartition(name, 0, 6)])[TopicPartition(name, 0)].result()
        log = Cluster({"bootstrap.servers": kafka.bootstrap_servers}).logs([name])[Partition(name, 0)]

        with pytest.raises(DataLossError, match=rf"{name}\[0\]: offsets 5\.\.10 were planned, .* does not hold them"):
            offsets(kafka, Slice(0, name, 0, 5, 10, leader_epoch=log.leader_epoch))


def test_a_topic_that_is_deleted_while_it_is_read_is_named_soon(
    kafka: KafkaBroker, topic: TopicFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "_UNKNOWN_SECONDS", 1.0)
    name = topic()
    produce(kafka, name, names(0, 10))
    # Left to itself the client would doubt the news for half a minute.
    batches = read(Slice(0, name, 0, 0, 20), config(kafka), idle_timeout=120)
    assert next(batches).num_rows == 10

    admin = clients.admin(kafka)
    admin.delete_topics([name])[name].result()

    with pytest.raises(UnknownTopicError, match=rf"{name}\[0\]: .* at offset 10 of 0\.\.20"):
        next(batches)
