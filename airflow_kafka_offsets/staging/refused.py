"""The records whose rows the target refuses: made dead letters, or an error, within the commit's transaction.

A database refuses them there. Where Spark's tasks write the files of the target, they find them and stage these rows
(`REASON`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from airflow_kafka_offsets.core.origin import RESERVED_PREFIX
from airflow_kafka_offsets.exceptions import RecordError
from airflow_kafka_offsets.staging.dead_letters import too_many

REASON = f"{RESERVED_PREFIX}refused"
"""The column of staged rows that Spark's tasks could not write into a file of the target: why."""


class Record(NamedTuple):
    """Where a record is."""

    topic: str
    partition: int
    offset: int


def null_key(names: Sequence[str]) -> str:
    """Return why a row is refused whose key is null.

    :param names: the columns that are null
    """
    return f"{', '.join(map(repr, names))} is null, and a row without its key can replace no other (upsert_key)"


class RefusedRecords:
    """The records of a batch that the target refuses, with the reasons. One may have several rows, of a transform.

    :param are_dead_letters: whether they become dead letters; the first one is an error otherwise
    :param undecoded: how many records of the batch are dead letters already
    :param max_dead_letters: of the batch; None for any number
    """

    def __init__(
        self, are_dead_letters: bool = False, *, undecoded: int = 0, max_dead_letters: int | None = None
    ) -> None:
        self.reasons: dict[Record, str] = {}
        self._are_dead_letters = are_dead_letters
        self._undecoded = undecoded
        self._max = max_dead_letters

    def add(self, record: Record, reason: str) -> None:
        """Add a record, once however many rows it has.

        :raises RecordError: refused records are no dead letters in this batch
        :raises DeadLetterError: the batch has more dead letters than it may have
        """
        if not self._are_dead_letters:
            raise RecordError(reason, *record)
        self.reasons.setdefault(record, reason)
        if self._max is not None and self._undecoded + len(self.reasons) > self._max:
            first, why = next(iter(self.reasons.items()))
            cause = (
                f"{self._undecoded:,} records cannot be decoded, and at least {len(self.reasons):,} are refused "
                "by the target"
            )
            raise too_many(cause, self._max, *first, why)
