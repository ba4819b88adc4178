"""The clients of `confluent_kafka` as a log in memory answers them: admin, consumer and producer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import ConsumerGroupState, KafkaError, KafkaException

from tests.support.messages import FakeMessage

if TYPE_CHECKING:
    from tests.support.memory_log import MemoryLog


_OFFSET_INVALID = -1001
_EARLIEST, _LATEST, _NEWEST = -2, -1, -3
_LEADER_EPOCH = 0


class Committed(NamedTuple):
    """What is said of a partition where a group's commits are asked for, or made."""

    topic: str
    partition: int
    offset: int
    error: KafkaError | None = None


class MemoryAdmin:
    """The `AdminClient` of a log in memory."""

    def __init__(self, log: MemoryLog, config: Mapping[str, Any]) -> None:
        self._log = log

    def poll(self, timeout: float = 0) -> int:
        return 0

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        return self._log.metadata(topic)

    def describe_topics(self, asked: Any, **options: Any) -> dict[str, Future[Any]]:
        def describe(name: str) -> Any:
            topic = self._log.topic(name)
            partitions = [SimpleNamespace(id=number) for number in range(len(topic.logs))]
            return SimpleNamespace(
                name=name, topic_id=topic.topic_id, partitions=partitions, authorized_operations=None
            )

        return _answers(asked.topic_names, describe)

    def describe_configs(self, resources: Iterable[Any], **options: Any) -> dict[Any, Future[Any]]:
        def describe(resource: Any) -> Any:
            return {name: SimpleNamespace(value=value) for name, value in self._log.topic(resource.name).config.items()}

        return _answers(resources, describe)

    def list_offsets(self, specs: Mapping[Any, Any], **options: Any) -> dict[Any, Future[Any]]:
        def find(partition: Any) -> Any:
            log, spec = self._log.log(partition.topic, partition.partition), specs[partition]._value
            if spec == _EARLIEST:
                return SimpleNamespace(offset=log.beginning, timestamp=-1, leader_epoch=_LEADER_EPOCH)
            if spec == _LATEST:
                return SimpleNamespace(offset=log.end, timestamp=-1, leader_epoch=_LEADER_EPOCH)
            if spec == _NEWEST:
                newest = max(log.records[log.beginning :], key=lambda record: record.timestamp_ms, default=None)
                offset, timestamp = (-1, -1) if newest is None else (newest.at, newest.timestamp_ms)
                return SimpleNamespace(offset=offset, timestamp=timestamp, leader_epoch=_LEADER_EPOCH)
            assert spec >= 0, f"the log in memory knows no {specs[partition]}"
            for record in log.records[log.beginning :]:
                if record.timestamp_ms >= spec:
                    return SimpleNamespace(offset=record.at, timestamp=record.timestamp_ms, leader_epoch=_LEADER_EPOCH)
            return SimpleNamespace(offset=-1, timestamp=-1, leader_epoch=-1)

        return _answers(specs, find)

    def describe_consumer_groups(self, groups: Iterable[str], **options: Any) -> dict[str, Future[Any]]:
        def describe(group: str) -> Any:
            known = group in self._log.commits
            return SimpleNamespace(state=ConsumerGroupState.EMPTY if known else ConsumerGroupState.DEAD, members=[])

        return _answers(groups, describe)

    def alter_consumer_group_offsets(self, asked: Sequence[Any], **options: Any) -> dict[str, Future[Any]]:
        partitions = {one.group_id: one.topic_partitions for one in asked}
        return _answers(
            partitions, lambda group: SimpleNamespace(topic_partitions=_commit(self._log, group, partitions[group]))
        )

    def create_topics(self, wanted: Iterable[Any], **options: Any) -> dict[str, Future[Any]]:
        by_name = {one.topic: one for one in wanted}

        def create(name: str) -> Any:
            if options.get("validate_only") and name not in self._log.topics:
                return None
            return self._log.create(name, by_name[name].num_partitions, by_name[name].config or {})

        return _answers(by_name, create)

    def create_partitions(self, wanted: Iterable[Any], **options: Any) -> dict[str, Future[Any]]:
        counts = {one.topic: one.new_total_count for one in wanted}
        return _answers(counts, lambda name: self._log.add_partitions(name, counts[name]))

    def delete_topics(self, names: Iterable[str], **options: Any) -> dict[str, Future[Any]]:
        return _answers(names, self._log.delete)

    def delete_records(self, partitions: Iterable[Any], **options: Any) -> dict[Any, Future[Any]]:
        def delete(one: Any) -> Any:
            if one.topic not in self._log.topics:
                raise failure(KafkaError._NOENT, "Failed to query partition leaders: No leaders found")
            return SimpleNamespace(low_watermark=self._log.delete_records(one.topic, one.partition, one.offset))

        return _answers(partitions, delete)


class MemoryConsumer:
    """The `Consumer` of a log in memory: one assigned partition, read as with `auto.offset.reset=error`."""

    def __init__(self, log: MemoryLog, config: Mapping[str, Any]) -> None:
        self._log = log
        self._group = config["group.id"]
        self._topic, self._partition, self._position = "", 0, 0
        # A client reports the end of a log, and that it has no position, once.
        self._reported: tuple[int, int] | None = None

    def assign(self, partitions: Sequence[Any]) -> None:
        (assigned,) = partitions
        assert assigned.offset >= 0, "the log in memory knows no logical offsets"
        self._topic, self._partition, self._position = assigned.topic, assigned.partition, assigned.offset

    def consume(self, num_messages: int, timeout: float) -> list[FakeMessage]:
        with self._log.changed:
            messages: list[FakeMessage] = []

            def has_taken() -> bool:
                messages.extend(self._take(num_messages))
                return bool(messages)

            self._log.changed.wait_for(has_taken, timeout)
            return messages

    def _take(self, count: int) -> list[FakeMessage]:
        try:
            log = self._log.log(self._topic, self._partition)
        except KafkaException as error:
            return self._event(error.args[0].code(), error.args[0].str(), (-1, -1))
        if not log.beginning <= self._position <= log.end:
            text = "fetch failed due to requested offset not available on the broker: Broker: Offset out of range"
            return self._event(KafkaError._AUTO_OFFSET_RESET, text, (log.beginning, log.end))
        records = log.records[self._position : self._position + count]
        self._position += len(records)
        if len(records) < count and self._position == log.end:
            text = "Fetch from broker reached end of partition"
            return [*records, *self._event(KafkaError._PARTITION_EOF, text, (log.end, log.end))]
        return records

    def _event(self, code: int, text: str, state: tuple[int, int]) -> list[FakeMessage]:
        if self._reported == state:
            return []
        self._reported = state
        return [FakeMessage(self._position, None, problem=KafkaError(code, text))]

    def position(self, partitions: Sequence[Any]) -> list[Committed]:
        return [Committed(self._topic, self._partition, self._position)]

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        return self._log.metadata(topic)

    def get_watermark_offsets(self, partition: Any, timeout: float = -1) -> tuple[int, int]:
        log = self._log.log(partition.topic, partition.partition)
        return log.beginning, log.end

    def poll(self, timeout: float = -1) -> None:
        return None

    def committed(self, partitions: Sequence[Any], timeout: float = -1) -> list[Committed]:
        commits = self._log.commits.get(self._group, {})
        keys = [(one.topic, one.partition) for one in partitions]
        return [Committed(*key, commits.get(key, _OFFSET_INVALID)) for key in keys]

    def commit(self, *, offsets: Sequence[Any], asynchronous: bool) -> list[Committed]:
        assert not asynchronous
        return _commit(self._log, self._group, offsets)

    def close(self) -> None:
        """Nothing is open."""


class MemoryProducer:
    """The `Producer` of a log in memory. Records are in the log when `produce` returns."""

    def __init__(self, log: MemoryLog, config: Mapping[str, Any]) -> None:
        assert "transactional.id" not in config, "the log in memory has no transactions: this test needs a broker"
        self._log = log
        self._reports: list[Callable[[], None]] = []

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        on_delivery: Callable[[KafkaError | None, Any], None] | None = None,
        timestamp: int = 0,
        headers: Mapping[str, Any] | Sequence[tuple[str, Any]] | None = None,
    ) -> None:
        fields = list(headers.items()) if isinstance(headers, Mapping) else headers
        message = FakeMessage(
            -1,
            _bytes(value),
            _bytes(key),
            timestamp,
            None if fields is None else [(name, _bytes(text)) for name, text in fields],
        )
        error: KafkaError | None = None
        try:
            if partition == -1:
                assert len(self._log.topic(topic).logs) == 1, "the log in memory has no partitioner"
                partition = 0
            message = self._log.append(topic, partition, message)
        except KafkaException as failure:
            error = failure.args[0]
        if on_delivery is not None:
            self._reports.append(lambda: on_delivery(error, message))

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        return self._log.metadata(topic)

    def poll(self, timeout: float = 0) -> int:
        reports, self._reports = self._reports, []
        for report in reports:
            report()
        return len(reports)

    def flush(self, timeout: float = -1) -> int:
        self.poll()
        return 0


def _commit(log: MemoryLog, group: str, partitions: Sequence[Any]) -> list[Committed]:
    with log.changed:
        done = []
        for one in partitions:
            error = None
            try:
                log.log(one.topic, one.partition)
                log.commits.setdefault(group, {})[one.topic, one.partition] = one.offset
            except KafkaException as failure:
                error = failure.args[0]
            done.append(Committed(one.topic, one.partition, one.offset, error))
        return done


def _answers(keys: Iterable[Any], ask: Callable[[Any], Any]) -> dict[Any, Future[Any]]:
    return {key: _answer(partial(ask, key)) for key in keys}


def _answer(ask: Callable[[], Any]) -> Future[Any]:
    future: Future[Any] = Future()
    try:
        future.set_result(ask())
    except KafkaException as error:
        future.set_exception(error)
    return future


def failure(code: int, text: str | None = None) -> KafkaException:
    return KafkaException(KafkaError(code, text))


def _bytes(text: str | bytes | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text
