"""Every error this package raises on purpose.

* `KafkaOffsetsError`

  * `ConfigurationError`: a parameter, a connection or the machine is not as it has to be
  * `KafkaUnavailableError` (retriable): the cluster, or a partition's leader, cannot be reached
  * `UnknownTopicError`
  * `PlanningError`: the stored positions and the log do not fit together

    * `NoPositionError`: nothing is stored, and `start="none"` forbids to choose
    * `DataLossError`: records between the position and the beginning offset are gone
    * `TopicRecreatedError`: the topic was deleted and made again
    * `LogTruncatedError`: the position is beyond the end offset
    * `ClusterChangedError`: the positions belong to another cluster
    * `DoubleLoadError`: a replay would put records into its target that are there, or that the group will load

  * `StagingError` (retriable): the Spark application failed for a reason of its own
  * `ReadError` (retriable): a range could not be read to its end
  * `RecordError`: a record cannot be decoded, or its row cannot be written; names topic, partition and offset
  * `DeadLetterError`: more records of a batch are bad than is allowed
  * `TransformError`: the user's transform raised, or returned something that is not a DataFrame
  * `TargetError`: the target table does not fit the data
  * `LedgerError`: the state tables refuse

    * `DatabaseBusyError` (retriable): other writers of the database were in the way for longer than is waited
    * `DatabaseUnavailableError` (retriable): the database has no room, went away, or was too slow
    * `GroupBusyError` (retriable): another run holds the group
    * `ForeignBatchError`: the group's batches are those of a load of other topics, or into another table
    * `OpenBatchError`: a batch is open that starts at positions which are to be moved
    * `RewindConflictError`: positions have moved since the preview of a rewind was made, or since the rewind that is to be undone
    * `PositionsMovedError` (retriable): the positions were rewound while a batch was planned from the old ones
    * `FencedError`: a later attempt took the group over; this one can never commit
    * `PositionConflictError`: a stored position is not where the batch starts
    * `OlderLedgerError`: the target holds rows of batches that the state tables do not know
    * `CommitUnknownError` (retriable): the connection broke at the commit, and the ledger could not be asked

  * `MirrorError`: a consumer group in Kafka does not show the stored positions
  * `VerificationError`: positions, history, target and dead letters do not prove that everything was loaded exactly once

`retriable` says whether running the same task again can help without anybody changing anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be if every record was loaded exactly once.

    :param words: what, where, and what it means
    :param offset: the first that is concerned
    """

    words: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    batch_id: int | None = None


class KafkaOffsetsError(Exception):
    """The root of the tree."""

    retriable: ClassVar[bool] = False


class ConfigurationError(KafkaOffsetsError):
    """A parameter, a connection or the machine is not as it has to be; the message says what to change."""


class KafkaUnavailableError(KafkaOffsetsError):
    """The cluster, or the leader of a partition, could not be reached in time; the message carries the client's reason."""

    retriable = True


class UnknownTopicError(KafkaOffsetsError):
    """The cluster has no such topic, or does not show it to this user."""


class PlanningError(KafkaOffsetsError):
    """The stored positions and the log do not fit together, and nobody decided what should happen then."""


class NoPositionError(PlanningError):
    """A topic has no stored position, and `start="none"` forbids to choose one."""


class DataLossError(PlanningError):
    """Records that were never read are gone from the log."""


class TopicRecreatedError(PlanningError):
    """The stored positions belong to an earlier topic of the same name."""


class LogTruncatedError(PlanningError):
    """A stored position is beyond the end of the log."""


class ClusterChangedError(PlanningError):
    """The stored positions belong to another Kafka cluster."""


class DoubleLoadError(PlanningError):
    """A replay would put records into its target that are there already, or that its group will load."""


class StagingError(KafkaOffsetsError):
    """The Spark application did not stage the batch."""

    retriable = True


class ReadError(KafkaOffsetsError):
    """A range could not be read to its end offset."""

    retriable = True


class RecordError(KafkaOffsetsError):
    """One record cannot be loaded as it is.

    :param reason: what is wrong with it
    :param topic: its topic
    :param partition: its partition
    :param offset: its offset
    """

    def __init__(self, reason: str, *, topic: str, partition: int, offset: int) -> None:
        self.reason = reason
        self.topic = topic
        self.partition = partition
        self.offset = offset
        super().__init__(
            f"Record at topic {topic!r} partition {partition} offset {offset} cannot be loaded: {reason}. "
            "Nothing of this batch was written and no position moved; correct the declared columns or the target, "
            "and run the task again."
        )

    def __reduce__(self) -> tuple[Callable[..., RecordError], tuple[str, str, int, int]]:
        return _record_error, (self.reason, self.topic, self.partition, self.offset)


def _record_error(reason: str, topic: str, partition: int, offset: int) -> RecordError:
    return RecordError(reason, topic=topic, partition=partition, offset=offset)


class DeadLetterError(KafkaOffsetsError):
    """More records of a batch cannot be decoded than `max_dead_letters` allows."""


class TransformError(KafkaOffsetsError):
    """The user's transform raised, or returned something that is not a DataFrame."""


class TargetError(KafkaOffsetsError):
    """The target table does not fit the data."""


class LedgerError(KafkaOffsetsError):
    """The state tables refuse what was asked."""


class DatabaseBusyError(LedgerError):
    """Other writers were in the way for longer than is waited.

    One that holds the whole database (SQLite), or several for whose sake the same transaction was rolled back again and
    again: deadlocks, serialization failures.
    """

    retriable = True


class DatabaseUnavailableError(LedgerError):
    """The database could not do what was asked, for a reason of its own: no room, no connection, a time-out."""

    retriable = True


class ForeignBatchError(LedgerError):
    """The group's open batch belongs to a load of other topics, or its batches to one into another table."""


class GroupBusyError(LedgerError):
    """Another run holds the group."""

    retriable = True


class OpenBatchError(LedgerError):
    """A batch is open that starts at positions which are to be moved; or one that is to be abandoned is not open."""


class RewindConflictError(LedgerError):
    """Positions have moved since the preview of a rewind was made, or since the rewind that is to be undone."""


class PositionsMovedError(LedgerError):
    """The positions were rewound while a batch was planned from the old ones: it has to be planned again."""

    retriable = True


class FencedError(LedgerError):
    """A later attempt took the group over: this one can never commit."""


class PositionConflictError(LedgerError):
    """A stored position is not where the batch starts."""


class OlderLedgerError(LedgerError):
    """The target holds rows of batches that the state tables do not know: they are older than the target."""


class CommitUnknownError(LedgerError):
    """The connection broke at the commit, and the ledger could not be asked what became of it."""

    retriable = True


class MirrorError(KafkaOffsetsError):
    """A consumer group in Kafka does not show the positions that were mirrored to it; they are stored all the same."""


class VerificationError(KafkaOffsetsError):
    """Positions, history, target and dead letters do not prove that every record was loaded exactly once.

    `topic`, `partition`, `offset` and `batch_id` are those of the first violation, each None where it has none.

    :param group_id: the group that was verified
    :param violations: all that was found, at least one; the message names the first
    """

    def __init__(self, group_id: str, violations: tuple[Violation, ...]) -> None:
        self.group_id = group_id
        self.violations = violations
        first, others = violations[0], len(violations) - 1
        self.topic = first.topic
        self.partition = first.partition
        self.offset = first.offset
        self.batch_id = first.batch_id
        more = (
            f" There {'is 1 other violation' if others == 1 else f'are {others:,} other violations'}." if others else ""
        )
        super().__init__(f"The coverage of group {group_id!r} is violated: {first.words}.{more}")

    def __reduce__(self) -> tuple[type[VerificationError], tuple[str, tuple[Violation, ...]]]:
        return VerificationError, (self.group_id, self.violations)
