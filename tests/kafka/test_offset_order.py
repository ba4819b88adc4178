"""Record batches that a producer made by hand, whose records do not say the offsets that the log gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pyarrow.compute as pc
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from airflow_kafka_offsets import DeadLetters, Reading
from airflow_kafka_offsets.core.offsets import Slice
from airflow_kafka_offsets.exceptions import OffsetOrderError, ReadError
from airflow_kafka_offsets.kafka import consumer as consumer_module
from airflow_kafka_offsets.kafka import reader as read_module
from airflow_kafka_offsets.kafka.consumer import consumer_config
from airflow_kafka_offsets.kafka.reader import read
from devstack.kafka import KafkaBroker
from tests.support.clients import produce
from tests.support.examples import examples
from tests.support.fake_consumer import FakeConsumer, end_of_log
from tests.support.hand_made_batches import produce_batch
from tests.support.loads import Loader, TopicFactory, names, rows
from tests.support.messages import FakeMessage


@dataclass
class _Log:
    """A log of record batches, as clients read it.

    :param batches: the number of records of each, and what they say of their offsets, relative to the first; None of an
        honest batch
    :param jumps: whether the client reads on after what the last record of a batch says, as it does at the end of a
        fetch
    """

    batches: Sequence[tuple[int, Sequence[int] | None]]
    jumps: bool
    stored: list[tuple[int, list[FakeMessage]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.end = 0
        for count, said in self.batches:
            body = OTHERS if said is None else b"made by hand"
            offsets = range(count) if said is None else said
            records = [FakeMessage(self.end + offset, body) for offset in offsets]
            self.end += len(records)
            self.stored.append((self.end, records))

    def of_others(self) -> list[int]:
        return [record.at for _, records in self.stored for record in records if record.body == OTHERS]

    def consumer(self, config: Any, logger: object = None) -> _Client:
        return _Client(self)


class _Client:
    def __init__(self, log: _Log) -> None:
        self._log, self._position = log, -1001

    def assign(self, partitions: list[Any]) -> None:
        (assigned,) = partitions
        self._waiting = self._fetched(assigned.offset)

    def _fetched(self, start: int) -> Iterator[FakeMessage]:
        position = start
        for end, records in self._log.stored:
            # The broker finds batches; the client leaves out what says that it is before the start.
            if end > position:
                yield from (record for record in records if record.at >= start)
                position = max(end, records[-1].at + 1) if self._log.jumps else end
        yield end_of_log(self._log.end)

    def consume(self, count: int, timeout: float) -> list[FakeMessage]:
        found = list(islice(self._waiting, count))
        said = [message.at for message in found if message.problem is None]
        self._position = said[-1] + 1 if said else self._position
        return found

    def position(self, partitions: list[Any]) -> list[Any]:
        return [SimpleNamespace(offset=self._position)]

    def close(self) -> None:
        """Nothing is open."""


OTHERS = b"of others"

BATCHES = st.lists(
    st.one_of(
        st.tuples(st.integers(1, 8), st.none()),
        st.tuples(st.just(0), st.lists(st.integers(-8, 30), min_size=1, max_size=8)),
        st.tuples(st.just(0), st.integers(0, 30).map(lambda first: [0, 1, *range(first, first + 6)])),
    ),
    min_size=1,
    max_size=6,
)


@examples(3000)
@given(
    batches=BATCHES,
    jumps=st.booleans(),
    cuts=st.sets(st.integers(1, 40), max_size=3),
    poll=st.integers(1, 7),
)
def test_where_each_offset_has_a_record_none_of_others_is_hidden(
    batches: list[tuple[int, list[int] | None]], jumps: bool, cuts: set[int], poll: int
) -> None:
    log = _Log(batches, jumps)
    ends = sorted({cut for cut in cuts if cut < log.end} | {log.end})
    found: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(consumer_module, "Consumer", log.consumer)
        patch.setattr(read_module, "_POLL", poll)
        try:
            for start, end in zip([0, *ends], ends, strict=False):
                for records in read(Slice(0, "orders", 0, start, end), {}, every_offset=True):
                    of_others = pc.equal(records.column("value"), OTHERS)
                    found += records.column("offset").filter(of_others).to_pylist()
        except OffsetOrderError:
            assert any(said not in (None, list(range(len(said)))) for _, said in batches if said is not None)
            return

    assert found == log.of_others()


@pytest.mark.parametrize(
    ("log", "error", "reason"),
    [
        ([FakeMessage(25, b"other")], OffsetOrderError, "from 11 on: .* 25, another record is found at offset 25"),
        ([FakeMessage(30)], ReadError, "another look found the record at offset 30 there: it was compacted"),
        ([], ReadError, "another look found nothing there"),
    ],
)
def test_another_look_at_the_end_of_a_slice_with_gaps(
    monkeypatch: pytest.MonkeyPatch, log: list[FakeMessage], error: type[Exception], reason: str
) -> None:
    FakeConsumer([[FakeMessage(10), FakeMessage(25)]], log=log).install(monkeypatch)
    with pytest.raises(error, match=reason):
        list(read(Slice(0, "orders", 0, 10, 20), {}))


# What the records of a batch of four say of their offsets.
LIES = {
    "behind the end": [0, 10**6, 10**6 + 1, 10**6 + 2],
    "behind all": [0, 2**31 - 4, 2**31 - 3, 2**31 - 2],
    "within": [0, 500, 501, 502],
    "twice": [0, 0, 1, 1],
    "all at one": [500, 500, 500, 500],
    "backwards": [3, 2, 1, 0],
}


@pytest.mark.server
@pytest.mark.parametrize("after", [0, 1000])
@pytest.mark.parametrize("lie", LIES)
def test_a_load_of_records_that_lie_about_their_offsets_fails(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, lie: str, after: int
) -> None:
    loader, name = Loader(kafka, inline_loader.engine, inline_loader.launcher), topic()
    produce(kafka, name, names(0, 3))
    produce_batch(kafka.bootstrap_servers, name, [(offset, names(900, 1)[0]) for offset in LIES[lie]])
    produce(kafka, name, names(7, after))

    with pytest.raises(OffsetOrderError, match=rf"{name}\[0\]: the offsets of the log contradict .* from [34] on"):
        loader(name, on_bad_record=DeadLetters())

    with loader.engine.connect() as conn:
        assert not conn.scalar(sa.text("SELECT count(*) FROM consumed_offsets"))
    start = "SELECT start_offset, end_offset FROM offset_ranges"
    assert rows(loader.engine, start) == [(0, 7 + after)]


@pytest.mark.server
@pytest.mark.parametrize("said", [[0, 1, 2, 3], [-300, -299, -298, -297]])
def test_a_batch_made_by_hand_hides_no_other_record(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory, said: list[int]
) -> None:
    loader, name = Loader(kafka, inline_loader.engine, inline_loader.launcher), topic()
    produce(kafka, name, names(0, 3))
    produce_batch(kafka.bootstrap_servers, name, [(offset, b'{"id": -1}') for offset in said])
    produce(kafka, name, names(7, 5))

    loader(name)

    found = rows(loader.engine, "SELECT id, _kafka_offset FROM target WHERE id >= 0 ORDER BY 2")
    assert found == [(number, number) for number in (0, 1, 2, 7, 8, 9, 10, 11)]


@pytest.mark.server
def test_a_slice_that_ends_before_what_a_record_says_is_not_read(kafka: KafkaBroker, topic: TopicFactory) -> None:
    name = topic()
    produce_batch(kafka.bootstrap_servers, name, [(0, b"x"), *((offset, b"y") for offset in range(300, 1300))])
    produce(kafka, name, names(1001, 1000))
    config = consumer_config({"bootstrap.servers": kafka.bootstrap_servers}, "reader", "read_committed")

    with pytest.raises(OffsetOrderError, match=r"from 1 on: .* another record is found at offset 1199"):
        list(read(Slice(0, name, 0, 0, 1200), config))
    assert sum(records.num_rows for records in read(Slice(0, name, 0, 1200, 2001), config)) == 801


@pytest.mark.server
def test_a_load_that_wants_a_record_at_each_offset(
    inline_loader: Loader, kafka: KafkaBroker, topic: TopicFactory
) -> None:
    """The liar repeats its record at the end, where another look finds it."""
    loader, name = Loader(kafka, inline_loader.engine, inline_loader.launcher), topic()
    every_offset = Reading(every_offset=True)
    produce(kafka, name, names(0, 3))
    loader(name, reading=every_offset)
    produce_batch(kafka.bootstrap_servers, name, [(offset, names(900, 1)[0]) for offset in range(1000, 3000)])
    produce(kafka, name, names(2003, 900))

    with pytest.raises(OffsetOrderError, match=r"has no record from offset 3 to 1002, and Reading\.every_offset"):
        loader(name, reading=every_offset)
