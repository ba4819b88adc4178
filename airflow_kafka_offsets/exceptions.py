"""The errors that this package raises.

* `KafkaOffsetsError`

  * `ConfigurationError`: a parameter, a connection or the machine is wrong
  * `KafkaUnavailableError` (retriable): the cluster, or a partition's leader, cannot be reached
  * `RegistryUnavailableError` (retriable): a schema registry does not answer
  * `UnknownTopicError`: the cluster has no such topic or partition, or this user may not describe it
  * `PlanningError`: the stored positions do not match the log

    * `NoPositionError`: a topic has no stored position, and `start` does not provide one
    * `DataLossError`: records between the position and the beginning offset are gone
    * `TopicRecreatedError`: the topic was recreated
    * `LogTruncatedError`: the log was truncated before the position
    * `ClusterChangedError`: the positions belong to another cluster
    * `DoubleLoadError`: records would be loaded into the target twice, by a replay and by a load

  * `StagingError` (retriable): the Spark application did not stage the batch

    * `StagedFileError` (retriable): a staged file is missing or damaged
    * `WorkerCrashError` (retriable): a Python process of Spark ended while it staged the batch

  * `ReadError` (retriable): a range could not be read to its end
  * `OffsetOrderError`: records of the log contradict each other in where they are
  * `RecordError`: a record cannot be decoded, or its row cannot be written; names topic, partition and offset
  * `NewFieldError`: records have fields without a column, and `on_new_field` is "fail"

    * `NewSchemaError` (retriable): the same with "add", and the schema was not known when the load was planned

  * `DeadLetterError`: a batch has more bad or refused records than `DeadLetters.limit` allows
  * `TransformError`: the user's transform raised, or returned an unusable value
  * `FunctionError`: a function of `FunctionSink` raised, ended its transaction, or returned an unusable value
  * `TargetError`: the target table does not fit the data
  * `LedgerError`: the state tables do not allow the change

    * `DatabaseBusyError` (retriable): other writers blocked the database for longer than the limit
    * `DatabaseUnavailableError` (retriable): the database is full, closed the connection, or was too slow
    * `GroupBusyError` (retriable): another run holds the group's lease
    * `ForeignBatchError`: the group belongs to a load of other topics, or into another table
    * `OpenBatchError`: an open batch starts at the positions to move
    * `RewindConflictError`: positions have moved since the preview of a rewind, or since the rewind to undo
    * `PositionsMovedError` (retriable): the positions moved while a batch was planned from them
    * `FencedError`: a later attempt took over the group; this one can never commit
    * `PositionConflictError`: a stored position is not where the batch starts
    * `BatchClosedError`: the batch was committed or abandoned meanwhile; this attempt can never commit it
    * `OlderLedgerError`: the target has rows of batches that are missing in the state tables
    * `CommitUnknownError` (retriable): the connection broke at COMMIT, and the state tables could not be read

  * `MirrorError`: a consumer group in Kafka does not show the stored positions
  * `VerificationError`: positions, history, target and dead letters do not prove that every record was loaded exactly
    once

`retriable` says whether a retry of the same task can succeed without a change by the user.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

from airflow_kafka_offsets.escaping import printable


@dataclass(frozen=True, slots=True)
class Violation:
    """A finding that contradicts exactly-once loading.

    :param words: what is wrong, where, and what it means
    :param offset: the first offset concerned
    """

    words: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    batch_id: int | None = None


class KafkaOffsetsError(Exception):
    """The base class of all errors of this package.

    :ivar about: the parameters that may have named the connection that the message is about, such as `KAFKA`. A message
        about Kafka has what the client knows of its connection, such as hosts, users and files: it is for those who may
        read the connection
    :ivar named: the parameters that named it, with their values, as the beginning of the message
    """

    retriable: ClassVar[bool] = False
    about: tuple[str, ...] = ()
    named = ""
    _kept: ClassVar[str] = ""

    def __str__(self) -> str:
        # Messages quote names of the state tables and records: they are logged as they are.
        return printable(f"{self.named}{self._message()}", keep=self._kept)

    def _message(self) -> str:
        return super().__str__()


KAFKA, DATABASE, REGISTRY, LAKE = "kafka_conn_id", "conn_id", "registry_conn_id", ("storage_conn_id", "catalog_conn_id")
"""The parameters that name connections; see `KafkaOffsetsError.about`."""


@contextmanager
def about(*parameters: str) -> Iterator[None]:
    """Note in errors of a block which parameters may have named the connection that they are about."""
    try:
        yield
    except KafkaOffsetsError as error:
        error.about = error.about or parameters
        raise


class ConfigurationError(KafkaOffsetsError):
    """A parameter, a connection or the machine is wrong; the message says what to change."""


class KafkaUnavailableError(KafkaOffsetsError):
    """The cluster, or the leader of a partition, could not be reached in time; the message carries the client's
    reason.
    """

    retriable = True
    about = (KAFKA,)


class RegistryUnavailableError(KafkaOffsetsError):
    """A schema registry could not be reached, or failed; the records could not be checked."""

    retriable = True
    about = (REGISTRY,)


class UnknownTopicError(KafkaOffsetsError):
    """The cluster has no such topic or partition, or this user may not describe it."""


class PlanningError(KafkaOffsetsError):
    """The stored positions do not match the log."""


class NoPositionError(PlanningError):
    """A topic has no stored position, and `start` does not provide one: it is `none`, or the consumer group committed
    nothing.
    """


class DataLossError(PlanningError):
    """Records that were never loaded are gone from the log."""


class TopicRecreatedError(PlanningError):
    """The stored positions belong to an earlier topic of the same name."""


class LogTruncatedError(PlanningError):
    """The log was truncated before a stored position."""


class ClusterChangedError(PlanningError):
    """The stored positions belong to another Kafka cluster."""


class DoubleLoadError(PlanningError):
    """Records would be loaded into the target twice, by a replay and by a load of its group."""


class StagingError(KafkaOffsetsError):
    """The Spark application did not stage the batch."""

    retriable = True


class StagedFileError(StagingError):
    """A staged file is missing, unreadable or damaged."""


class WorkerCrashError(StagingError):
    """A Python process of Spark ended while it staged the batch, and no record that it decoded was the cause."""


class ReadError(KafkaOffsetsError):
    """A range could not be read to its end offset."""

    retriable = True


class OffsetOrderError(KafkaOffsetsError):
    """Records of a log contradict each other in where they are."""


class RecordError(KafkaOffsetsError):
    """A record cannot be loaded.

    :param reason: what is wrong with it
    :param topic: its topic
    :param partition: its partition
    :param offset: its offset
    :param may_be_kept: whether it can be a dead letter: its own values are wrong
    """

    def __init__(self, reason: str, topic: str, partition: int, offset: int, *, may_be_kept: bool = True) -> None:
        # Pickle makes an error again from what the base class was given.
        super().__init__(reason, topic, partition, offset)
        self.may_be_kept = may_be_kept
        self.reason = reason
        self.topic = topic
        self.partition = partition
        self.offset = offset

    def _message(self) -> str:
        where = f"Record at topic {self.topic!r} partition {self.partition} offset {self.offset}"
        if not self.may_be_kept:
            return (
                f"{where} cannot be loaded: {self.reason}. Nothing of this batch was written and no position moved; "
                "correct the target, or the record; then run the task again."
            )
        return (
            f"{where} cannot be loaded: {self.reason}. Nothing of this batch was written and no position moved; "
            "correct the declared columns or the target, or set on_bad_record=DeadLetters() to keep such records apart "
            "and load the others; then run the task again."
        )


class NewFieldError(KafkaOffsetsError):
    """Records have fields without a column, and `on_new_field` is not "ignore"."""


class NewSchemaError(NewFieldError):
    """Records have fields without a column, because their schema was not known when the load was planned."""

    retriable = True


class DeadLetterError(KafkaOffsetsError):
    """A batch has more bad records than `DeadLetters.limit` allows."""


class TransformError(KafkaOffsetsError):
    """The user's transform raised, or returned an unusable value. The message has the frames of the traceback that are
    in the user's code.
    """

    _kept = "\n\t"


class FunctionError(KafkaOffsetsError):
    """A function of `FunctionSink` cannot be imported, raised, ended its transaction, or returned an unusable value.

    The message has the frames of the traceback that are in the user's code.
    """

    _kept = "\n\t"


class TargetError(KafkaOffsetsError):
    """The target table does not fit the data."""


class LedgerError(KafkaOffsetsError):
    """The state tables do not allow a change."""


class DatabaseBusyError(LedgerError):
    """Other writers blocked the database for longer than the limit.

    Either a writer locks the whole database (SQLite), or the database rolled the transaction back several times because
    of a deadlock or a serialization failure.
    """

    retriable = True


class DatabaseUnavailableError(LedgerError):
    """The database failed: it is full, has no connection left, or timed out."""

    retriable = True


class ForeignBatchError(LedgerError):
    """The group belongs to a load of other topics, or into another table."""


class GroupBusyError(LedgerError):
    """Another run holds the group's lease."""

    retriable = True


class OpenBatchError(LedgerError):
    """An open batch starts at the positions to move, or may be in the target already; or the batch to abandon is not
    open.
    """


class RewindConflictError(LedgerError):
    """Positions have moved since the preview of a rewind, or since the rewind to undo."""


class PositionsMovedError(LedgerError):
    """The positions moved while a batch was planned from them: it must be planned again."""

    retriable = True


class FencedError(LedgerError):
    """A later attempt took over the group: this one can never commit."""


class PositionConflictError(LedgerError):
    """A stored position is not where the batch starts."""


class BatchClosedError(LedgerError):
    """The batch was committed or abandoned meanwhile: this attempt can never commit it."""


class OlderLedgerError(LedgerError):
    """The target has rows of batches that are missing in the state tables, as after a restore of an older backup."""


class CommitUnknownError(LedgerError):
    """The connection broke at COMMIT, and the state tables could not be read for the outcome."""

    retriable = True


class MirrorError(KafkaOffsetsError):
    """A consumer group in Kafka does not show the mirrored positions; the stored ones are correct."""


class VerificationError(KafkaOffsetsError):
    """Positions, history, target and dead letters do not prove that every record was loaded exactly once.

    `topic`, `partition`, `offset` and `batch_id` are those of the first violation; each may be None.

    :param group_id: the group that was verified
    :param violations: the first 1,000, at least one; the message names the first
    :param count: the number of all violations; None is the number in `violations`
    """

    def __init__(self, group_id: str, violations: tuple[Violation, ...], count: int | None = None) -> None:
        # Pickle makes an error again from what the base class was given.
        super().__init__(group_id, violations, count)
        self.group_id = group_id
        self.violations = violations
        self.count = len(violations) if count is None else count
        first = violations[0]
        self.topic, self.partition = first.topic, first.partition
        self.offset, self.batch_id = first.offset, first.batch_id

    def _message(self) -> str:
        first, others = self.violations[0], self.count - 1
        more = (
            f" There {'is 1 other violation' if others == 1 else f'are {others:,} other violations'}." if others else ""
        )
        return f"The coverage of group {self.group_id!r} is violated: {first.words}.{more}"
